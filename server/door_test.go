package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestRefusalsLeaveNothing: calls that are refused, with the longest timeout that there is, leave neither calls, bytes nor memory,
// and no more than a few lines in the log.
func TestRefusalsLeaveNothing(t *testing.T) {
	refusals := 3_000
	if testenv.Long() {
		refusals = 100_000
	}
	s := start(t, Config{MaxCalls: 1}, new(memoryJobs))
	place := s.server.door.room.enter()
	p := dial(t, s.conn.Target())
	begin := time.Now()
	var before uint64
	for i := range refusals {
		p.headers(t, recordPath, false, "grpc-timeout", "99999999H")
		wantStatus(t, p, codes.ResourceExhausted)
		if i == 100 { // Pools and buffers are there.
			before = heapInUse()
		}
	}
	if now := heapInUse(); now > before+1<<20 {
		t.Errorf("%d refusals leave %d bytes", refusals, now-before)
	}
	place.leave()
	s.atRest(t)
	if lines, most := len(s.log.lines(t, "call failed")), refusalsLogged*(2+int(time.Since(begin).Seconds())); lines > most {
		t.Errorf("%d lines are logged, want %d at most", lines, most)
	}
}

// TestCancelledCallsCount: a call counts until its handler has returned, so that callers who cancel at once never make more
// of them run than there is room for.
func TestCancelledCallsCount(t *testing.T) {
	const bound = 50
	calls := 5_000
	if testenv.Long() {
		calls = 20_000
	}
	var running, most atomic.Int64
	release := make(chan struct{})
	s := start(t, Config{MaxCalls: bound}, &memoryJobs{onGet: func(context.Context) error {
		if n := running.Add(1); n > most.Load() {
			most.Store(n) // Not exact, but never more than there were.
		}
		<-release
		running.Add(-1)
		return nil
	}})
	p := dial(t, s.conn.Target())
	get := field(1, []byte("j"))
	for range calls {
		p.must(t, p.WriteRSTStream(p.call(t, getPath, get), http2.ErrCodeCancel))
	}
	eventually(t, "no call is in", func() bool { return running.Load() > 0 })
	if n, _ := s.server.door.room.held(); n < running.Load() {
		t.Errorf("%d calls count, %d run", n, running.Load())
	}
	close(release)
	s.atRest(t)
	if n := most.Load(); n > bound {
		t.Errorf("%d handlers ran, the bound is %d", n, bound)
	}
}

// A request that stays half is cut when it has had its time, whatever part of it is missing.
func TestHalfARequest(t *testing.T) {
	s := start(t, Config{ReceiveTimeout: 20 * time.Millisecond}, new(memoryJobs))
	p := dial(t, s.conn.Target())
	for _, data := range [][]byte{nil, {0}, append(prefix(0, 100_000), make([]byte, 1000)...), append(prefix(0, 3), field(1, []byte("a"))...)} {
		p.must(t, p.WriteData(p.headers(t, getPath, false), false, data))
		wantStatus(t, p, codes.DeadlineExceeded)
	}
	s.atRest(t)
	if lines := s.log.lines(t, "call failed"); len(lines) != 4 || !strings.Contains(lines[0]["error"].(string), "nothing was written") &&
		!strings.Contains(lines[0]["error"].(string), "did not arrive") {
		t.Errorf("logged %v", lines)
	}
}

// Callers that compress are served, and their large answers count as they are.
func TestGzip(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	body := strings.Repeat("x", 1<<20)
	with := grpc.UseCompressor(gzip.Name)
	if _, err := s.RecordDelivery(t.Context(), text("j", body), with); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL}, with)
	if err != nil || got.GetJob().GetPayload() != body {
		t.Errorf("got %d bytes, %v", len(got.GetJob().GetPayload()), err)
	}
	p := dial(t, s.conn.Target())
	full := encode(t, &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL})
	p.send(t, p.headers(t, getPath, false, "grpc-encoding", "gzip"), true, append(prefix(0, len(full)), full...))
	eventually(t, "the answer does not count", func() bool { return s.server.answers.held() > 1<<20 })
}

// TestChain holds the order of the interceptors: the deadline is that of the handler, and a panic is seen by all the others.
func TestChain(t *testing.T) {
	outer := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(ctx, req)
	}
	var names []string
	for _, l := range chain(Config{UnaryInterceptors: []grpc.UnaryServerInterceptor{outer}}, callLog{}, new(answers)) {
		names = append(names, l.name)
	}
	if got := strings.Join(names, " "); got != "configured log audit deadline answers observer recovery" {
		t.Errorf("the chain is %q", got)
	}
}

// TestObserverOfWork: the observer hears of the calls about work that came to their handlers.
func TestObserverOfWork(t *testing.T) {
	var n notes
	f := &foreign{claimable: 2, state: 0}
	s := start(t, Config{Observer: &n}, f)
	w := s.work()
	_, _ = w.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 5, LeaseDuration: minute()})
	_, _ = w.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: -1})
	_, _ = w.CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: "t"})
	_, _ = w.RenewLease(t.Context(), &joboncev1.RenewLeaseRequest{})
	_ = s.invokeRaw(t, joboncev1.WorkService_CompleteWork_FullMethodName, []byte{0xff})
	want := []string{"ClaimWork 2 ", "ClaimWork 0 INVALID_FIELD", "CompleteWork 1 ", "RenewLease 0 INVALID_FIELD", "refused INVALID_FIELD"}
	if got := n.take(); !slices.Equal(got, want) {
		t.Errorf("observed %q, want %q", got, want)
	}
}

// statsNotes is a stats handler that keeps how calls ended.
type statsNotes struct{ notes }

func (*statsNotes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*statsNotes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*statsNotes) HandleConn(context.Context, stats.ConnStats)                       {}
func (n *statsNotes) HandleRPC(_ context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok {
		n.add("%v", status.Code(end.Error))
	}
}

func TestStatsHandler(t *testing.T) {
	n := new(statsNotes)
	s := start(t, Config{StatsHandler: n}, new(memoryJobs))
	_, _ = s.RecordDelivery(t.Context(), text("j", "{}"))
	_, _ = s.RecordDelivery(t.Context(), text("", "{}"))
	_ = s.invokeRaw(t, getPath, []byte{0xff})
	s.stop()
	<-s.stopped
	if got := n.take(); !slices.Equal(got, []string{"OK", "InvalidArgument", "InvalidArgument"}) {
		t.Errorf("heard of %q", got)
	}
}
