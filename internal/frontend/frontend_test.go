package frontend_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/testenv"
)

// serve serves until the test ends, or stop is called, which gives what Run returned.
func serve(t *testing.T, f *frontend.Frontend) (addr string, stop func() error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, lis) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-ended
	}
	t.Cleanup(func() { testenv.OK(t, stop()) })
	return lis.Addr().String(), stop
}

// send sends text as it is, and returns the answer; nil when the connection is closed without one.
func send(t *testing.T, addr, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	testenv.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	testenv.Must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestLimits: what is too large, too slow or not a webhook has an answer, and nothing of it is recorded.
func TestLimits(t *testing.T) {
	j := &jobs{}
	opened, err := open(t, j, shop("job_id: item.id"), func(c *frontend.Config) {
		c.MaxBody, c.MaxHeader, c.ReadTimeout = 1000, 4096, 200*time.Millisecond
	})
	addr, _ := serve(t, must(t, opened, err))
	const head = "POST /shop HTTP/1.1\r\nHost: x\r\nX-Token: secret\r\n"
	for name, c := range map[string]struct {
		request string
		status  int
		body    string
	}{
		"wrong path":        {"POST /shop/ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 404, "no source has this path"},
		"no path of ours":   {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404, "no source has this path"},
		"wrong method":      {"PUT /shop HTTP/1.1\r\nHost: x\r\nX-Token: secret\r\nContent-Length: 2\r\n\r\n{}", 405, "method"},
		"large":             {head + "Content-Length: 1001\r\n\r\n", 413, "too_large"},
		"large and chunked": {head + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + strings.Repeat("x", 1001) + "\r\n0\r\n\r\n", 413, "too_large"},
		"large headers":     {head + "X-Long: " + strings.Repeat("x", 10_000) + "\r\n\r\n", 431, ""},
		"slow body":         {head + "Content-Length: 100\r\n\r\n{", 503, "slow_body"},
		"slow headers":      {head, 0, ""},
		"gzip":              {head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400, "encoded_body"},
		"no body":           {head + "Content-Length: 0\r\n\r\n", 400, "empty_body"},
		"no signature":      {"POST /shop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 401, "signature_missing"},
		"two signatures":    {head + "X-Token: secret\r\nContent-Length: 2\r\n\r\n{}", 401, "signature_repeated"},
		"wrong signature":   {"POST /shop HTTP/1.1\r\nHost: x\r\nX-Token: x\r\nContent-Length: 2\r\n\r\n{}", 401, "signature_wrong"},
		"no HTTP":           {"hello\r\n\r\n", 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp := send(t, addr, c.request)
			if c.status == 0 {
				if resp != nil {
					t.Errorf("answered %d", resp.StatusCode)
				}
				return
			}
			if resp == nil {
				t.Fatal("no answer")
			}
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || c.body != "" && strings.TrimSpace(string(body)) != c.body {
				t.Errorf("answered %d %q, want %d %q", resp.StatusCode, body, c.status, c.body)
			}
		})
	}
	if len(j.all) > 0 {
		t.Errorf("recorded %v", j.all)
	}
	if resp := send(t, addr, head+"Transfer-Encoding: chunked\r\n\r\na\r\n{\"id\":\"1\"}\r\n0\r\n\r\n"); resp == nil || resp.StatusCode != 200 {
		t.Errorf("chunked: %v", resp)
	}
}

// TestBusy: more requests than are let in are asked to come again.
func TestBusy(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	j := &jobs{before: func(context.Context) error {
		entered <- struct{}{}
		<-leave
		return nil
	}}
	m := frontend.NewMetrics(prometheus.NewRegistry())
	opened, err := open(t, j, shop("job_id: item.id"), func(c *frontend.Config) { c.MaxRequests, c.Metrics = 2, m })
	f := must(t, opened, err)
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			status, _ := answer(f, post(`{"id":"1"}`))
			answers <- status
		}()
		<-entered
	}
	w := httptest.NewRecorder()
	if f.ServeHTTP(w, post(`{"id":"2"}`)); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("answered %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	wantMetrics(t, m, `jobonce_webhook_requests_under_way 2`, `jobonce_webhook_refused_requests_total{reason="busy"} 1`)
	close(leave)
	for range 2 {
		if status := <-answers; status != 200 {
			t.Errorf("answered %d", status)
		}
	}
	go func() { <-entered }()
	if status, _ := answer(f, post(`{"id":"3"}`)); status != 200 {
		t.Errorf("afterwards: answered %d", status)
	}
}

// TestConnectionsAreBounded: a connection more than are let in is closed at once, and one that ends makes room.
func TestConnectionsAreBounded(t *testing.T) {
	var log testenv.Tail
	m := frontend.NewMetrics(prometheus.NewRegistry())
	opened, err := open(t, &jobs{}, shop("job_id: item.id"), logTo(&log), func(c *frontend.Config) { c.MaxConnections, c.Metrics = 2, m })
	addr, _ := serve(t, must(t, opened, err))
	// served tells whether a new connection gets an answer, and leaves it open.
	served := func() (net.Conn, bool) {
		conn, err := net.Dial("tcp", addr)
		testenv.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, "GET /shop HTTP/1.1\r\nHost: shop\r\n\r\n") // Who was hung up on hears of it below.
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return conn, err == nil && resp.StatusCode == http.StatusMethodNotAllowed
	}
	first, ok := served()
	if _, also := served(); !ok || !also {
		t.Fatal("two connections are not served")
	}
	if _, ok := served(); ok {
		t.Error("a third connection is served")
	}
	wantMetrics(t, m, `jobonce_webhook_refused_requests_total{reason="connections"} 1`)
	if !strings.Contains(log.String(), "max-connections") {
		t.Errorf("logged %s", &log)
	}
	testenv.Must(t, first.Close())
	for ok := false; !ok; _, ok = served() { // once the server has seen it
		runtime.Gosched()
	}
}

// TestLargeBodiesTogether: so is a body for which there is no room beside the others, also where it does not say its size.
func TestLargeBodiesTogether(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	j := &jobs{before: func(context.Context) error {
		entered <- struct{}{}
		<-leave
		return nil
	}}
	opened, err := open(t, j, shop("job_id: item.id"), func(c *frontend.Config) { c.MaxBody = 60 << 20 })
	f := must(t, opened, err)
	large := func() *http.Request {
		r := post(`{"id":"1"}`)
		r.ContentLength = -1
		return r
	}
	answers := make(chan int, 3)
	for _, r := range []*http.Request{large(), large(), post(`{"id":"2"}`)} {
		go func() {
			status, _ := answer(f, r)
			answers <- status
		}()
		<-entered
	}
	if status, text := answer(f, large()); status != 503 || !strings.Contains(text, "too large bodies") {
		t.Errorf("answered %d %s", status, text)
	}
	close(leave)
	for range 3 {
		if status := <-answers; status != 200 {
			t.Errorf("answered %d", status)
		}
	}
	go func() { <-entered }()
	if status, _ := answer(f, large()); status != 200 {
		t.Errorf("afterwards: answered %d", status)
	}
}

// TestShutdown: what is under way is answered, as long as the time allows.
func TestShutdown(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"in time": time.Minute, "too late": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			entered, leave := make(chan struct{}), make(chan struct{})
			j := &jobs{before: func(context.Context) error {
				close(entered)
				<-leave
				return nil
			}}
			opened, err := open(t, j, shop("job_id: item.id"), func(c *frontend.Config) { c.ShutdownTimeout = timeout })
			addr, stop := serve(t, must(t, opened, err))
			conn, err := net.Dial("tcp", addr)
			testenv.Must(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "POST /shop HTTP/1.1\r\nHost: x\r\nX-Token: secret\r\nContent-Length: 10\r\n\r\n{\"id\":\"1\"}")
			testenv.Must(t, err)
			<-entered
			ended := make(chan error, 1)
			go func() { ended <- stop() }()
			if timeout < time.Second {
				if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
					t.Error("answered")
				}
				close(leave)
				testenv.OK(t, <-ended)
				return
			}
			for { // It takes no new connections any more.
				c, err := net.Dial("tcp", addr)
				if err != nil {
					break
				}
				_ = c.Close()
			}
			close(leave)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			testenv.Must(t, err)
			if _ = resp.Body.Close(); resp.StatusCode != 200 {
				t.Errorf("answered %d", resp.StatusCode)
			}
			testenv.OK(t, <-ended)
		})
	}
}

// TestServiceAway: what is not recorded is to be delivered again, and stands in the log whatever strangers send.
func TestServiceAway(t *testing.T) {
	var log testenv.Tail
	away := true
	j := &jobs{before: func(context.Context) error {
		if away {
			return errAway
		}
		return nil
	}}
	m := frontend.NewMetrics(prometheus.NewRegistry())
	opened, err := open(t, j, shop("job_id: item.id"), logTo(&log), func(c *frontend.Config) { c.Metrics = m })
	f := must(t, opened, err)
	for range 50 {
		forged, lost := post(`{"id":"1"}`), post(`{"id":"1"}`)
		forged.Header.Set("X-Token", "guessed")
		lost.URL.Path = "/nowhere"
		answer(f, forged)
		answer(f, lost)
	}
	if status, _ := answer(f, post(`{"id":"1"}`)); status != 503 || !strings.Contains(log.String(), "reason=not_recorded") {
		t.Errorf("answered %d; logged %s", status, &log)
	}
	away = false
	if status, _ := answer(f, post(`{"id":"1"}`)); status != 200 {
		t.Errorf("answered %d", status)
	}
	wantMetrics(t, m, `jobonce_webhook_events_total{outcome="failed",source="shop"} 1`, `jobonce_webhook_events_total{outcome="new",source="shop"} 1`,
		`jobonce_webhook_requests_total{reason="not_recorded",source="shop"} 1`)
}

// twilio is a delivery of a sender that signs the URL.
func twilio(signedURL string) *http.Request {
	mac := hmac.New(sha1.New, []byte("secret"))
	_, _ = io.WriteString(mac, signedURL+"MessageSidSM1MessageStatusdelivered")
	r := httptest.NewRequest(http.MethodPost, "/sms", strings.NewReader("MessageSid=SM1&MessageStatus=delivered"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	r.Host, r.RemoteAddr = "10.0.0.7:8080", "10.1.2.3:4000"
	return r
}

// TestTrustedProxies: the URL that was signed is the one of the proxy that is trusted, and of no other.
func TestTrustedProxies(t *testing.T) {
	const sms = "- {name: sms, provider: twilio, secrets_env: [SHOP_SECRET], job_id: form.MessageSid%s}"
	trust := func(c *frontend.Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")} }
	for name, c := range map[string]struct {
		url, more, host, proto, remote string
		want                           int
	}{
		"as it came":               {url: "http://10.0.0.7:8080/sms", want: 200},
		"by a trusted proxy":       {url: "https://hooks.example.com/sms", host: "hooks.example.com", proto: "https", want: 200},
		"by two, the first counts": {url: "https://a.example.com/sms", host: "a.example.com, b", proto: "https, http", want: 200},
		"the scheme alone":         {url: "https://10.0.0.7:8080/sms", proto: "https", want: 200},
		"by another":               {url: "https://hooks.example.com/sms", host: "hooks.example.com", proto: "https", remote: "10.2.0.1:1", want: 401},
		"by another, as it came":   {url: "http://10.0.0.7:8080/sms", host: "hooks.example.com", proto: "https", remote: "10.2.0.1:1", want: 200},
		"over IPv6":                {url: "https://h.example.com/sms", host: "h.example.com", proto: "https", remote: "[::ffff:10.1.2.3]:1", want: 200},
		"the public URL":           {url: "https://p.example.com/sms", more: ", public_url: 'https://p.example.com'", remote: "10.2.0.1:1", want: 200},
	} {
		t.Run(name, func(t *testing.T) {
			opened, err := open(t, &jobs{}, fmt.Sprintf(sms, c.more), trust)
			f := must(t, opened, err)
			r := twilio(c.url)
			for header, value := range map[string]string{"X-Forwarded-Host": c.host, "X-Forwarded-Proto": c.proto} {
				if value != "" {
					r.Header.Set(header, value)
				}
			}
			if c.remote != "" {
				r.RemoteAddr = c.remote
			}
			if status, body := answer(f, r); status != c.want {
				t.Errorf("answered %d %s, want %d", status, body, c.want)
			}
		})
	}
}

// TestSecretsAreReadAgain: a new secret is taken without a restart; one that cannot be used leaves the old one.
func TestSecretsAreReadAgain(t *testing.T) {
	path := file(t, "secret", "old secret\n")
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Tail
		opened, err := open(t, &jobs{}, "- {name: shop, signature: {kind: token, header: X-Token}, secrets_files: ["+path+"], job_id: item.id}", logTo(&log))
		f := must(t, opened, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		lis := &noListener{closed: make(chan struct{})}
		go func() { ended <- f.Run(ctx, lis) }()
		status := func(token string) int {
			r := post(`{"id":"1"}`)
			r.Header.Set("X-Token", token)
			status, _ := answer(f, r)
			return status
		}
		write := func(content string) {
			testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
			time.Sleep(3 * time.Second) // of the bubble's
		}
		if status("old secret") != 200 || status("new secret") != 401 {
			t.Error("at first")
		}
		if write("new secret\n"); status("old secret") != 401 || status("new secret") != 200 || !strings.Contains(log.Take(), "is in force") {
			t.Error("after the change")
		}
		if write("\n"); status("new secret") != 200 || !strings.Contains(log.Take(), "what was read before stays in force") {
			t.Error("after a file that cannot be used")
		}
		if write("newer"); status("newer") != 200 || strings.Contains(log.String(), "newer") {
			t.Errorf("after another change; logged %s", &log)
		}
		cancel()
		testenv.OK(t, <-ended)
	})
}

// TestVerifyTokenIsReadAgain: so is what a handshake has to bring along.
func TestVerifyTokenIsReadAgain(t *testing.T) {
	path := file(t, "token", "old\n")
	synctest.Test(t, func(t *testing.T) {
		opened, err := open(t, &jobs{}, "- {name: meta, provider: meta, secrets_env: [SHOP_SECRET], verify_token_file: "+path+", job_id: item.id}")
		f := must(t, opened, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx, &noListener{closed: make(chan struct{})}) }()
		status := func(token string) int {
			status, _ := answer(f, httptest.NewRequest(http.MethodGet, "/meta?hub.mode=subscribe&hub.challenge=42&hub.verify_token="+token, nil))
			return status
		}
		for _, step := range []struct{ content, good, bad string }{{"old", "old", "new"}, {"new\n", "new", "old"}, {" \n", "new", ""}} {
			testenv.Must(t, os.WriteFile(path, []byte(step.content), 0o600))
			time.Sleep(3 * time.Second) // of the bubble's
			if status(step.good) != 200 || status(step.bad) != 403 {
				t.Errorf("after %q: %d and %d", step.content, status(step.good), status(step.bad))
			}
		}
		cancel()
		testenv.OK(t, <-ended)
	})
}

// noListener is one that nobody connects to.
type noListener struct{ closed chan struct{} }

func (l *noListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *noListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *noListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestTLS: senders speak either version of HTTP over it.
func TestTLS(t *testing.T) {
	ca := testenv.NewCA(t, "ca")
	pair, dir := ca.Issue("localhost"), t.TempDir()
	files := auth.CertificateFiles{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"), MinVersion: tls.VersionTLS12}
	testenv.Must(t, errors.Join(os.WriteFile(files.Cert, pair.Cert, 0o600), os.WriteFile(files.Key, pair.Key, 0o600)))
	certificates, err := auth.LoadCertificates(files, testenv.Logger(t))
	testenv.Must(t, err)
	opened, err := open(t, &jobs{}, shop("job_id: item.id"), func(c *frontend.Config) { c.TLS = certificates.HTTP() })
	addr, _ := serve(t, must(t, opened, err))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for _, version := range []int{1, 2} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: version == 2}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+addr+"/shop", strings.NewReader(`{"id":"1"}`))
		testenv.Must(t, err)
		req.Header.Set("X-Token", "secret")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		testenv.Must(t, err)
		_ = resp.Body.Close()
		if transport.CloseIdleConnections(); resp.StatusCode != 200 || resp.ProtoMajor != version {
			t.Errorf("answered %d over HTTP/%d", resp.StatusCode, resp.ProtoMajor)
		}
	}
}

// wantMetrics wants lines of what is gathered.
func wantMetrics(t *testing.T, m *frontend.Metrics, lines ...string) {
	t.Helper()
	text := gathered(t, m)
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// TestMetrics: each is there from the start, and counts.
func TestMetrics(t *testing.T) {
	m := frontend.NewMetrics(prometheus.NewRegistry())
	m.WatchCertificate(func() time.Time { return time.Unix(7, 0) })
	opened, err := open(t, &jobs{}, shop("job_id: item.id\nitems: body.events\nwhen: item.?on.orValue(true)"), func(c *frontend.Config) { c.Metrics = m })
	f := must(t, opened, err)
	for _, reason := range webhook.Reasons() {
		wantMetrics(t, m, fmt.Sprintf(`jobonce_webhook_requests_total{reason="%s",source="shop"} 0`, reason))
	}
	answer(f, post(`{"events":[{"id":"1"},{"id":"2"},{"id":"1"},{"on":false},{"x":1}]}`))
	answer(f, httptest.NewRequest(http.MethodPost, "/shop", strings.NewReader("{}")))
	answer(f, httptest.NewRequest(http.MethodPost, "/nowhere", strings.NewReader("{}")))
	wantMetrics(t, m,
		`jobonce_webhook_requests_total{reason="unreadable",source="shop"} 1`,
		`jobonce_webhook_requests_total{reason="signature_missing",source="shop"} 1`,
		`jobonce_webhook_verified_requests_total{source="shop"} 1`,
		`jobonce_webhook_events_total{outcome="new",source="shop"} 2`,
		`jobonce_webhook_events_total{outcome="known",source="shop"} 1`,
		`jobonce_webhook_events_total{outcome="filtered",source="shop"} 1`,
		`jobonce_webhook_events_total{outcome="unreadable",source="shop"} 1`,
		`jobonce_webhook_events_total{outcome="failed",source="shop"} 0`,
		`jobonce_webhook_answers_total{source="shop",status="401"} 1`,
		`jobonce_webhook_answers_total{source="shop",status="503"} 1`,
		`jobonce_webhook_refused_requests_total{reason="path"} 1`,
		`jobonce_webhook_answer_seconds_count{source="shop"} 2`,
		`jobonce_tls_certificate_expiry_timestamp_seconds 7`)
}
