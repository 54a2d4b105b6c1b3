package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestSeriesAreBounded: no name that a caller makes up, of a method, a path, a job, an event, a source or a worker, becomes a label.
func TestSeriesAreBounded(t *testing.T) {
	cfg := testServeConfig(t)
	door := filepath.Join(t.TempDir(), "door")
	cfg.httpListen = "unix:" + door
	h := serveHere(t, cfg)
	if _, err := h.stdout.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	defer h.stop()
	conn, err := grpc.NewClient(h.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(t, err)
	defer conn.Close()
	over := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", door)
	}}}
	hostile := func(n int) {
		name := fmt.Sprint("made_up_", n)
		for _, method := range []string{"/" + name + "/x", "/jobonce.v1.IdempotencyService/" + name, "/grpc.health.v1.Health/" + name} {
			if err := conn.Invoke(t.Context(), method, new(emptypb.Empty), new(emptypb.Empty)); err == nil {
				t.Errorf("%s was answered", method)
			}
		}
		for _, path := range []string{"/v1/jobs:" + name, "/" + name, "/v1/jobs?job_id=" + name} {
			for _, verb := range []string{http.MethodGet, http.MethodPost, strings.ToUpper(name)} {
				req, err := http.NewRequestWithContext(t.Context(), verb, "http://localhost"+path, bytes.NewReader([]byte(`{"x":`)))
				testenv.Must(t, err)
				req.Header.Set("Content-Type", "application/json")
				resp, err := over.Do(req)
				testenv.Must(t, err)
				resp.Body.Close()
			}
		}
		run("record", "--server", h.addr, "--job-id", name, "--event", name, "--status", name, "--work-mode", "queued")
		run("work", "claim", "--server", h.addr, "--worker-id", name, "--event", name)
		_, _ = h.get("/" + name)
	}
	series := func() map[string]bool {
		_, body := h.get("/metrics")
		found := map[string]bool{}
		for line := range strings.Lines(body) {
			if name, _, ok := strings.Cut(line, "} "); ok {
				found[name] = true
			}
		}
		return found
	}
	hostile(0)
	before := series()
	for n := range 20 {
		hostile(1 + n)
	}
	for s := range series() {
		if !before[s] || strings.Contains(s, "made_up") {
			t.Errorf("there is a new series: %s", s)
		}
	}
}
