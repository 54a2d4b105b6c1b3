package httpdoor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

// raw sends the head of a request, and what there is of its body, and returns all that comes back until the connection ends.
func (w *web) raw(text string) string {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address)
	testenv.Must(w.t, err)
	defer conn.Close()
	testenv.Must(w.t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, text)
	testenv.Must(w.t, err)
	answer, err := io.ReadAll(conn)
	if err != nil {
		w.t.Errorf("%.60q: %v after %q", text, err, answer)
	}
	return string(answer)
}

// TestRefusedBody: who is refused has no longer than others to send the rest of its body, which net/http reads before it answers.
func TestRefusedBody(t *testing.T) {
	_, callers := callers(t, "allow: [record]")
	w := start(t, Config{Callers: callers}, func(d *Door) { d.bodyTime = 20 * time.Millisecond })
	for status, head := range map[string]string{
		"400": "GET /v1/jobs?job_id=j HTTP/1.1\r\nHost: localhost",
		"401": "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json",
		"403": "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example",
		"404": "POST /v1/nothing HTTP/1.1\r\nHost: localhost",
		"405": "PUT /v1/jobs:record HTTP/1.1\r\nHost: localhost",
		"415": "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost",
		"421": "POST /v1/jobs:record HTTP/1.1\r\nHost: evil.example",
	} {
		for _, length := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			if answer := w.raw(head + "\r\n" + length + "\r\n\r\n5\r\n"); !strings.HasPrefix(answer, "HTTP/1.1 "+status+" ") || !strings.Contains(answer, "ErrorInfo") {
				t.Errorf("%s, %s: %q", status, length, answer)
			}
		}
	}
}

// TestOddRequests: what no client sends is answered like everything else, and what is behind it in the stream is not run.
func TestOddRequests(t *testing.T) {
	w := start(t, Config{})
	const one = "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 19\r\n\r\n{\"job_id\":\"hidden\"}"
	for name, c := range map[string]struct{ text, status string }{
		"options of the server":    {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "404"},
		"HTTP/1.0 without a host":  {"GET /v1/jobs?job_id=j HTTP/1.0\r\n\r\n", "421"},
		"another server's address": {"GET http://evil.example/v1/jobs?job_id=j HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "421"},
		"HTTP/2 in plaintext":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "421"},
		"two lengths":              {"POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n" + one, "400"},
		"an unknown length":        {"POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n" + one, "501"},
		"a cut chunk":              {"POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + one, "400"},
		"a name with a space":      {"POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Length : 3\r\n\r\n" + one, "400"},
	} {
		if answer := w.raw(c.text); !strings.HasPrefix(answer, "HTTP/1.") || !strings.HasPrefix(answer[len("HTTP/1.1 "):], c.status) {
			t.Errorf("%s: %q", name, answer)
		}
	}
	if r := w.does(http.MethodGet, "/v1/jobs?job_id=hidden", nil); r.StatusCode != http.StatusNotFound {
		t.Errorf("what was hidden was done: %s", r.text)
	}
}

// TestNothingSentIsLogged: what is wrong with a request is told to who sent it, and what was sent to nobody else.
func TestNothingSentIsLogged(t *testing.T) {
	log := new(testenv.Tail)
	w := start(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	const secret = "4111111111111111x"
	for name, c := range map[string]struct{ method, path, body, header string }{
		"base64":          {http.MethodPost, "/v1/jobs:record", `{"payload_bytes":"!` + secret + `"}`, ""},
		"no quotes":       {http.MethodPost, "/v1/jobs:record", `{"payload":` + secret + `}`, ""},
		"another type":    {http.MethodPost, "/v1/work:claim", `{"max_jobs":"` + secret + `"}`, ""},
		"unknown field":   {http.MethodPost, "/v1/jobs:record", `{"` + secret + `":1}`, ""},
		"unknown value":   {http.MethodPost, "/v1/jobs:record", `{"work_mode":"` + secret + `"}`, ""},
		"wrong parameter": {http.MethodGet, "/v1/jobs?view=" + secret, "", ""},
		"wrong deadline":  {http.MethodPost, "/v1/jobs:record", `{}`, secret},
	} {
		r := w.does(c.method, c.path, []byte(c.body), "Grpc-Timeout", c.header)
		if r.StatusCode != http.StatusBadRequest || !strings.Contains(r.Message, secret[:16]) && !strings.Contains(r.Message, " must be ") {
			t.Errorf("%s: %s: %s", name, r.Status, r.text)
		}
	}
	long := strings.Repeat("A", 5000)
	w.raw(long + " /" + long + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if got := log.String(); slices.ContainsFunc(strings.Split(got, "\n"), func(line string) bool { return len(line) > 1000 }) || strings.Contains(got, secret[:16]) || strings.Count(got, "HTTP request refused") != 8 || !strings.Contains(got, "from=127.0.0.1:") {
		t.Errorf("the log has\n%s", got)
	}
}

// TestPanic: a panic is in the log, and its request has no answer: nobody knows what became of the call.
func TestPanic(t *testing.T) {
	log := new(testenv.Tail)
	w := start(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil)), Refused: func(string) { panic("at the disco") }})
	if answer := w.raw("GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"); answer != "" {
		t.Errorf("got %q", answer)
	}
	if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "at the disco") || !strings.Contains(got, "door.go") {
		t.Errorf("the log has\n%s", got)
	}
}

// failing is a listener that is out of files, and then at its end.
type failing struct {
	net.Listener
	errs chan error
}

func (l failing) Accept() (net.Conn, error) { return nil, <-l.errs }

// TestCannotAccept: that connections cannot be accepted is in the log, once a minute.
func TestCannotAccept(t *testing.T) {
	log, end := new(testenv.Tail), errors.New("the end")
	door, err := New(Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	testenv.Must(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	errs := make(chan error, 3)
	for _, err := range []error{os.NewSyscallError("accept4", syscall.EMFILE), os.NewSyscallError("accept4", syscall.EMFILE), end} {
		errs <- &net.OpError{Op: "accept", Net: "tcp", Err: err}
	}
	if err := door.Run(t.Context(), failing{lis, errs}); !errors.Is(err, end) {
		t.Errorf("got %v", err)
	}
	if got := log.String(); strings.Count(got, "cannot accept HTTP connections") != 1 || !strings.Contains(got, syscall.EMFILE.Error()) || !strings.Contains(got, "ulimit -n") {
		t.Errorf("the log has\n%s", got)
	}
}

// TestHangUp: the call of a peer that leaves ends, with a body that was compressed too.
func TestHangUp(t *testing.T) {
	ended := make(chan struct{}, 1)
	w := start(t, Config{Instrument: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(rw, r)
			if r.Header.Get("Leaves") != "" {
				ended <- struct{}{}
			}
		})
	}})
	w.posts("/v1/jobs:record", object{"job_id": "j", "work_mode": "WORK_MODE_LEASED", "lease_duration": "600s"})
	text := `{"job_id":"j","wait":"60s"}`
	for i, c := range []struct{ encoding, body string }{{"identity", text}, {"gzip", zipped(text)}} {
		conn, err := net.Dial("tcp", w.address)
		testenv.Must(t, err)
		_, err = fmt.Fprintf(conn, "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nLeaves: 1\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s",
			c.encoding, len(c.body), c.body)
		testenv.Must(t, err)
		w.until("j", strconv.Itoa(i+2))
		testenv.Must(t, conn.Close())
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the call goes on", c.encoding)
		}
	}
}

// TestForgottenAuthority: the body of a peer is not read whose certificate was made by an authority that is one no longer.
func TestForgottenAuthority(t *testing.T) {
	ca, dir, log := testenv.NewCA(t, "all"), t.TempDir(), new(testenv.Tail)
	pair := ca.Issue("a.example.org")
	files := auth.CertificateFiles{
		Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key), ClientCA: testenv.WriteFile(t, dir, "clients", ca.PEM),
	}
	certificates, err := auth.LoadCertificates(files, slog.New(slog.NewTextHandler(log, nil)))
	testenv.Must(t, err)
	callers, err := auth.Open(auth.Config{Certificates: true, Logger: testenv.Logger(t),
		File: testenv.WriteFile(t, dir, "auth", []byte("callers:\n- {name: a, certificate: a.example.org, allow: [record]}\n...\n"))})
	testenv.Must(t, err)
	srv, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	service := embedded.Start(t, srv, server.Config{Logger: slog.New(slog.DiscardHandler), Callers: callers, Certificates: certificates},
		sqlitestore.Options{MaxAttempts: 10, Logger: testenv.Logger(t)})
	w := start(t, Config{Callers: callers, Certificates: certificates, Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
		return service.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
	}})
	conn, err := tls.Dial("tcp", w.address, &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair.TLS(t)}})
	testenv.Must(t, err)
	defer conn.Close()
	testenv.Must(t, conn.SetDeadline(time.Now().Add(bodyTime/2)))
	answers := bufio.NewReader(conn)
	const head = "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
	for _, want := range []int{http.StatusContinue, http.StatusOK, http.StatusUnauthorized} {
		switch want {
		case http.StatusContinue:
			_, err = io.WriteString(conn, head)
		case http.StatusOK:
			_, err = io.WriteString(conn, `{"job_id":"j"}`)
		case http.StatusUnauthorized:
			testenv.WriteFile(t, dir, "clients", testenv.NewCA(t, "other").PEM)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); certificates.Run(ctx) }()
			for !strings.Contains(log.String(), "in force") {
				time.Sleep(10 * time.Millisecond)
			}
			stop()
			<-done
			_, err = io.WriteString(conn, head)
		}
		testenv.Must(t, err)
		resp, err := http.ReadResponse(answers, nil)
		testenv.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		testenv.Must(t, err)
		if resp.StatusCode != want {
			t.Fatalf("got %s, want %d", resp.Status, want)
		}
	}
}
