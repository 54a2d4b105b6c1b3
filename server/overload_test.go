package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// storm sends calls to a store that does not move until each call has been refused or is in the store, and returns how many
// were let in, and the most bytes that the server held. It fails when a call got an error that was not asked for.
func storm(t *testing.T, cfg Config, calls, size int) (in int, most int64) {
	t.Helper()
	release := make(chan struct{})
	settled := make(chan bool, calls) // whether the call was refused
	jobs := &memoryJobs{onRecord: func(context.Context, job.Delivery) error {
		settled <- false
		<-release
		return nil
	}}
	s := start(t, cfg, jobs)
	body := strings.Repeat("x", size)
	var refused sync.Map
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			id := fmt.Sprintf("job-%d", i)
			resp, err := s.RecordDelivery(t.Context(), text(id, body))
			if err == nil {
				if !resp.GetStartWork() {
					t.Errorf("%s: got %v", id, resp)
				}
				return
			}
			if d := details(t, err); status.Code(err) != codes.ResourceExhausted || d.reason != "OVERLOADED" || d.retry <= 0 {
				t.Errorf("%s: got %v %+v", id, err, d)
			}
			refused.Store(id, true)
			settled <- true
		})
	}
	var out int
	for range calls {
		if <-settled {
			out++
		} else {
			in++
		}
	}
	if in == 0 {
		t.Error("no call got through")
	}
	close(release)
	wg.Wait()
	if records, _ := jobs.size(); records != in {
		t.Errorf("%d records of %d calls that were let in: a refused one was written", records, in)
	}
	for id := range refused.Range {
		if _, err := jobs.Get(t.Context(), id.(string), false); err == nil {
			t.Errorf("%v was refused, and written", id)
		}
		// The storm is over: the same call gets through.
		if _, err := s.RecordDelivery(t.Context(), text(id.(string), body)); err != nil {
			t.Errorf("%v after the storm: %v", id, err)
		}
	}
	s.atRest(t)
	t.Logf("%d calls of %d bytes: %d let in, %d refused; at most %d bytes held", calls, size, in, out, s.most())
	return in, s.most()
}

// atRest waits until no call is in the server, and none of their bytes.
func (r *running) atRest(t *testing.T) {
	t.Helper()
	eventually(t, "calls and bytes are still held", func() bool {
		calls, bytes := r.server.door.room.held()
		return calls == 0 && bytes == 0
	})
	eventually(t, "calls still stand in line", func() bool {
		l := r.server.door.line
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.receiving == 0 && l.waiting == 0 && l.pending.Len() == 0 && len(l.holds) == 0 && len(l.queues) == 0 && l.order.Len() == 0
	})
}

// most is the largest number of bytes that was held.
func (r *running) most() int64 {
	r.server.door.room.mu.Lock()
	defer r.server.door.room.mu.Unlock()
	return r.server.door.room.most
}

// eventually waits for something that other goroutines do, of which there is no other sign.
func eventually(t *testing.T, otherwise string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal(otherwise)
}

func TestOverloadBytes(t *testing.T) {
	const bound = 2 << 20
	if _, most := storm(t, Config{MaxCallBytes: bound}, 100, 256<<10); most > bound {
		t.Errorf("%d bytes were held, the bound is %d", most, bound)
	}
}

// The check above finds a server without the bound.
func TestOverloadBytesBites(t *testing.T) {
	const bound = 2 << 20
	if _, most := storm(t, Config{MaxCallBytes: 1 << 40}, 100, 256<<10); most <= bound {
		t.Errorf("without a bound only %d bytes were held", most)
	}
}

func TestOverloadCalls(t *testing.T) {
	const bound = 20
	if in, _ := storm(t, Config{MaxCalls: bound}, 100, 1000); in > bound {
		t.Errorf("%d calls were let in, the bound is %d", in, bound)
	}
}

// A request that is not let in still counts as a call for those who watch, and is logged.
func TestOverloadIsSeen(t *testing.T) {
	s := start(t, Config{MaxCallBytes: 1000}, new(memoryJobs))
	if _, err := s.RecordDelivery(t.Context(), text("a", strings.Repeat("x", 2000))); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("got %v", err)
	}
	if lines := s.log.lines(t, "call failed"); len(lines) != 1 || lines[0]["reason"] != "OVERLOADED" {
		t.Errorf("logged %v", lines)
	}
}

// Answers that nobody reads count, and reads that have no room for theirs are refused; writes go on.
func TestAnswersNotRead(t *testing.T) {
	const bound, size = 16 << 20, 1 << 20 // of which a connection has a quarter
	s := start(t, Config{MaxAnswerBytes: bound}, new(memoryJobs))
	if _, err := s.RecordDelivery(t.Context(), text("large", strings.Repeat("x", size))); err != nil {
		t.Fatal(err)
	}
	full := &joboncev1.GetJobRequest{JobId: "large", View: joboncev1.JobView_JOB_VIEW_FULL}
	p := dial(t, s.conn.Target())
	for range 10 {
		p.call(t, joboncev1.IdempotencyService_GetJob_FullMethodName, encode(t, full))
	}
	for range 7 { // Three fit. What is told to the others is short enough to come.
		if got := p.nextStatus(t); got != codes.ResourceExhausted {
			t.Fatalf("got %v", got)
		}
	}
	if _, err := s.GetJob(t.Context(), full); err != nil {
		t.Errorf("a read of another connection got %v", err)
	}
	peers := []*rawPeer{p}
	for range 4 {
		p := dial(t, s.conn.Target())
		peers = append(peers, p)
		for range 3 {
			p.call(t, joboncev1.IdempotencyService_GetJob_FullMethodName, encode(t, full))
		}
	}
	eventually(t, "the bound is not reached", func() bool {
		n := s.server.answers.held()
		return n <= bound && n > bound-size-4096
	})
	if _, err := s.GetJob(t.Context(), full); details(t, err).reason != "OVERLOADED" {
		t.Errorf("one more read got %v", err)
	}
	if _, err := s.RecordDelivery(t.Context(), text("another", "{}")); err != nil {
		t.Errorf("a write got %v", err)
	}
	for _, p := range peers {
		p.close()
	}
	eventually(t, "the answers are still held", func() bool {
		collect()
		return s.server.answers.held() == 0
	})
	if _, err := s.GetJob(t.Context(), full); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestAnswersShare: a connection has a quarter of the room, and one answer in any case; who has more gets no claims.
func TestAnswersShare(t *testing.T) {
	a := &answers{maxBytes: 100, peers: make(map[*peerConn]int64)}
	one, two, three := new(peerConn), new(peerConn), new(peerConn)
	for _, c := range []struct {
		peer *peerConn
		size int64
		must bool
		want bool
	}{
		{one, 60, true, true}, {one, 1, true, false}, {one, 0, true, false},
		{two, 20, true, true}, {two, 5, true, true}, {two, 1, true, false}, {two, 0, true, true},
		{two, 10, false, true}, {two, 0, true, false}, {three, 6, true, false}, {three, 5, true, true},
		{one, -60, false, true}, {two, -35, false, true}, {three, -5, false, true},
	} {
		if got := a.add(c.peer, c.size, c.must); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if a.held() != 0 || len(a.peers) != 0 {
		t.Errorf("%d bytes are still held, by %v", a.held(), a.peers)
	}
}

// TestEachConnectionHasItsShare, also where the connections have no address to tell them apart.
func TestEachConnectionHasItsShare(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			lis, err := net.Listen(network, address)
			testenv.Must(t, err)
			var seen []any // Calls are made one after the other.
			s, err := New(Config{Logger: slog.New(slog.DiscardHandler), UnaryInterceptors: []grpc.UnaryServerInterceptor{
				func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					seen = append(seen, connection(ctx))
					return handler(ctx, req)
				},
			}}, new(memoryJobs))
			testenv.Must(t, err)
			serve(t, s, lis)
			for range 2 {
				conn, err := grpc.NewClient("passthrough:///any", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return net.Dial(network, lis.Addr().String()) }))
				testenv.Must(t, err)
				defer conn.Close()
				for range 2 {
					if _, err := joboncev1.NewIdempotencyServiceClient(conn).RecordDelivery(t.Context(), text("j", "{}")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if seen[0] != seen[1] || seen[2] != seen[3] || seen[0] == seen[2] {
				t.Errorf("calls of two connections, two of each, came from %v", seen)
			}
		})
	}
}
