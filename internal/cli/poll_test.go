package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestPollWalkedThrough is what docs/operations.md walks through: a provider that answers running, running, done.
func TestPollWalkedThrough(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h := serveHere(t, testServeConfig(t))
	if _, err := h.stdout.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		state := "running"
		if asked.Add(1) >= 3 {
			state = "done"
		}
		fmt.Fprintf(w, `{"state":%q}`, state)
	}))
	defer provider.Close()
	file := testenv.WriteFile(t, t.TempDir(), "jobonce.yaml", fmt.Appendf(nil, `poll:
  idle: 100ms
  hosts:
    - host: %s
      allow_private: true
      rate: 100
      over: body.state == "done"
      event: '"job." + body.state'
`, strings.TrimPrefix(provider.URL, "http://")))
	if code, stdout, stderr := run("expect", "job_demo", "--server", h.addr, "--status-url", provider.URL+"/jobs/demo", "--overdue-after", "0s"); code != 0 || !strings.Contains(stdout, "overdue from") {
		t.Fatalf("%s%s", stdout, stderr)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := execute(ctx, []string{"poll", "--config", file, "--server", h.addr, "--log-level", "error"}, nil, io.Discard, io.Discard)
		ended <- err
	}()
	for {
		if code, stdout, _ := run("get", "job_demo", "--server", h.addr); code == 0 {
			for _, want := range []string{"event: job.done", "source: poll", "deliveries: 1", "work: QUEUED", `{"state":"done"}`} {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is missing in\n%s", want, stdout)
				}
			}
			break
		}
	}
	for {
		if _, stdout, _ := run("overdue", "--show", "all", "--server", h.addr); stdout == "" {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("the provider was asked %d times", n)
	}
	h.stop()
}

func TestPollConfig(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ file, want string }{
		"no hosts":  {"poll: {idle: 1s}", "has no poll.hosts"},
		"no list":   {"poll: {hosts: x}", "must be a list"},
		"bad over":  {"poll: {hosts: [{host: p.example, over: 'body.'}]}", "over of p.example"},
		"idle":      {"poll: {idle: -1s, hosts: [{host: p.example, over: 'true'}]}", "Idle"},
		"other key": {"poll: {host: x}", "host"},
	} {
		t.Run(name, func(t *testing.T) {
			file := testenv.WriteFile(t, dir, "f.yaml", []byte(c.file))
			if code, _, stderr := run("poll", "--config", file); code != exitUsage || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
	if code, _, stderr := run("poll"); code != exitUsage || !strings.Contains(stderr, "needs --config") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
