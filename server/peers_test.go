package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	recordPath = joboncev1.IdempotencyService_RecordDelivery_FullMethodName
	getPath    = joboncev1.IdempotencyService_GetJob_FullMethodName
)

// goodCaller makes calls one after the other, on a connection of its own, for as long as others misbehave.
type goodCaller struct {
	answered atomic.Int64
	failed   chan error
	stop     context.CancelFunc
	done     chan struct{}
}

func startGoodCaller(t *testing.T, addr string) *goodCaller {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	g := &goodCaller{failed: make(chan error, 1), stop: cancel, done: make(chan struct{})}
	client := joboncev1.NewIdempotencyServiceClient(conn)
	const jobs = 20
	go func() {
		defer close(g.done)
		defer conn.Close()
		for i := 0; ctx.Err() == nil; i++ {
			// Few jobs, so that what they take does not grow.
			resp, err := client.RecordDelivery(ctx, text(fmt.Sprintf("good-%d", i%jobs), strings.Repeat("x", 2000)))
			if ctx.Err() != nil {
				return
			}
			if err == nil && resp.GetStartWork() != (i < jobs) {
				err = fmt.Errorf("call %d got %v", i, resp)
			}
			if err != nil {
				g.failed <- err
				return
			}
			g.answered.Add(1)
		}
	}()
	t.Cleanup(func() { g.stop(); <-g.done })
	return g
}

// served waits for more answers, which must be right.
func (g *goodCaller) served(t *testing.T) {
	t.Helper()
	from := g.answered.Load()
	for g.answered.Load() < from+20 {
		select {
		case err := <-g.failed:
			t.Fatalf("a good caller got %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// attack is something that a bad peer does. It returns when the server has answered as it should, with what ends it.
type attack func(t *testing.T, s *running, addr string) (end func())

// withBadPeer runs an attack. A good caller must be served under it, and what the attack left in the server must be gone
// once its connections are.
func withBadPeer(t *testing.T, cfg Config, jobs Jobs, bad attack) {
	t.Helper()
	s := start(t, cfg, jobs)
	addr := s.conn.Target()
	if _, err := s.RecordDelivery(t.Context(), text("first", "{}")); err != nil {
		t.Fatal(err)
	}
	good := startGoodCaller(t, addr)
	good.served(t)
	before, heap := goleak.IgnoreCurrent(), heapInUse()
	end := bad(t, s, addr)
	good.served(t)
	end()
	if err := goleak.Find(before); err != nil {
		t.Errorf("after the connections are closed: %v", err)
	}
	good.served(t)
	good.stop()
	<-good.done
	s.atRest(t)
	if now := heapInUse(); now > heap+8<<20 {
		t.Errorf("%d KiB are in use, before it was %d KiB", now>>10, heap>>10)
	}
	select {
	case err := <-good.failed:
		t.Errorf("a good caller got %v", err)
	default:
	}
}

func heapInUse() uint64 {
	collect()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// onOne is an attack on one connection.
func onOne(f func(t *testing.T, p *rawPeer)) attack {
	return func(t *testing.T, _ *running, addr string) func() {
		p := dial(t, addr)
		f(t, p)
		return p.close
	}
}

// bytesOnPort is an attack by somebody who speaks something else.
func bytesOnPort(hello string) attack {
	return func(t *testing.T, _ *running, addr string) func() {
		var conns []net.Conn
		for range 50 {
			conn, err := net.Dial("tcp", addr)
			testenv.Must(t, err)
			t.Cleanup(func() { conn.Close() })
			conns = append(conns, conn)
			if _, err := conn.Write([]byte(hello)); err != nil {
				t.Fatal(err)
			}
		}
		return func() {
			for _, conn := range conns {
				if hello != "" {
					drain(t, conn)
				}
				conn.Close()
			}
		}
	}
}

// drain reads until the server hangs up.
func drain(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 4096)
	for {
		if _, err := conn.Read(buf); err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				t.Error("the server keeps a connection that does not speak HTTP/2")
			}
			return
		}
	}
}

func wantStatus(t *testing.T, p *rawPeer, want codes.Code) {
	t.Helper()
	if got := p.nextStatus(t); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func wantReset(t *testing.T, p *rawPeer, want http2.ErrCode) {
	t.Helper()
	if e := p.event(t); !e.isReset || e.reset != want {
		t.Errorf("got %+v, want a reset with %v", e, want)
	}
}

func wantGoAway(t *testing.T, p *rawPeer, want http2.ErrCode) {
	t.Helper()
	for {
		switch e := p.event(t); {
		case e.goAway == want && want != 0:
			return
		case e.closed:
			t.Errorf("the connection ended without a GOAWAY with %v", want)
			return
		}
	}
}

// The check finds a call that goes on when its peer has gone, and a peer that keeps others out.
func TestBadPeersBites(t *testing.T) {
	t.Run("leak", func(t *testing.T) {
		inside, release := make(chan struct{}), make(chan struct{})
		jobs := &memoryJobs{onGet: func(context.Context) error { close(inside); <-release; return nil }}
		s := start(t, Config{}, jobs)
		must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), text("first", "{}")))
		before := goleak.IgnoreCurrent()
		p := dial(t, s.conn.Target())
		p.call(t, getPath, encode(t, &joboncev1.GetJobRequest{JobId: "first"}))
		<-inside
		p.close()
		if goleak.Find(before) == nil {
			t.Error("a call that runs on was not found")
		}
		close(release)
		testenv.OK(t, goleak.Find(before))
	})
	t.Run("others kept out", func(t *testing.T) {
		s := start(t, Config{MaxCalls: 10}, new(memoryJobs))
		p := dial(t, s.conn.Target())
		for range 10 {
			p.headers(t, recordPath, false)
		}
		eventually(t, "the calls are not in the server", func() bool { calls, _ := s.server.door.room.held(); return calls == 10 })
		good := startGoodCaller(t, s.conn.Target())
		if err := <-good.failed; details(t, err).reason != "OVERLOADED" {
			t.Errorf("got %v", err)
		}
	})
}
