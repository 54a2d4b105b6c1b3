package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// acceptLogEvery is how often connections that cannot be accepted are logged.
const acceptLogEvery = time.Minute

// loudListener bounds the connections, and logs those that it cannot accept for now: grpc-go waits and tries again, and says
// nothing. What ends the serving is not for the log. Accept is for one goroutine, as grpc-go has it.
type loudListener struct {
	net.Listener
	log *slog.Logger
	now func() time.Time
	// most bounds the connections that are open.
	most int64
	open atomic.Int64
	// stopping ends when the server is to stop.
	stopping context.Context

	logged time.Time
	// failed counts since then.
	failed int
}

// errConnections is why a connection is closed at once: a client that is told goes elsewhere, one that waits does not.
var errConnections = errors.New("too many connections are open")

// Accept accepts a connection.
func (l *loudListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			if l.open.Add(1) <= l.most {
				return newPeerConn(l.stopping, conn, func() { l.open.Add(-1) }), nil
			}
			l.open.Add(-1)
			_ = conn.Close()
			l.failure(errConnections)
			continue
		}
		if passes, ok := err.(interface{ Temporary() bool }); ok && passes.Temporary() {
			l.failure(err)
		}
		return nil, err
	}
}

// failure logs that a connection could not be accepted, now and then.
func (l *loudListener) failure(err error) {
	l.failed++
	now := l.now()
	if !l.logged.IsZero() && now.Sub(l.logged) < acceptLogEvery {
		return
	}
	attrs := []any{"address", l.Addr().String(), "failures", l.failed, "error", err}
	switch {
	case err == errConnections:
		attrs = append(attrs, "mend", "raise --max-connections, and the limit of open files (ulimit -n) with it")
	case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
		attrs = append(attrs, "mend", "more files are open than the process or the system allows: raise the limit (ulimit -n)")
	}
	l.log.Error("cannot accept connections", attrs...)
	l.logged, l.failed = now, 0
}
