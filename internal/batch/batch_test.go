package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a store that tells of every batch it is given and waits to be let through.
type gate struct {
	job.Store // panics when anything else is called
	batches   chan []string
	let       chan func([]job.Delivery) []job.Outcome // nil: answer each with Deliveries 1
	closed    chan struct{}
}

func newGate() *gate {
	return &gate{batches: make(chan []string, 100), let: make(chan func([]job.Delivery) []job.Outcome, 100), closed: make(chan struct{})}
}

func (g *gate) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.JobID)
	}
	g.batches <- ids
	select {
	case f := <-g.let:
		if f != nil {
			return f(ds)
		}
	case <-ctx.Done():
		return fail(ds, fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err()))
	}
	out := make([]job.Outcome, len(ds))
	for i, d := range ds {
		out[i].Record = job.Record{JobID: d.JobID, Deliveries: 1}
	}
	return out
}

func (g *gate) Close() error { close(g.closed); return nil }

func fail(ds []job.Delivery, err error) []job.Outcome {
	out := make([]job.Outcome, len(ds))
	for i := range out {
		out[i].Err = err
	}
	return out
}

func delivery(id string, size int) job.Delivery {
	return job.Delivery{JobID: id, RequestID: "r", Body: job.Body{Kind: job.BodyText, Data: strings.Repeat("x", size)}}
}

// start records id in the background and returns where its outcome comes.
func start(ctx context.Context, s *batch.Store, d job.Delivery) <-chan job.Outcome {
	out := make(chan job.Outcome, 1)
	go func() { out <- s.RecordOne(ctx, d) }()
	return out
}

// hold starts one delivery and waits until it is under way, so that the next ones queue behind it.
func hold(t *testing.T, s *batch.Store, g *gate) <-chan job.Outcome {
	t.Helper()
	out := start(t.Context(), s, delivery("held", 0))
	if got := <-g.batches; !slices.Equal(got, []string{"held"}) {
		t.Fatalf("a lone call went out as %v", got)
	}
	return out
}

// queue queues deliveries one after the other and returns where their outcomes come. waiting counts what waits already.
func queue(ctx context.Context, s *batch.Store, waiting int, ds ...job.Delivery) []<-chan job.Outcome {
	var out []<-chan job.Outcome
	for i, d := range ds {
		out = append(out, start(ctx, s, d))
		for batch.Waiting(s) < waiting+i+1 {
			runtime.Gosched() // until the call has queued; there is nothing to be told by
		}
	}
	return out
}

func wantOK(t *testing.T, o job.Outcome, id string) {
	t.Helper()
	if o.Err != nil || o.Record.JobID != id {
		t.Errorf("outcome %q, %v; want %q", o.Record.JobID, o.Err, id)
	}
}

func TestWhatQueuesFormsTheNextBatch(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{MaxItems: 3, MaxBytes: 1000})
	held := hold(t, s, g)
	outs := queue(t.Context(), s, 1, delivery("a", 0), delivery("b", 0), delivery("c", 0), delivery("d", 0),
		delivery("e", 990), delivery("f", 20), delivery("g", 5000))
	for range 6 {
		g.let <- nil
	}
	wantOK(t, <-held, "held")
	for i, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		wantOK(t, <-outs[i], id)
	}
	for _, want := range [][]string{{"a", "b", "c"}, {"d", "e"}, {"f"}, {"g"}} {
		if got := <-g.batches; !slices.Equal(got, want) {
			t.Errorf("batch %v, want %v", got, want)
		}
	}
}

func TestWhatIsObserved(t *testing.T) {
	g := newGate()
	var sizes []int // the lane's goroutine alone writes it, before Close returns
	s := batch.New(g, batch.Config{Observe: func(n int, took time.Duration) {
		if took < 0 {
			t.Errorf("a write took %v", took)
		}
		sizes = append(sizes, n)
	}})
	held := hold(t, s, g)
	outs := queue(t.Context(), s, 1, delivery("a", 10), delivery("b", 20))
	if n, bytes := s.Queued(); n != 3 || bytes != 30 {
		t.Errorf("%d deliveries with %d bytes are queued, want 3 with 30", n, bytes)
	}
	g.let <- nil
	g.let <- nil
	<-held
	<-outs[0]
	<-outs[1]
	testenv.OK(t, s.Close())
	if !slices.Equal(sizes, []int{1, 2}) {
		t.Errorf("observed writes of %v deliveries, want 1 and 2", sizes)
	}
	if n, bytes := s.Queued(); n != 0 || bytes != 0 {
		t.Errorf("%d deliveries with %d bytes are left", n, bytes)
	}
}

// overlap is a store that notices when one job is in two calls at once.
type overlap struct {
	job.Store
	t    *testing.T
	mu   sync.Mutex
	busy map[string]int
}

func (o *overlap) Record(_ context.Context, ds []job.Delivery) []job.Outcome {
	o.mark(ds, 1)
	for range 50 {
		runtime.Gosched() // gives the other lanes every chance
	}
	o.mark(ds, -1)
	return make([]job.Outcome, len(ds))
}

func (o *overlap) mark(ds []job.Delivery, by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range ds {
		if o.busy[d.JobID] += by; o.busy[d.JobID] > 1 {
			o.t.Errorf("%s is in two batches", d.JobID)
		}
	}
}

func TestOneJobIsNeverInTwoBatches(t *testing.T) {
	s := batch.New(&overlap{t: t, busy: map[string]int{}}, batch.Config{Lanes: 4, MaxItems: 1})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 100 {
				s.RecordOne(t.Context(), delivery(fmt.Sprint(i%5), 0))
			}
		})
	}
	wg.Wait()
}

func TestBatchOfOneCaller(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{Lanes: 3})
	for range 10 {
		g.let <- nil
	}
	ds := []job.Delivery{delivery("a", 0), delivery("b", 0), delivery("c", 0), delivery("a", 0)}
	for i, o := range s.Record(t.Context(), ds) {
		wantOK(t, o, ds[i].JobID)
	}
}

func TestEachCallerKeepsItsDeadline(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	underWay := start(ctx, s, delivery("under way", 0))
	<-g.batches
	waiting := queue(ctx, s, 1, delivery("waiting", 0))
	patient := queue(t.Context(), s, 2, delivery("patient", 0))
	cancel()
	o := <-underWay
	if !errors.Is(o.Err, job.ErrOutcomeUnknown) || !errors.Is(o.Err, context.Canceled) {
		t.Errorf("cancelled under way: %v", o.Err)
	}
	o = <-waiting[0]
	if !errors.Is(o.Err, job.ErrUnavailable) || !errors.Is(o.Err, context.Canceled) {
		t.Errorf("cancelled while it waited: %v", o.Err)
	}
	g.let <- nil
	g.let <- nil
	wantOK(t, <-patient[0], "patient")
	if got := <-g.batches; !slices.Equal(got, []string{"patient"}) {
		t.Errorf("the second batch was %v: what its caller gave up before it was sent must not be written", got)
	}
}

func TestBatchTimeoutIsNotTheCallers(t *testing.T) {
	s := batch.New(newGate(), batch.Config{Timeout: time.Nanosecond})
	o := s.RecordOne(t.Context(), delivery("j", 0))
	if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the outcome unknown and no deadline of the caller's", o.Err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	for name, cfg := range map[string]batch.Config{"items": {QueueItems: 3}, "bytes": {QueueBytes: 250}} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s := batch.New(g, cfg)
			held := hold(t, s, g)
			outs := queue(t.Context(), s, 1, delivery("a", 100), delivery("b", 100))
			if o := s.RecordOne(t.Context(), delivery("c", 100)); !errors.Is(o.Err, job.ErrOverloaded) {
				t.Errorf("past the bound: %v, want ErrOverloaded", o.Err)
			}
			for range 3 {
				g.let <- nil
			}
			<-held
			wantOK(t, <-outs[0], "a")
			wantOK(t, <-outs[1], "b")
			wantOK(t, s.RecordOne(t.Context(), delivery("d", 100)), "d") // it recovers
			if n := batch.Waiting(s); n != 0 {
				t.Errorf("%d are still counted", n)
			}
		})
	}
}

func TestOneBadItemSpoilsNoOther(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{})
	held := hold(t, s, g)
	outs := queue(t.Context(), s, 1, delivery("good", 0), delivery("bad", 0))
	g.let <- nil
	g.let <- func(ds []job.Delivery) []job.Outcome {
		return []job.Outcome{{Record: job.Record{JobID: "good"}}, {Err: job.ErrOutcomeUnknown}}
	}
	<-held
	wantOK(t, <-outs[0], "good")
	if o := <-outs[1]; !errors.Is(o.Err, job.ErrOutcomeUnknown) {
		t.Errorf("bad: %v", o.Err)
	}
}

func TestPanicInTheStore(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{})
	g.let <- func([]job.Delivery) []job.Outcome { panic("a fault") }
	if o := s.RecordOne(t.Context(), delivery("j", 0)); !errors.Is(o.Err, job.ErrOutcomeUnknown) {
		t.Errorf("panic: %v", o.Err)
	}
	g.let <- nil
	wantOK(t, s.RecordOne(t.Context(), delivery("k", 0)), "k")
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	g := newGate()
	s := batch.New(g, batch.Config{})
	held := hold(t, s, g)
	queued := queue(t.Context(), s, 1, delivery("queued", 0))
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case <-g.closed:
		t.Fatal("the store was closed under a batch")
	case <-done:
		t.Fatal("Close returned under a batch")
	default:
	}
	g.let <- nil
	g.let <- nil
	wantOK(t, <-held, "held")
	wantOK(t, <-queued[0], "queued")
	testenv.OK(t, <-done)
	if o := s.RecordOne(t.Context(), delivery("late", 0)); !errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("after Close: %v", o.Err)
	}
}
