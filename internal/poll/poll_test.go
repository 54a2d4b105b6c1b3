package poll

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.yaml.in/yaml/v3"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// parse reads hosts as they stand in a configuration file.
func parse(t *testing.T, text string) ([]Host, error) {
	t.Helper()
	var doc yaml.Node
	testenv.Must(t, yaml.Unmarshal([]byte(text), &doc))
	return Parse("f.yaml", doc.Content[0])
}

// asker asks the hosts, whose certificates it believes.
func asker(t *testing.T, text string, servers ...*httptest.Server) *Asker {
	t.Helper()
	hosts, err := parse(t, text)
	testenv.Must(t, err)
	a, err := New(hosts, 8, NewMetrics(prometheus.NewRegistry()))
	testenv.Must(t, err)
	for _, s := range servers {
		for _, trip := range []http.RoundTripper{a.public, a.private} {
			if s.TLS != nil {
				trip.(*http.Transport).TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
			}
			t.Cleanup(trip.(*http.Transport).CloseIdleConnections)
		}
	}
	return a
}

func (a *Asker) about(url string) (*joboncev1.RecordDeliveryRequest, time.Duration, error) {
	p, err := a.Poll(context.Background(), &joboncev1.Expectation{JobId: "j", StatusUrl: url})
	return p.Delivery, p.After, err
}

// provider answers what it is told to, and keeps the requests.
type provider struct {
	mu       sync.Mutex
	requests []*http.Request
	answers  []func(http.ResponseWriter)
}

// will says how requests are answered from now on, the last answer for ever.
func (p *provider) will(answers ...func(http.ResponseWriter)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = answers
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r)
	answer := p.answers[0]
	if len(p.answers) > 1 {
		p.answers = p.answers[1:]
	}
	p.mu.Unlock()
	answer(w)
}

func says(code int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

const over = `over: body.state in ["done", "failed"]
  event: '"job." + body.state'
  status: body.status
  rate: 1000
`

// TestRunningRunningDone is a job's life as its provider tells it.
func TestRunningRunningDone(t *testing.T) {
	done := `{"state":"done","status":"OK","job_id":"the provider's own"}`
	p := &provider{answers: []func(http.ResponseWriter){
		says(200, `{"state":"running"}`), says(429, "", "Retry-After", "7"), says(503, "", "Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),
		says(200, `no JSON`), says(200, done, "Content-Type", "application/json"),
	}}
	s := httptest.NewTLSServer(p)
	defer s.Close()
	token := testenv.WriteFile(t, t.TempDir(), "token", []byte("Bearer swordfish\n"))
	name := strings.TrimPrefix(s.URL, "https://")
	a := asker(t, fmt.Sprintf("- host: %s\n  headers_files: {Authorization: %s}\n  allow_private: true\n  %s", name, token, over), s)
	url := s.URL + "/jobs/1?key=secret"
	for i, want := range []struct {
		after time.Duration
		err   string
	}{{0, ""}, {7 * time.Second, "answers with 429"}, {0, "answers with 503"}, {0, "over of"}} {
		a.now = func() time.Time { return time.Now().Add(time.Duration(i) * time.Minute) } // what it has asked for has passed
		d, after, err := a.about(url)
		if d != nil || after != want.after || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%d: %v, %v, %v; want %+v", i, d, after, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "swordfish")) {
			t.Errorf("the error tells a secret: %v", err)
		}
	}
	d, _, err := a.about(url)
	if err != nil || d.GetEvent() != "job.done" || d.GetStatus() != "OK" || d.GetPayload() != done || d.GetSource() != "poll" || !d.GetOpaquePayload() ||
		d.GetContentType() != "application/json" || d.GetWorkMode() != joboncev1.WorkMode_WORK_MODE_QUEUED {
		t.Errorf("over: %v, %v", d, err)
	}
	for _, r := range p.requests {
		if r.Method != "GET" || r.URL.RequestURI() != "/jobs/1?key=secret" || r.Header.Get("Authorization") != "Bearer swordfish" {
			t.Errorf("asked %s %s with %v", r.Method, r.URL, r.Header)
		}
	}
	for outcome, want := range map[string]float64{outcomeNotOver: 1, outcomeFailed: 3, outcomeOver: 1} {
		if got := testutil.ToFloat64(a.metrics.polls.WithLabelValues(name, outcome)); got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
	// A job counts as recovered when no webhook came before.
	for _, first := range []bool{true, false} {
		a.metrics.Recorded(&joboncev1.Expectation{StatusUrl: url}, &joboncev1.RecordDeliveryResponse{FirstDelivery: first})
	}
	if got := testutil.ToFloat64(a.metrics.recovers.WithLabelValues(name)); got != 1 {
		t.Errorf("%v jobs recovered", got)
	}
}

// TestTooManyRequests: a 429 is said of all that we ask of a host, and of no other host.
func TestTooManyRequests(t *testing.T) {
	busy := &provider{answers: []func(http.ResponseWriter){says(429, "", "Retry-After", "60"), says(429, "", "Retry-After", "99999999999"), says(429, ""), says(200, `{"state":"running"}`)}}
	calm := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}}
	text := ""
	var urls []string
	for _, p := range []*provider{busy, calm} {
		s := httptest.NewServer(p)
		defer s.Close()
		urls = append(urls, s.URL)
		text += fmt.Sprintf("- host: %s\n  allow_private: true\n  %s", strings.TrimPrefix(s.URL, "http://"), over)
	}
	a := asker(t, text)
	now := time.Now()
	a.now = func() time.Time { return now }
	for i, c := range []struct {
		passes time.Duration
		asked  int
		after  time.Duration
	}{
		{0, 1, time.Minute}, {10 * time.Second, 1, 50 * time.Second}, {50 * time.Second, 2, (1<<32 - 1) * time.Second}, {4 * time.Minute, 2, time.Minute},
		{time.Minute, 3, 0}, {0, 4, 0}, // one that asks for no time is left alone for none
	} {
		now = now.Add(c.passes)
		if _, after, _ := a.about(urls[0] + "/jobs/" + fmt.Sprint(i)); len(busy.requests) != c.asked || after.Round(time.Second) != c.after {
			t.Errorf("%d: asked %d times, and again after %v; want %+v", i, len(busy.requests), after, c)
		}
		if _, _, err := a.about(urls[1]); err != nil || len(calm.requests) != i+1 {
			t.Errorf("another host: %v", err)
		}
	}
}

// tripper answers in a provider's place.
type tripper func() *http.Response

func (f tripper) RoundTrip(*http.Request) (*http.Response, error) { return f(), nil }

// TestTooManyRequestsWhileOthersWait: a 429 keeps the polls from being made that wait for the rate of the host by then, and no later
// answer shortens the time that it has asked for.
func TestTooManyRequestsWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := asker(t, "- host: p.example\n  over: 'true'\n  rate: 1\n")
		var asked atomic.Int32
		a.public = tripper(func() *http.Response {
			resp := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}, Body: http.NoBody}
			if asked.Add(1) == 1 {
				resp.Header.Set("Retry-After", "300")
			}
			time.Sleep(2500 * time.Millisecond) // by when two more are asked
			return resp
		})
		var polls sync.WaitGroup
		for range 40 {
			polls.Go(func() {
				if _, _, err := a.about("https://p.example/jobs/1"); err == nil {
					t.Error("a poll went well")
				}
			})
		}
		polls.Wait()
		if n := asked.Load(); n != 3 {
			t.Errorf("asked %d times, want 3: before the first answer", n)
		}
		if _, after, err := a.about("https://p.example/jobs/1"); err == nil || after < 4*time.Minute || asked.Load() != 3 {
			t.Errorf("to be asked again after %v: %v", after, err)
		}
	})
}

// TestSlowHost: one that does not answer has its share of the places, and the others theirs. Jobs that find none come again one after
// the other, at the host's rate.
func TestSlowHost(t *testing.T) {
	began, stalls := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-stalls
		fmt.Fprint(w, `{"state":"running"}`)
	}))
	defer slow.Close()
	calm := httptest.NewServer(&provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}})
	defer calm.Close()
	text := ""
	for _, s := range []*httptest.Server{slow, calm} {
		text += fmt.Sprintf("- host: %s\n  allow_private: true\n  over: body.state == 'done'\n  rate: 0.5\n", strings.TrimPrefix(s.URL, "http://"))
	}
	a := asker(t, text) // of 8 places
	a.hosts[strings.TrimPrefix(slow.URL, "http://")].limit.SetLimit(1000)
	now := time.Now()
	a.now = func() time.Time { return now }
	var polls sync.WaitGroup
	for range 4 {
		polls.Go(func() {
			if _, _, err := a.about(slow.URL); err != nil {
				t.Error(err)
			}
		})
		<-began
	}
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		_, after, err := a.about(slow.URL)
		if !errors.Is(err, client.ErrPutOff) || !strings.Contains(err.Error(), "its share of --concurrency") || after != want {
			t.Errorf("%d: after %v, %v", i, after, err)
		}
	}
	for range 200 {
		if _, after, _ := a.about(slow.URL); after > maxQuiet {
			t.Fatalf("after %v", after)
		}
	}
	if _, _, err := a.about(calm.URL); err != nil {
		t.Errorf("another host: %v", err)
	}
	if got := testutil.ToFloat64(a.metrics.unsent.WithLabelValues(strings.TrimPrefix(slow.URL, "http://"), unsentPutOff)); got != 203 {
		t.Errorf("%v were put off", got)
	}
	close(stalls)
	polls.Wait()
	go func() { <-began }()
	if _, _, err := a.about(slow.URL); err != nil {
		t.Errorf("once it answers: %v", err)
	}
	if got := testutil.ToFloat64(a.metrics.polls.WithLabelValues(strings.TrimPrefix(slow.URL, "http://"), outcomeNotOver)); got != 5 {
		t.Errorf("%v polls, of 5 requests", got)
	}
}

// TestRateTooLow: what would have to wait for longer than there is time for one poll gives its place back, and comes in its turn.
func TestRateTooLow(t *testing.T) {
	s := httptest.NewServer(&provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}})
	defer s.Close()
	a := asker(t, fmt.Sprintf("- host: %s\n  allow_private: true\n  over: body.state == 'done'\n  rate: 0.01\n", strings.TrimPrefix(s.URL, "http://")))
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	for i, late := range []bool{false, true, true} {
		p, err := a.Poll(ctx, &joboncev1.Expectation{StatusUrl: s.URL})
		if errors.Is(err, client.ErrPutOff) != late || late && (p.After < time.Second || p.After > maxQuiet) {
			t.Errorf("%d: %+v, %v", i, p, err)
		}
	}
}

// TestOddAnswers: what an answer may be is bounded, nothing of it is in an error, and what is odd about it keeps no job from being recorded.
func TestOddAnswers(t *testing.T) {
	large := `{"state":"done","status":"` + strings.Repeat("x", maxAnswer) + `"}`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(large))
	testenv.Must(t, err)
	testenv.Must(t, z.Close())
	raw := func(answer string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			conn, _, err := w.(http.Hijacker).Hijack()
			testenv.OK(t, err)
			_, _ = conn.Write([]byte(answer))
			conn.Close()
		}
	}
	p := &provider{}
	s := httptest.NewServer(p)
	defer s.Close()
	stalls := make(chan struct{})
	defer close(stalls)
	a := asker(t, fmt.Sprintf("- host: %s\n  allow_private: true\n  rate: 1000\n  over: body.state == 'done'\n  status: string(body.n)\n", strings.TrimPrefix(s.URL, "http://")))
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"too large":           {says(200, large), "is over 1048576 bytes"},
		"too large, inflated": {says(200, zipped.String(), "Content-Encoding", "gzip"), "is over 1048576 bytes"},
		"no HTTP":             {raw("swordfish swordfish\r\n\r\n"), "without an answer in HTTP"},
		"a bad header":        {raw("HTTP/1.1 200 OK\r\nsword\x00fish: x\r\n\r\n"), "without an answer in HTTP"},
		"long headers":        {raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("swordfish", 10_000) + "\r\n\r\n"), "without an answer in HTTP"},
		"nothing":             {raw(""), "without an answer in HTTP"},
		"half of it":          {raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"swordfish\":"), "broke off"},
		"never":               {func(http.ResponseWriter) { <-stalls }, "no answer in time"},
		"half of it, slowly": {func(w http.ResponseWriter) {
			fmt.Fprint(w, "{")
			w.(http.Flusher).Flush()
			<-stalls
		}, "broke off"},
	} {
		t.Run(name, func(t *testing.T) {
			p.will(c.answer)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := a.Poll(ctx, &joboncev1.Expectation{StatusUrl: s.URL})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "swordfish") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for contentType, want := range map[string]string{"text/plain": "text/plain", "text/plain;\tcharset=utf-8": "", "text/pl\x85in": "", strings.Repeat("x", 129): ""} {
		p.will(says(200, `{"state":"done","n":12345678901234567}`, "Content-Type", contentType))
		d, _, err := a.about(s.URL)
		if err != nil || d.GetContentType() != want || d.GetStatus() != "12345678901234567" { // as jobonce webhook reads it
			t.Errorf("%q: got %v, %v", contentType, d, err)
		}
	}
}

// TestNoProxy: a proxy would dial in our place, so none is used, whatever the environment says.
func TestNoProxy(t *testing.T) {
	for _, private := range []bool{false, true} {
		if transport(private).(*http.Transport).Proxy != nil {
			t.Error("a proxy may be used")
		}
	}
}

// TestCredentials go to their host alone, over https alone, and not where it sends us.
func TestCredentials(t *testing.T) {
	elsewhere := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"done","status":""}`)}}
	other := httptest.NewTLSServer(elsewhere)
	defer other.Close()
	redirecting := &provider{answers: []func(http.ResponseWriter){says(302, "", "Location", other.URL)}}
	s := httptest.NewTLSServer(redirecting)
	defer s.Close()
	open := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}}
	plain := httptest.NewServer(open)
	defer plain.Close()
	token := testenv.WriteFile(t, t.TempDir(), "token", []byte("swordfish"))
	text := ""
	for _, url := range []string{s.URL, plain.URL} {
		_, name, _ := strings.Cut(url, "://")
		text += fmt.Sprintf("- host: %s\n  headers_files: {X-Key: %s}\n  allow_private: true\n  %s", name, token, over)
	}
	_, name, _ := strings.Cut(other.URL, "://")
	text += fmt.Sprintf("- host: %s\n  allow_private: true\n  %s", name, over)
	a := asker(t, text, s, other)
	if _, _, err := a.about(s.URL); err == nil || !strings.Contains(err.Error(), "redirect (302), which is not followed") {
		t.Errorf("a redirect: %v", err)
	}
	if len(elsewhere.requests) > 0 || redirecting.requests[0].Header.Get("X-Key") != "swordfish" {
		t.Errorf("followed: %v", elsewhere.requests)
	}
	if _, _, err := a.about(plain.URL); err != nil || open.requests[0].Header.Get("X-Key") != "" {
		t.Errorf("in plaintext: %v, %v", err, open.requests[0].Header)
	}
	if d, _, err := a.about(other.URL); err != nil || d == nil || elsewhere.requests[0].Header.Get("X-Key") != "" {
		t.Errorf("another host: %v, %v", err, elsewhere.requests[0].Header)
	}
}

// TestRefusedHosts: what is not listed is not asked, however it is written.
func TestRefusedHosts(t *testing.T) {
	a := asker(t, "- host: provider.example\n  "+over)
	for _, url := range []string{
		"https://other.example/", "https://provider.example.evil.example/", "https://provider.example:8443/", "https://provider.example@evil.example/",
		"https://evil.example/provider.example", "https://evil.example#provider.example", "ftp://provider.example/", "https://sub.provider.example/", "://", "",
		"https://user:swordfish@provider.example/", "https://provider.example./", "https://provider.example:0443/", "https://provider.example:80/",
		"https://provider%2eexample/", "https://[::ffff:7f00:1]/", "https:provider.example", "//provider.example/", "https://provider.example\\@evil.example/",
	} {
		if _, _, err := a.about(url); err == nil || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if got := testutil.ToFloat64(a.metrics.unsent.WithLabelValues(otherHosts, unsentRefused)); got != 19 {
		t.Errorf("%v counted as refused", got)
	}
}

// TestPaths: of a host that is listed with paths, nothing else is asked, however a URL is written, and all of these are.
func TestPaths(t *testing.T) {
	p := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}}
	s := httptest.NewServer(p)
	defer s.Close()
	for paths, asked := range map[string]map[string]bool{
		"[/v1/jobs/, /status]": {
			"/v1/jobs/1": true, "/v1/jobs/": true, "/status": true, "/status?job=1": true, "/v1/jobs/a%20b": true, "/v1/jobs/a/": true,
			"/v1/jobs/cust%3A1": true, "/v1/jobs/a%40b.example": true, "/v1/jobs/Jobs(1)": true, "/v1/jobs/%c3%a9": true, "/v1/jobs/%C3%A9": true, "/v1/jobs/a..b": true,
			"": false, "/": false, "/v1/jobs": false, "/v1/invoices/1": false, "/V1/jobs/1": false, "/statuses": false, "/status/1": false, "//v1/jobs/1": false,
			"/v1/jobs/../invoices/1": false, "/v1/jobs/%2e%2e/invoices/1": false, "/v1/jobs/%2E./invoices/1": false, "/v1/jobs/..%2finvoices": false,
			"/v1/jobs/..%2Finvoices": false, "/v1/jobs/a%2f..": false, "/v1/jobs/a%5cb": false, "/v1/jobs/a%5Cb": false, `/v1/jobs/..\invoices`: false,
			"/v1/jobs/..%252finvoices": false, "/v1/jobs/%252e%252e/invoices": false, "/v1/jobs/..;/invoices": false, "/v1/jobs/..%3b/invoices": false,
			"/v1/jobs//../x": false, "/v1/jobs/.": false, "/v1/jobs/..": false, "/v1/jobs/1;x=/../../": false, "?/v1/jobs/1": false,
		},
		"[/]": {"": true, "?x": true, "/": true, "/a": true, "/..": false},
	} {
		a := asker(t, fmt.Sprintf("- host: %s\n  allow_private: true\n  paths: %s\n  %s", strings.TrimPrefix(s.URL, "http://"), paths, over))
		for path, may := range asked {
			before := len(p.requests)
			_, _, err := a.about(s.URL + path)
			if (err == nil) != may || (len(p.requests) > before) != may {
				t.Errorf("%s, %s: asked %t, %v; may be asked: %t", paths, path, len(p.requests) > before, err, may)
			}
		}
	}
}

func TestPublic(t *testing.T) {
	for _, a := range []string{"8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "172.32.0.1", "100.128.0.1"} {
		if !public(netip.MustParseAddr(a)) {
			t.Errorf("%s is public", a)
		}
	}
	for _, a := range []string{
		"127.0.0.1", "127.255.0.3", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.1",
		"198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "fec0::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1",
		"2002:7f00:1::", "2002:a00:1::1", "2001::1", "2001:db8::1", "100::1", "5f00::1", "4000::1",
		// The private address may stand elsewhere in a translation than the public one.
		"64:ff9b:1:7f00:0:100:808:808", "64:ff9b:1::808:808", "::ffff:0:7f00:1", "::ffff:0:808:808", "::808:808",
	} {
		if public(netip.MustParseAddr(a)) {
			t.Errorf("%s is not public", a)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// TestInnerAddresses: a listed host whose name stands for an inner address is refused when it is dialled, also when it stood for a
// public one a moment before, and nothing is sent to it.
func TestInnerAddresses(t *testing.T) {
	p := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"done","status":""}`)}}
	s := httptest.NewServer(p)
	defer s.Close()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.URL, "http://"))
	testenv.Must(t, err)
	var text strings.Builder
	names := []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"}
	for _, name := range names {
		fmt.Fprintf(&text, "- host: '%s:%s'\n  %s", strings.Replace(name, "[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]", 1), port, over)
	}
	a := asker(t, text.String())
	for _, name := range names {
		if _, _, err := a.about("http://" + name + ":" + port + "/?key=secret"); !errors.Is(err, errInner) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(p.requests) > 0 {
		t.Errorf("asked %d times", len(p.requests))
	}

	// A name server that gives a public address first, and an inner one from then on.
	var asked atomic.Int32
	d := dialer(false)
	control := d.Control
	var dialled []string
	d.Control = nil
	resolve := func() string {
		if asked.Add(1) == 1 {
			return "192.0.9.1:" + port
		}
		return "127.0.0.1:" + port
	}
	if first := resolve(); control("tcp4", first, nil) != nil {
		t.Errorf("%s is refused", first)
	}
	d.Control = control
	a.public.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		dialled = append(dialled, resolve())
		return d.DialContext(ctx, network, dialled[len(dialled)-1])
	}
	if _, _, err := a.about("http://localhost:" + port); !errors.Is(err, errInner) || len(dialled) != 1 || len(p.requests) > 0 {
		t.Errorf("rebound to %v: %v, %d requests", dialled, err, len(p.requests))
	}
}

// TestHostHeader: however the status URL writes its host, the provider is asked for the name that is configured.
func TestHostHeader(t *testing.T) {
	p := &provider{answers: []func(http.ResponseWriter){says(200, `{"state":"running"}`)}}
	s := httptest.NewServer(p)
	defer s.Close()
	a := asker(t, "- host: p.example\n  "+over+"- host: p.example:8080\n  "+over, s)
	a.public.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	for _, c := range [][2]string{
		{"http://p.example/1", "p.example"}, {"http://p.example:/1", "p.example"}, {"http://p.example:80/1", "p.example"},
		{"HTTP://P.Example/1", "p.example"}, {"http://P.example:8080/1", "p.example:8080"},
	} {
		_, _, err := a.about(c[0])
		testenv.Must(t, err)
		if got := p.requests[len(p.requests)-1].Host; got != c[1] {
			t.Errorf("%s: asked for %q, want %q", c[0], got, c[1])
		}
	}
}

func TestBadHosts(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no list":      {"host: x", "must be a list"},
		"no name":      {"- over: 'true'", "host of a host"},
		"URL":          {"- {host: 'https://p.example', over: 'true'}", "must be a name"},
		"path":         {"- {host: p.example/x, over: 'true'}", "must be a name"},
		"twice":        {"- {host: p.example, over: 'true'}\n- {host: P.example, over: 'true'}", "stands twice"},
		"own port":     {"- {host: 'p.example:443', over: 'true'}", "without the port"},
		"empty port":   {"- {host: 'p.example:', over: 'true'}", "without the port"},
		"unknown key":  {"- {host: p.example, over: 'true', token: x}", "unknown key token"},
		"no over":      {"- {host: p.example}", "over of p.example: is empty"},
		"bad over":     {"- {host: p.example, over: 'body.state =='}", "over of p.example"},
		"not a truth":  {"- {host: p.example, over: '\"x\"'}", "over of p.example"},
		"bad path":     {"- {host: p.example, over: 'true', paths: [v1/jobs]}", "paths of p.example: \"v1/jobs\""},
		"no paths":     {"- {host: p.example, over: 'true', paths: []}", "paths of p.example"},
		"rate":         {"- {host: p.example, over: 'true', rate: -1}", "rate of p.example"},
		"no rate":      {"- {host: p.example, over: 'true', rate: .nan}", "rate of p.example"},
		"any rate":     {"- {host: p.example, over: 'true', rate: .inf}", "rate of p.example"},
		"no file":      {"- {host: p.example, over: 'true', headers_files: {A: /no/such/file}}", "headers_files of p.example"},
		"bad header":   {"- {host: p.example, over: 'true', headers_files: {'A B': /dev/null}}", "is no header"},
		"empty header": {"- {host: p.example, over: 'true', headers_files: {A: /dev/null}}", "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			hosts, err := parse(t, c.text)
			if err == nil {
				_, err = New(hosts, 8, NewMetrics(prometheus.NewRegistry()))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, "-1": 0, "soon": 0, "99999999999": (1<<32 - 1) * time.Second, now.Add(time.Hour).Format(http.TimeFormat): time.Hour, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
