package server

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"
)

// acceptLogEvery is how often connections that cannot be accepted are logged.
const acceptLogEvery = time.Minute

// loudListener logs connections that cannot be accepted for now: grpc-go waits and tries again, and says nothing. What ends
// the serving is not for the log. Accept is for one goroutine, as grpc-go has it.
type loudListener struct {
	net.Listener
	log *slog.Logger
	now func() time.Time

	logged time.Time
	// failed counts since then.
	failed int
}

// Accept accepts a connection.
func (l *loudListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if passes, ok := err.(interface{ Temporary() bool }); !ok || !passes.Temporary() {
		return conn, err
	}
	l.failed++
	if now := l.now(); l.logged.IsZero() || now.Sub(l.logged) >= acceptLogEvery {
		attrs := []any{"address", l.Addr().String(), "failures", l.failed, "error", err}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			attrs = append(attrs, "mend", "more files are open than the process or the system allows: raise the limit (ulimit -n)")
		}
		l.log.Error("cannot accept connections", attrs...)
		l.logged, l.failed = now, 0
	}
	return nil, err
}
