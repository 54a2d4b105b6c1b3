package httpdoor

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// web is a door under test.
type web struct {
	t       *testing.T
	door    *Door
	address string
	client  *http.Client
	// stop ends the context of Run; stopped gives what Run returned.
	stop    context.CancelFunc
	stopped <-chan error
}

// service is the gRPC service over an embedded store.
func service(t *testing.T, callers *auth.Authority) *server.Server {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	return embedded.Start(t, lis, server.Config{Logger: slog.New(slog.DiscardHandler), Callers: callers},
		sqlitestore.Options{MaxAttempts: 10, Logger: testenv.Logger(t)})
}

// callers are those of an auth file with one caller, who has the token.
func callers(t *testing.T, entry string) (token string, a *auth.Authority) {
	t.Helper()
	token, sum := auth.NewToken()
	file := testenv.WriteFile(t, t.TempDir(), "auth", []byte("callers:\n- {name: a, token_sha256: "+sum+", "+entry+"}\n...\n"))
	a, err := auth.Open(auth.Config{File: file, Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	return token, a
}

// start serves the service over HTTP until the test ends. The changes are made before it serves.
func start(t *testing.T, cfg Config, changes ...func(*Door)) *web {
	t.Helper()
	if cfg.Connect == nil {
		srv := service(t, cfg.Callers)
		cfg.Connect = func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
			return srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = 100
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = server.DefaultShutdownTimeout
	}
	door, err := New(cfg)
	testenv.Must(t, err)
	for _, change := range changes {
		change(door)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		stopped <- door.Run(ctx, lis)
	}()
	w := &web{t, door, lis.Addr().String(), &http.Client{Transport: &http.Transport{}}, stop, stopped}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		stop()
		<-done
	})
	return w
}

// reply is what came back.
type reply struct {
	*http.Response
	text []byte
	// What an error says.
	Code    int
	Message string
	Details []struct {
		Reason          string
		FieldViolations []struct{ Field string } `json:"field_violations"`
	}
}

func (r *reply) reason() string {
	for _, d := range r.Details {
		if d.Reason != "" {
			return d.Reason
		}
	}
	return ""
}

// does sends a request. Headers are names and values in turn.
func (w *web) does(method, path string, body []byte, headers ...string) *reply {
	w.t.Helper()
	scheme := "http"
	if w.door.cfg.Certificates != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, scheme+"://"+w.address+path, bytes.NewReader(body))
	testenv.Must(w.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; {
		case name == "Host":
			req.Host = value
		case value == "":
			req.Header.Del(name)
		default:
			req.Header.Set(name, value)
		}
	}
	resp, err := w.client.Do(req)
	testenv.Must(w.t, err)
	defer resp.Body.Close()
	r := &reply{Response: resp}
	r.text, err = io.ReadAll(resp.Body)
	testenv.Must(w.t, err)
	if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Cache-Control") != "no-store" {
		w.t.Errorf("%s %s: headers %v", method, path, resp.Header)
	}
	if resp.StatusCode != http.StatusOK {
		testenv.Must(w.t, json.Unmarshal(r.text, r))
	}
	return r
}

// posts sends JSON and returns the answer, which must be one.
func (w *web) posts(path string, body any) map[string]any {
	w.t.Helper()
	text, err := json.Marshal(body)
	testenv.Must(w.t, err)
	return w.answer(w.does(http.MethodPost, path, text))
}

func (w *web) answer(r *reply) map[string]any {
	w.t.Helper()
	if r.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s", r.Status, r.text)
	}
	var answer map[string]any
	testenv.Must(w.t, json.Unmarshal(r.text, &answer))
	return answer
}

// zipped is a text, compressed with gzip.
func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // A buffer takes all.
	_ = z.Close()
	return b.String()
}

// until waits for the job to have had so many deliveries.
func (w *web) until(jobID, deliveries string) {
	w.t.Helper()
	for w.answer(w.does(http.MethodGet, "/v1/jobs?job_id="+jobID, nil))["job"].(object)["deliveries"] != deliveries {
		time.Sleep(time.Millisecond)
	}
}
