package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "C2FVsBQIhrscChlQIMV+b5sSYspob7oDvkt3dhYFVKs="
)

func forwardTo(t *testing.T, cfg ForwardConfig) client.WorkFunc {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	fn, err := NewForward(cfg)
	testenv.Must(t, err)
	return fn
}

func text(id, payload string) *joboncev1.RecordDeliveryRequest {
	return &joboncev1.RecordDeliveryRequest{JobId: id, OpaquePayload: true, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: payload}}
}

// TestAnswers: what becomes of a job by what the receiver answers.
func TestAnswers(t *testing.T) {
	type want struct {
		state  joboncev1.WorkState
		result string
		err    string
		delay  time.Duration // at least, and less than twice as long
	}
	const (
		done   = joboncev1.WorkState_WORK_STATE_COMPLETED
		queued = joboncev1.WorkState_WORK_STATE_QUEUED
		dead   = joboncev1.WorkState_WORK_STATE_DEAD
	)
	long := strings.Repeat("ä", 40<<10)
	answers := map[string]struct {
		answer http.HandlerFunc
		want   want
	}{
		"200":                      {say(200, "it is done", ""), want{state: done, result: "it is done"}},
		"204":                      {say(204, "", ""), want{state: done}},
		"299":                      {say(299, "fine", ""), want{state: done, result: "fine"}},
		"no UTF-8":                 {say(200, "a\xffb", ""), want{state: done, result: "a\uFFFDb"}},
		"long":                     {say(200, long, ""), want{state: done, result: long[:64<<10]}},
		"long, inside a character": {say(200, strings.Repeat("x", 64<<10-3)+"\U0001F4E6", ""), want{state: done, result: strings.Repeat("x", 64<<10-3)}},
		"422, inside a character":  {say(422, strings.Repeat("x", 1021)+"\U0001F4E6", ""), want{state: dead, err: "the receiver answered 422 Unprocessable Entity: " + strings.Repeat("x", 1021)}},
		"cut short":                {cutShort, want{state: done, result: "half"}},
		"301":                      {redirect, want{state: queued, err: "the receiver answered 301 Moved Permanently, and redirects are not followed", delay: 2 * time.Second}},
		"400":                      {say(400, "which job?", ""), want{state: queued, err: "the receiver answered 400 Bad Request: which job?", delay: 2 * time.Second}},
		"410":                      {say(410, "", ""), want{state: dead, err: "the receiver answered 410 Gone"}},
		"422":                      {say(422, strings.Repeat("x", 2000), ""), want{state: dead, err: "the receiver answered 422 Unprocessable Entity: " + strings.Repeat("x", 1024)}},
		"429":                      {say(429, "", "90"), want{state: queued, err: "the receiver answered 429 Too Many Requests", delay: 90 * time.Second}},
		"429, at once":             {say(429, "", "0"), want{state: queued, err: "the receiver answered 429 Too Many Requests", delay: 2 * time.Second}},
		"500, a date": {say(500, "", time.Now().Add(5*time.Minute).UTC().Format(http.TimeFormat)),
			want{state: queued, err: "the receiver answered 500 Internal Server Error", delay: 4 * time.Minute}},
		"500, nonsense": {say(500, "", "soon"), want{state: queued, err: "the receiver answered 500 Internal Server Error", delay: 2 * time.Second}},
		"503, alone":    {say(503, "", "60"), want{state: queued, err: "the receiver answered 503 Service Unavailable", delay: time.Minute}},
		"599":           {say(599, "", ""), want{state: queued, err: "the receiver answered 599", delay: 2 * time.Second}},
		"dies":          {hangUp, want{state: queued, err: "the receiver did not answer: EOF", delay: 2 * time.Second}},
		"hangs":         {hang, want{state: queued, err: "the receiver did not answer within 1s", delay: 2 * time.Second}},
	}
	s := startService(t)
	var once sync.Map
	var asked sync.WaitGroup
	asked.Add(len(answers))
	receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
		id, _ := url.PathUnescape(r.Header.Get("JobOnce-Job-Id"))
		_, _ = io.Copy(io.Discard, r.Body) // Only then does net/http see that the sender hangs up.
		defer func() {
			if _, again := once.LoadOrStore(id, true); !again {
				asked.Done()
			}
		}()
		answers[id].answer(w, r)
	})
	var log testenv.Tail
	stop := s.work(client.WorkerConfig{Concurrency: len(answers), Logger: newLogger(&log)}, forwardTo(t, ForwardConfig{
		URL: receiver.URL, Timeout: time.Second, ResultBody: true, DeadOn: []int{410, 422},
	}))
	for id := range answers {
		s.queue(text(id, "secret body"))
	}
	asked.Wait()
	stop()
	for id, tc := range answers {
		t.Run(id, func(t *testing.T) {
			w := s.job(id).GetWork()
			got := want{state: w.GetState(), result: w.GetResult(), err: w.GetLastError()}
			if due := w.GetDueTime(); due != nil {
				left := due.AsTime().Sub(s.job(id).GetFirstSeenTime().AsTime())
				if left < tc.want.delay || left > 2*tc.want.delay+20*time.Second {
					t.Errorf("it is due after %v, want %v", left, tc.want.delay)
				}
				got.delay = tc.want.delay
			}
			if got != tc.want {
				t.Errorf("got  %.300s\nwant %.300s", fmt.Sprint(got), fmt.Sprint(tc.want))
			}
		})
	}
	for _, secret := range []string{"which job?", "xxxx", "secret body"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has what the receiver said: %q", secret)
		}
	}
}

func say(code int, text, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

func redirect(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/elsewhere", http.StatusMovedPermanently)
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// cutShort says that it is done, and ends in the middle of the rest.
func cutShort(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "8")
	_, _ = io.WriteString(w, "half")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// received is what a receiver got.
type received struct {
	header http.Header
	body   []byte
}

// TestRequests: what the receiver gets, and that its signature is good, by the libraries of Standard Webhooks in Go and in Node.
func TestRequests(t *testing.T) {
	s := startService(t)
	got := make(chan received, 10)
	receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r.Header, body}
		if r.Header.Get("JobOnce-Attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	full := text("shop:ä/100% +\"x\"", `{"a":1}`)
	full.Event, full.Status, full.Source = "order.paid\u2028", "OK", "web hook"
	xml := text("typed", "<a/>")
	xml.ContentType = "application/xml; charset=utf-8"
	raw := &joboncev1.RecordDeliveryRequest{JobId: "bytes", Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte{0xff, 0}}}
	s.queue(full, text("plain", "a=1"), xml, raw, &joboncev1.RecordDeliveryRequest{JobId: "none"})
	s.work(client.WorkerConfig{Backoff: func(int) time.Duration { return 0 }}, forwardTo(t, ForwardConfig{
		URL: receiver.URL + "/jobs?key=1", Secrets: []string{oldSecret, newSecret}, UserAgent: "test/1",
	}))
	byID := make(map[string][]received)
	for range 10 { // each twice
		r := <-got
		id, err := url.PathUnescape(r.header.Get("JobOnce-Job-Id"))
		testenv.Must(t, err)
		byID[id] = append(byID[id], r)
	}
	for id, want := range map[string]struct{ body, contentType string }{
		full.GetJobId(): {`{"a":1}`, "application/json"},
		"plain":         {"a=1", "text/plain; charset=utf-8"},
		"typed":         {"<a/>", "application/xml; charset=utf-8"},
		"bytes":         {"\xff\x00", "application/octet-stream"},
		"none":          {"", ""},
	} {
		if len(byID[id]) != 2 {
			t.Fatalf("%s came %d times", id, len(byID[id]))
		}
		first, second := byID[id][0].header, byID[id][1].header
		if string(byID[id][0].body) != want.body || first.Get("Content-Type") != want.contentType {
			t.Errorf("%s: got %q of type %q", id, byID[id][0].body, first.Get("Content-Type"))
		}
		key := first.Get("Idempotency-Key")
		if len(key) != 36 || key != first.Get("Webhook-Id") || key != second.Get("Idempotency-Key") || key != second.Get("Webhook-Id") {
			t.Errorf("%s: its ids are %v, %v", id, first, second)
		}
		if first.Get("JobOnce-Attempt") != "1" || second.Get("JobOnce-Attempt") != "2" || first.Get("User-Agent") != "test/1" ||
			first.Get("JobOnce-Generation") >= second.Get("JobOnce-Generation") {
			t.Errorf("%s: headers %v, then %v", id, first, second)
		}
	}
	h := byID[full.GetJobId()][0].header
	for name, want := range map[string]string{"Event": full.GetEvent(), "Status": "OK", "Source": "web hook"} {
		if value, err := url.PathUnescape(h.Get("JobOnce-" + name)); err != nil || value != want {
			t.Errorf("%s is %q, %v", name, value, err)
		}
	}
	if _, ok := byID["none"][0].header["Jobonce-Event"]; ok {
		t.Error("a job without an event has a header for it")
	}
	t.Run("Go", func(t *testing.T) { verifiedByGo(t, byID) })
	t.Run("Node", func(t *testing.T) { verifiedByNode(t, byID) })
}

func verifiedByGo(t *testing.T, byID map[string][]received) {
	for _, secret := range []string{oldSecret, newSecret} {
		wh, err := standardwebhooks.NewWebhook(secret)
		testenv.Must(t, err)
		for id, all := range byID {
			for _, r := range all {
				if err := wh.Verify(r.body, r.header); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				if wh.Verify(append(r.body, 'x'), r.header) == nil {
					t.Errorf("%s: a changed body is signed", id)
				}
			}
		}
	}
}

// verifiedByNode leaves the bytes out, which that library cannot read.
func verifiedByNode(t *testing.T, byID map[string][]received) {
	testenv.Need(t, "node", "npm")
	const dir = "testdata/verify"
	packages := testenv.Cached(t, "runner-verify", []string{dir + "/package.json", dir + "/package-lock.json", dir + "/verify.mjs"}, func(into string) error {
		if err := os.CopyFS(into, os.DirFS(dir)); err != nil {
			return err
		}
		return testenv.Run(t, into, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	var input bytes.Buffer
	var want strings.Builder
	line := func(secret string, r received, body []byte, outcome string) {
		headers := make(map[string]string)
		for name := range r.header {
			headers[strings.ToLower(name)] = r.header.Get(name)
		}
		// The Node library wants a body that is JSON.
		testenv.Must(t, json.NewEncoder(&input).Encode(map[string]any{"secret": secret, "headers": headers, "body": body}))
		want.WriteString(outcome + "\n")
	}
	for _, all := range byID {
		for _, r := range all {
			if !json.Valid(r.body) {
				continue
			}
			line(oldSecret, r, r.body, "ok")
			line(newSecret, r, r.body, "ok")
			line(newSecret, r, append(bytes.Clone(r.body), ' '), "WebhookVerificationError: No matching signature found")
		}
	}
	cmd := exec.Command("node", filepath.Join(packages, "verify.mjs"))
	cmd.Stdin = &input
	out, err := cmd.CombinedOutput()
	if got := string(out); err != nil || got != want.String() || got == "" {
		t.Errorf("%v, and printed\n%s\nwant\n%s", err, got, want.String())
	}
}

// TestUnsigned: without a secret nothing is signed, rather than signed with nothing.
// TestNothingIsSentTwice: a receiver that hangs up on a connection that it has used before is not sent the job again within one
// attempt, whatever its body: net/http would do that for what has an Idempotency-Key.
func TestNothingIsSentTwice(t *testing.T) {
	for name, job := range map[string]*joboncev1.Job{
		"a text": {Body: &joboncev1.Job_Payload{Payload: "x"}}, "an empty text": {Body: &joboncev1.Job_Payload{}},
		"bytes": {Body: &joboncev1.Job_PayloadBytes{PayloadBytes: []byte{0xff}}}, "no body": {},
	} {
		var requests atomic.Int32
		receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) > 1 {
				hangUp(w, r)
			}
		})
		fn := forwardTo(t, ForwardConfig{URL: receiver.URL, Timeout: 10 * time.Second})
		work := func() error { return fn(t.Context(), &client.Work{Job: job, Lease: &joboncev1.Lease{}}) }
		if err := work(); err != nil {
			t.Fatal(err)
		}
		if err := work(); err == nil || requests.Load() != 2 {
			t.Errorf("%s: %v after %d requests, want 2", name, err, requests.Load())
		}
	}
}

func TestUnsigned(t *testing.T) {
	s := startService(t)
	got := make(chan http.Header, 1)
	receiver := receive(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	s.queue(text("j", ""))
	s.work(client.WorkerConfig{}, forwardTo(t, ForwardConfig{URL: receiver.URL}))
	if h := <-got; h.Get("Webhook-Signature") != "" || h.Get("Webhook-Id") == "" || h.Get("Webhook-Timestamp") == "" {
		t.Errorf("got %v", h)
	}
}

func TestMessageID(t *testing.T) {
	job := &joboncev1.Job{JobId: "job_demo", Work: &joboncev1.Work{}}
	// printf job_demo | sha256sum
	const want = "msg_f14ba25803051e01606ce38bb23f19ce"
	if got := messageID(job); got != want {
		t.Errorf("got %s", got)
	}
	job.Work.Requeues = 2
	if got := messageID(job); got != want+"-r2" {
		t.Errorf("got %s", got)
	}
}

// TestRequeuedWorkHasAnotherID: attempts have one id, until an operator queues the job anew; the receiver is not to take that for
// what it has done already.
func TestRequeuedWorkHasAnotherID(t *testing.T) {
	s := startService(t)
	s.queue(text("job_demo", "body"))
	got := make(chan string)
	receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Webhook-Id")
		if r.Header.Get("JobOnce-Attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	fn := forwardTo(t, ForwardConfig{URL: receiver.URL})
	for n, want := range []string{"msg_f14ba25803051e01606ce38bb23f19ce", "msg_f14ba25803051e01606ce38bb23f19ce-r1", "msg_f14ba25803051e01606ce38bb23f19ce-r2"} {
		stop := s.work(client.WorkerConfig{Backoff: func(int) time.Duration { return 0 }}, fn)
		for attempt := range 2 {
			if id := <-got; id != want {
				t.Errorf("after %d requeues, attempt %d: got %s, want %s", n, attempt+1, id, want)
			}
		}
		stop()
		j := s.job("job_demo")
		if j.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED {
			t.Fatalf("after %d requeues: %v", n, j.GetWork())
		}
		_, err := s.RequeueWork(t.Context(), &joboncev1.RequeueWorkRequest{
			JobId: "job_demo", ExpectedGeneration: j.GetWork().GetGeneration(), ExpectedFirstSeenTime: j.GetFirstSeenTime(),
		})
		testenv.Must(t, err)
	}
}

// TestReceiverAway: refused connections to several jobs pause claiming, and no job loses more than an attempt by that.
func TestReceiverAway(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	testenv.Must(t, lis.Close())
	s := startService(t)
	for i := range 20 {
		s.queue(text(fmt.Sprint("job", i), "body"))
	}
	var log testenv.Tail
	away := make(chan struct{})
	fn := forwardTo(t, ForwardConfig{URL: "http://" + lis.Addr().String()})
	stop := s.work(client.WorkerConfig{Concurrency: 4, Logger: newLogger(&log)}, func(ctx context.Context, w *client.Work) error {
		err := fn(ctx, w)
		if strings.Contains(log.String(), "what the work needs is away") {
			select {
			case <-away:
			default:
				close(away)
			}
		}
		return err
	})
	<-away // a probe was refused too
	// It is back.
	lis, err = net.Listen("tcp", lis.Addr().String())
	testenv.Must(t, err)
	var mu sync.Mutex
	left, done := 20, make(chan struct{})
	receiver := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			close(done)
		}
	})}
	go func() { _ = receiver.Serve(lis) }()
	defer receiver.Close()
	<-done
	stop()
	for i := range 20 {
		if w := s.job(fmt.Sprint("job", i)).GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED || w.GetAttempts() > 2 {
			t.Errorf("job%d: %v", i, w)
		}
	}
	if !strings.Contains(log.String(), "connection refused") || !strings.Contains(log.String(), "is back") {
		t.Errorf("logged\n%s", &log)
	}
}

// TestNotConnected: whatever keeps the connection from being made is an outage, since no job was sent.
func TestNotConnected(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // The kernel connects; nobody shakes hands.
	testenv.Must(t, err)
	defer silent.Close()
	plain := receive(t, func(http.ResponseWriter, *http.Request) {})
	stranger := httptest.NewTLSServer(nil)
	defer stranger.Close()
	stranger.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	for name, tc := range map[string]struct {
		url, want string
		timeout   time.Duration
	}{
		"no handshake in time": {"https://" + silent.Addr().String(), "the receiver cannot be reached within 100ms", 100 * time.Millisecond},
		"no TLS":               {"https://" + plain.Listener.Addr().String(), "the receiver cannot be reached: http: server gave HTTP response to HTTPS client", time.Minute},
		"an unknown authority": {stranger.URL, "the receiver cannot be reached: tls: failed to verify certificate", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := startService(t)
			s.queue(text("a", "x"), text("b", "x"), text("c", "x"))
			var log testenv.Tail
			stop := s.work(client.WorkerConfig{Concurrency: 3, Logger: newLogger(&log)}, forwardTo(t, ForwardConfig{URL: tc.url, Timeout: tc.timeout}))
			for !strings.Contains(log.String(), "what the work needs is away") {
				if strings.Contains(log.String(), "attempts=2") {
					t.Fatalf("a job was tried again; logged\n%s", &log)
				}
				time.Sleep(time.Millisecond)
			}
			stop()
			if !strings.Contains(log.String(), tc.want) {
				t.Errorf("logged\n%s\nwant %s", &log, tc.want)
			}
		})
	}
}

// TestForwardLeaseLost: when somebody else may do the work, the request is cut, which the receiver can see.
func TestForwardLeaseLost(t *testing.T) {
	s := startService(t)
	s.queue(text("j", "x"))
	began, cut := make(chan struct{}), make(chan struct{})
	receiver := receive(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(began)
		<-r.Context().Done()
		close(cut)
	})
	fn := forwardTo(t, ForwardConfig{URL: receiver.URL})
	lease, ended := make(chan string, 1), make(chan error, 1)
	s.work(client.WorkerConfig{Lease: time.Second}, func(ctx context.Context, w *client.Work) error {
		lease <- w.Lease.GetToken()
		err := fn(ctx, w)
		ended <- err
		return err
	})
	<-began
	testenv.Must(t, s.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{
		JobId: "j", LeaseToken: <-lease, RetryDelay: durationpb.New(time.Hour),
	}))
	<-cut
	if err := <-ended; !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
}

// TestOmittedBody: a body that was too large to be kept cannot be worked on.
func TestOmittedBody(t *testing.T) {
	s := startService(t)
	s.queue(&joboncev1.RecordDeliveryRequest{JobId: "j", PayloadOmittedBytes: 5 << 20})
	receiver := receive(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	ended := make(chan struct{})
	fn := forwardTo(t, ForwardConfig{URL: receiver.URL})
	stop := s.work(client.WorkerConfig{}, func(ctx context.Context, w *client.Work) error {
		defer close(ended)
		return fn(ctx, w)
	})
	<-ended
	stop()
	w := s.job("j").GetWork()
	if w.GetState() != joboncev1.WorkState_WORK_STATE_DEAD || w.GetLastError() != "the body, of 5242880 bytes, was too large to be kept, so there is nothing to work on" {
		t.Errorf("got %v", w)
	}
}

func TestNewForwardRefuses(t *testing.T) {
	for _, tc := range []struct {
		cfg  ForwardConfig
		want string
	}{
		{ForwardConfig{URL: "ftp://x"}, "URL must begin with http:// or https:// and name a host"},
		{ForwardConfig{URL: "http:///jobs"}, "URL must begin with http:// or https:// and name a host"},
		{ForwardConfig{URL: "http://me:secret@x"}, "URL must not hold a user or a password"},
		{ForwardConfig{URL: "http://x/%zz?secret"}, "URL is malformed"},
		{ForwardConfig{URL: "http://x/#a"}, "URL must not have a fragment"},
		{ForwardConfig{URL: "http://x", Secrets: []string{newSecret, "secret!"}}, "secrets[1] must be base64"},
		{ForwardConfig{URL: "http://x", Secrets: []string{"whsec_c2VjcmV0"}}, "secrets[0] must have 24 to 64 bytes"},
		{ForwardConfig{URL: "http://x", Secrets: []string{""}}, "secrets[0] must have 24 to 64 bytes"},
	} {
		if _, err := NewForward(tc.cfg); err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "secret!") {
			t.Errorf("%+v: got %v", tc.cfg, err)
		}
	}
}
