package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

// testServeConfig is what the flags say with a directory and a port of the test's own.
func testServeConfig(t *testing.T) *serveConfig {
	cfg, _ := newServeConfig()
	cfg.listen = "127.0.0.1:0"
	cfg.store.dataDir = t.TempDir()
	return cfg
}

func TestServeEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	cfg := testServeConfig(t)
	// The second time shows that the first one gave the directory free.
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		stdout, w := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, cfg, w, io.Discard) }()
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !readyLine.MatchString(line) {
			t.Errorf("got %q, %v", line, err)
		}
		cancel()
		testenv.OK(t, <-ended)
	}
}

// brokenWriter is a standard output that nobody reads any more.
type brokenWriter struct{}

var errBroken = errors.New("broken pipe")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// triedWriter is one that tells when it was tried.
type triedWriter struct {
	brokenWriter
	tried chan struct{}
}

func (w triedWriter) Write(b []byte) (int, error) {
	close(w.tried)
	return w.brokenWriter.Write(b)
}

func (triedWriter) Close() error { return nil }

// TestServeThatCannotSayItIsReady serves all the same, and says so where it can.
func TestServeThatCannotSayItIsReady(t *testing.T) {
	defer goleak.VerifyNone(t)
	stdout := triedWriter{tried: make(chan struct{})}
	h := serveHereTo(t, testServeConfig(t), strings.NewReader(""), stdout)
	<-stdout.tried
	if code, _, stderr := run("record", "--server", h.addr, "--job-id", "j"); code != 0 {
		t.Errorf("record: exit code %d: %s", code, stderr)
	}
	h.stop()
	if log := h.logged(); !strings.Contains(log, `"level":"WARN","msg":"the line that says that the service is ready could not be written; it goes on without","error":"broken pipe"`) {
		t.Errorf("logged\n%s", log)
	}
}

func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"version", "-o", "json"}} {
		var stderr bytes.Buffer
		if code := Main(args, nil, brokenWriter{}, &stderr); code != 1 || !strings.Contains(stderr.String(), "broken pipe") {
			t.Errorf("%v: exit code %d: %s", args, code, &stderr)
		}
	}
}

func TestLogLevelAndFormat(t *testing.T) {
	cfg, keys := newServeConfig()
	testenv.Must(t, keys.Parse([]string{"--log-level", "warn", "--log-format", "json"}))
	var out bytes.Buffer
	logger := cfg.log.logger(&out)
	logger.Info("quiet")
	logger.Warn("loud")
	if got := out.String(); strings.Contains(got, "quiet") || !strings.HasPrefix(got, "{") || !strings.Contains(got, `"msg":"loud"`) {
		t.Errorf("logged %q", got)
	}
	cfg, _ = newServeConfig()
	out.Reset()
	logger = cfg.log.logger(&out)
	logger.Debug("quiet")
	logger.Info("loud")
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, "level=INFO msg=loud") {
		t.Errorf("logged %q", got)
	}
}
