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

// TestPollGivesUp: an answer that is too large to be read is an error that people see, and what never has another one is given up in the
// end, with that error, and counted.
func TestPollGivesUp(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h := serveHere(t, testServeConfig(t))
	if _, err := h.stdout.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"state":"done","text":"%s"}`, strings.Repeat("x", 1<<20))
	}))
	defer provider.Close()
	file := testenv.WriteFile(t, t.TempDir(), "jobonce.yaml", fmt.Appendf(nil, "poll: {idle: 100ms, hosts: [{host: '%s', allow_private: true, over: 'body.state == \"done\"'}]}",
		strings.TrimPrefix(provider.URL, "http://")))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log strings.Builder
	go func() {
		_, err := execute(ctx, []string{"poll", "--config", file, "--server", h.addr}, nil, io.Discard, &log)
		ended <- err
	}()
	if code, _, stderr := run("expect", "large", "--server", h.addr, "--status-url", provider.URL, "--overdue-after", "0s", "--give-up-after", "5s"); code != 0 {
		t.Fatal(stderr)
	}
	listed := ""
	for !strings.Contains(listed, "given up") {
		_, listed, _ = run("overdue", "--server", h.addr, "--show", "given-up")
	}
	if !strings.Contains(listed, "is over 1048576 bytes") {
		t.Errorf("listed: %s", listed)
	}
	stop()
	if err := <-ended; err != nil || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "is over 1048576 bytes") {
		t.Errorf("%v; the poller said %s", err, log.String())
	}
	if said := h.logged(); !strings.Contains(said, `"level":"ERROR","msg":"a webhook never came`) || !strings.Contains(said, "is over 1048576 bytes") {
		t.Errorf("the service said %s", said)
	}
	if _, metrics := h.get("/metrics"); !strings.Contains(metrics, "jobonce_expectations_given_up_total 1\n") {
		t.Errorf("%s", metrics)
	}
	h.stop()
}

// TestOperatorsMetrics: a service counts webhooks that are overdue and jobs that died.
func TestOperatorsMetrics(t *testing.T) {
	h := serveHere(t, testServeConfig(t))
	if _, err := h.stdout.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, out, _ := run("record", "--server", h.addr, "--job-id", "hopeless", "--work-mode", "leased", "--lease", "1h")
	_, token, _ := strings.Cut(out, "lease_token=")
	token, _, _ = strings.Cut(token, " ")
	for _, args := range [][]string{
		{"work", "release", "hopeless", "--lease-token", token, "--dead"}, {"expect", "late", "--status-url", "https://p.example/", "--overdue-after", "0s"},
		{"expect", "early", "--status-url", "https://p.example/"},
	} {
		if code, _, stderr := run(append(args, "--server", h.addr)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	_, metrics := h.get("/metrics")
	for _, want := range []string{"jobonce_dead_jobs_total 1\n", "jobonce_expectations_overdue 1\n", "jobonce_expectations_given_up_total 0\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%q is missing", want)
		}
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
