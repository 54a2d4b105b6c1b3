package server

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/internal/testenv"
)

// outOfFiles is what Accept fails with when the process has too many files open.
var outOfFiles = &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}

// failingListener fails with what is in errs before it accepts.
type failingListener struct {
	net.Listener
	errs chan error
}

func (l failingListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		return nil, err
	default:
		return l.Listener.Accept()
	}
}

// TestOutOfFilesIsLogged: a server that cannot accept connections says so, and goes on when it can.
func TestOutOfFilesIsLogged(t *testing.T) {
	log := new(logBuffer)
	s, err := New(Config{Logger: slog.New(slog.NewJSONHandler(log, nil))}, new(memoryJobs))
	testenv.Must(t, err)
	lis := failingListener{listen(t), make(chan error, 3)}
	for range 3 {
		lis.errs <- outOfFiles
	}
	r := serve(t, s, lis)
	if _, err := r.RecordDelivery(t.Context(), text("j", "{}")); err != nil {
		t.Fatal(err)
	}
	lines := log.lines(t, "cannot accept connections")
	if len(lines) != 1 || lines[0]["level"] != "ERROR" || !strings.Contains(lines[0]["error"].(string), syscall.EMFILE.Error()) ||
		!strings.Contains(lines[0]["mend"].(string), "ulimit -n") {
		t.Errorf("logged: %v", lines)
	}
}

// The log has a line a minute at most, which says how many there were; a listener that comes to its end is no failure.
func TestAcceptLogIsBounded(t *testing.T) {
	log, now := new(logBuffer), time.Now()
	failing := failingListener{listen(t), make(chan error, 1)}
	l := &loudListener{Listener: failing, log: slog.New(slog.NewJSONHandler(log, nil)), now: func() time.Time { return now }, most: 1}
	for range 120 {
		failing.errs <- outOfFiles
		if _, err := l.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	for _, end := range []error{net.ErrClosed, errors.New("closed")} {
		now = now.Add(time.Hour)
		failing.errs <- end
		if _, err := l.Accept(); !errors.Is(err, end) {
			t.Fatal(err)
		}
	}
	lines := log.lines(t, "cannot accept connections")
	if len(lines) != 2 || lines[0]["failures"] != 1.0 || lines[1]["failures"] != 60.0 {
		t.Errorf("logged: %v", lines)
	}
	testenv.OK(t, failing.Close())
}

// A connection over the bound is closed at once, and one that ends makes room.
func TestMaxConnections(t *testing.T) {
	s := start(t, Config{MaxConnections: 2}, new(memoryJobs))
	if _, err := s.RecordDelivery(t.Context(), text("j", "{}")); err != nil {
		t.Fatal(err)
	}
	p := dial(t, s.conn.Target())
	p.call(t, getPath, field(1, []byte("j")))
	wantStatus(t, p, codes.OK)
	served := func() bool {
		conn, err := net.Dial("tcp", s.conn.Target())
		testenv.Must(t, err)
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = conn.Read(make([]byte, 1)) // The server speaks first.
		return err == nil
	}
	if served() {
		t.Error("a third connection is served")
	}
	eventually(t, "nothing is logged", func() bool { return len(s.log.lines(t, "cannot accept connections")) == 1 })
	if mend := s.log.lines(t, "cannot accept connections")[0]["mend"].(string); !strings.Contains(mend, "--max-connections") {
		t.Errorf("logged %q", mend)
	}
	p.close()
	eventually(t, "there is no room again", served)
}
