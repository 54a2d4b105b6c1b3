package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// eachGate is a gate that is a job.EachRecorder too: the test settles each delivery itself.
type eachGate struct {
	*gate
	writes chan *eachWrite
}

// eachWrite is one call of RecordEach.
type eachWrite struct {
	ctx        context.Context
	deliveries []job.Delivery
	settle     func(int, job.Outcome)
	ret        chan func() // RecordEach runs what comes, and returns
}

func newEachGate() *eachGate { return &eachGate{gate: newGate(), writes: make(chan *eachWrite, 100)} }

func (g *eachGate) RecordEach(ctx context.Context, ds []job.Delivery, settle func(int, job.Outcome)) {
	w := &eachWrite{ctx: ctx, deliveries: ds, settle: settle, ret: make(chan func(), 1)}
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.JobID)
	}
	g.batches <- ids
	g.writes <- w
	(<-w.ret)()
}

// ok settles a delivery well.
func (w *eachWrite) ok(i int) {
	w.settle(i, job.Outcome{Record: job.Record{JobID: w.deliveries[i].JobID, Deliveries: 1}})
}

func nothing() {}

// twoUnderWay has the deliveries slow and quick, with bodies of 10 bytes, under way in one batch.
func twoUnderWay(t *testing.T, s *batch.Store, g *eachGate) (w *eachWrite, slow, quick <-chan job.Outcome) {
	t.Helper()
	held := hold(t, s, g.gate)
	first := <-g.writes
	outs := queue(t.Context(), s, 1, delivery("slow", 10), delivery("quick", 10))
	first.ok(0)
	first.ret <- nothing
	wantOK(t, <-held, "held")
	if got := <-g.batches; !slices.Equal(got, []string{"slow", "quick"}) {
		t.Fatalf("the batch is %v", got)
	}
	return <-g.writes, outs[0], outs[1]
}

// TestOneThatTakesLongHoldsUpNobody: its neighbour has its answer before it, and the lane writes the next batch, also one
// with the same job.
func TestOneThatTakesLongHoldsUpNobody(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{})
	w, slow, quick := twoUnderWay(t, s, g)
	w.ok(1)
	wantOK(t, <-quick, "quick") // while RecordEach still runs
	w.ret <- nothing
	again := start(t.Context(), s, delivery("slow", 0))
	next := <-g.writes
	if err := w.ctx.Err(); err != nil {
		t.Errorf("the context of what still runs has ended: %v", err)
	}
	next.ok(0)
	next.ret <- nothing
	wantOK(t, <-again, "slow")
	select {
	case o := <-slow:
		t.Errorf("what still runs is answered with %+v", o)
	default:
	}
	w.ok(0)
	wantOK(t, <-slow, "slow")
	select {
	case <-w.ctx.Done():
	case <-time.After(time.Minute):
		t.Error("the context of a write that is over goes on")
	}
}

// TestTheFirstOutcomeCounts: a store that settles twice changes no answer, and nothing is counted twice.
func TestTheFirstOutcomeCounts(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{})
	w, slow, quick := twoUnderWay(t, s, g)
	w.settle(0, job.Outcome{Err: job.ErrRecordUnusable})
	w.ok(0)
	w.ok(1)
	w.settle(1, job.Outcome{Err: job.ErrRecordUnusable})
	w.ret <- nothing
	if o := <-slow; !errors.Is(o.Err, job.ErrRecordUnusable) {
		t.Errorf("slow: %v", o.Err)
	}
	wantOK(t, <-quick, "quick")
	if n, bytes := s.Queued(); n != 0 || bytes != 0 {
		t.Errorf("%d deliveries with %d bytes are left", n, bytes)
	}
}

func TestCloseWaitsForWhatTakesLong(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{})
	w, slow, quick := twoUnderWay(t, s, g)
	w.ok(1)
	w.ret <- nothing
	<-quick
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case <-g.closed:
		t.Fatal("the store was closed under a delivery")
	case <-done:
		t.Fatal("Close returned under a delivery")
	case <-time.After(10 * time.Millisecond):
	}
	w.ok(0)
	wantOK(t, <-slow, "slow")
	testenv.OK(t, <-done)
}

// TestWhatTakesLongCounts: the bounds of the queue hold for it until it has its outcome, whether its caller waits or not.
func TestWhatTakesLongCounts(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{QueueItems: 3})
	w, _, quick := twoUnderWay(t, s, g)
	w.ok(1)
	w.ret <- nothing
	<-quick
	if n, bytes := s.Queued(); n != 1 || bytes != 10 {
		t.Errorf("%d deliveries with %d bytes count, want the one that still runs", n, bytes)
	}
	var more []<-chan job.Outcome
	for i := range 2 {
		more = append(more, start(t.Context(), s, delivery(fmt.Sprint(i), 0)))
	}
	for batch.Waiting(s) < 3 {
		time.Sleep(time.Millisecond) // until both have queued; there is nothing to be told by
	}
	if o := s.RecordOne(t.Context(), delivery("refused", 0)); !errors.Is(o.Err, job.ErrOverloaded) {
		t.Errorf("past the bound: %v", o.Err)
	}
	w.ok(0)
	for batch.Waiting(s) > 0 {
		next := <-g.writes
		for i := range next.deliveries {
			next.ok(i)
		}
		next.ret <- nothing
	}
	wantOK(t, <-more[0], "0")
	wantOK(t, <-more[1], "1")
}

// TestPanicWhileOthersAreSettled: what has its outcome keeps it, the rest is not known, and the lane goes on.
func TestPanicWhileOthersAreSettled(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{})
	w, slow, quick := twoUnderWay(t, s, g)
	w.ok(1)
	w.ret <- func() { panic("a fault") }
	wantOK(t, <-quick, "quick")
	if o := <-slow; !errors.Is(o.Err, job.ErrOutcomeUnknown) {
		t.Errorf("slow: %v", o.Err)
	}
	w.ok(0) // too late
	after := start(t.Context(), s, delivery("after", 0))
	next := <-g.writes
	next.ok(0)
	next.ret <- nothing
	wantOK(t, <-after, "after")
	testenv.OK(t, s.Close())
}

// TestOneAnswerForManyDoesNotWaitForOne: deliveries that share an answer with some that take long wait for those for a
// second from when the first is known.
func TestOneAnswerForManyDoesNotWaitForOne(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		name  string
		after []time.Duration // when each is known; 0 before RecordEach returns
		took  time.Duration
	}{
		{"all at once", []time.Duration{0, 0, 0}, 0},
		{"one a little later", []time.Duration{0, 900 * time.Millisecond, 0}, 900 * time.Millisecond},
		{"one much later", []time.Duration{0, never, 0}, time.Second},
		{"all late", []time.Duration{5 * time.Second, 5900 * time.Millisecond, never}, 6 * time.Second},
		{"alone", []time.Duration{8 * time.Second}, 8 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newEachGate()
				s := batch.New(g, batch.Config{})
				var ds []job.Delivery
				for i := range c.after {
					ds = append(ds, delivery(fmt.Sprint(i), 0))
				}
				from, all := time.Now(), make(chan []job.Outcome, 1)
				go s.Record(t.Context(), []job.Delivery{delivery("before", 0)})
				before := <-g.writes // so that those that come meanwhile are in one batch
				go func() { all <- s.Record(t.Context(), ds) }()
				synctest.Wait()
				before.ok(0)
				before.ret <- nothing
				w := <-g.writes
				for i, after := range c.after {
					if after == 0 {
						w.ok(i)
						continue
					}
					time.AfterFunc(after, func() { w.ok(i) })
				}
				w.ret <- nothing
				got := <-all
				if took := time.Since(from); took != c.took {
					t.Errorf("answered after %v, want %v", took, c.took)
				}
				for i, after := range c.after {
					if after <= c.took {
						wantOK(t, got[i], fmt.Sprint(i))
					} else if !errors.Is(got[i].Err, job.ErrOutcomeUnknown) {
						t.Errorf("%d is told %v", i, got[i].Err)
					}
				}
				if err := s.Close(); err != nil { // when all are known
					t.Error(err)
				}
			})
		})
	}
}

// TestTimeoutOfWhatTakesLong: when the write's time is up, the callers hear what is known of their deliveries, and nothing
// of a deadline that is not theirs.
func TestTimeoutOfWhatTakesLong(t *testing.T) {
	g := newEachGate()
	s := batch.New(g, batch.Config{Timeout: time.Nanosecond})
	for _, c := range []struct{ told, want error }{
		{fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, context.DeadlineExceeded), job.ErrOutcomeUnknown},
		{fmt.Errorf("%w: %w", job.ErrUnavailable, context.DeadlineExceeded), job.ErrUnavailable},
		{context.DeadlineExceeded, job.ErrOutcomeUnknown},
		{job.ErrRecordUnusable, job.ErrRecordUnusable},
		{nil, nil},
	} {
		out := start(t.Context(), s, delivery("j", 0))
		w := <-g.writes
		w.ret <- nothing
		<-w.ctx.Done()
		w.settle(0, job.Outcome{Err: c.told})
		o := <-out
		if !errors.Is(o.Err, c.want) || errors.Is(o.Err, context.DeadlineExceeded) {
			t.Errorf("%v is told as %v, want %v", c.told, o.Err, c.want)
		}
	}
}
