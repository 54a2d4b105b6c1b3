package testenv

import (
	"io"
	"log/slog"
	"sync"
	"testing"
)

// Logger writes everything, debug lines included, to the test's output for as long as the test runs, and nowhere
// afterwards: a test's output panics once the test is over, and what a store or server does last may come after that.
func Logger(t testing.TB) *slog.Logger {
	w := &logWriter{w: t.Output()}
	t.Cleanup(w.stop)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

func (w *logWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.w = io.Discard
}

// Tail keeps the end of what is written to it. It is safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	end []byte
}

const tailBytes = 256 << 10

func (w *Tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = append(w.end, b...)
	if len(w.end) > 2*tailBytes {
		w.end = append([]byte(nil), w.end[len(w.end)-tailBytes:]...)
	}
	return len(b), nil
}

func (w *Tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.end)
}

// Take is String, and forgets what it returns.
func (w *Tail) Take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := string(w.end)
	w.end = nil
	return taken
}
