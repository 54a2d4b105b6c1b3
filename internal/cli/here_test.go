package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/jobonce/jobonce/internal/testenv"
)

// here is a serve in the test's own process.
type here struct {
	t *testing.T
	// addr and ops are where it listens.
	addr, ops string
	stdout    *bufio.Reader
	cancel    context.CancelFunc
	ended     chan error

	mu  sync.Mutex
	log strings.Builder
}

// serveHere starts serve and returns once it listens, which may be before its store is ready. The caller must stop it.
func serveHere(t *testing.T, cfg *serveConfig) *here {
	t.Helper()
	stdout, toStdout := io.Pipe()
	return serveHereTo(t, cfg, stdout, toStdout)
}

// serveHereTo is serveHere with a standard output of the caller's choice.
func serveHereTo(t *testing.T, cfg *serveConfig, stdout io.Reader, toStdout io.WriteCloser) *here {
	t.Helper()
	cfg.listen, cfg.opsListen, cfg.log.format.Value = "127.0.0.1:0", "127.0.0.1:0", outputJSON
	ctx, cancel := context.WithCancel(t.Context())
	stderr, toStderr := io.Pipe()
	h := &here{t: t, stdout: bufio.NewReader(stdout), cancel: cancel, ended: make(chan error, 1)}
	listening := make(chan struct{})
	go h.readLog(stderr, listening)
	go func() {
		err := serve(ctx, cfg, toStdout, toStderr)
		toStdout.Close()
		toStderr.Close()
		h.ended <- err
	}()
	select {
	case <-listening:
	case err := <-h.ended:
		t.Fatalf("serve ended: %v", err)
	}
	return h
}

func (h *here) readLog(r io.Reader, listening chan<- struct{}) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		h.mu.Lock()
		h.log.WriteString(lines.Text() + "\n")
		h.mu.Unlock()
		var line struct {
			Msg     string
			Address string
			Ops     string `json:"ops_address"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			h.addr, h.ops = line.Address, line.Ops
			close(listening)
		}
	}
}

func (h *here) logged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

// stop ends serve and returns what it has printed on standard output since it was read last.
func (h *here) stop() string {
	h.t.Helper()
	h.cancel()
	printed, err := io.ReadAll(h.stdout)
	testenv.OK(h.t, err)
	testenv.OK(h.t, <-h.ended)
	return string(printed)
}

// get reads a page of the ops listener.
func (h *here) get(path string) (code int, body string) {
	h.t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + h.ops + path)
	testenv.Must(h.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	testenv.Must(h.t, err)
	return resp.StatusCode, string(b)
}

// health is what the gRPC health service says.
func (h *here) health() grpc_health_v1.HealthCheckResponse_ServingStatus {
	h.t.Helper()
	conn, err := grpc.NewClient(h.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(h.t, err)
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(h.t.Context(), new(grpc_health_v1.HealthCheckRequest))
	testenv.Must(h.t, err)
	return resp.GetStatus()
}
