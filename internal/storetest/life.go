package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wantEnded checks an error of a call whose context ended: it says so, and what that means for the write.
func wantEnded(t *testing.T, err, cause error) {
	t.Helper()
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want it to match %v", err, cause)
	}
	if !errors.Is(err, job.ErrUnavailable) && !errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("%v does not say what became of the write", err)
	}
}

func endedContext(t *testing.T, e Env) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancel2 := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel2()
	for _, c := range []struct {
		ctx   context.Context
		cause error
	}{{cancelled, context.Canceled}, {expired, context.DeadlineExceeded}} {
		out := e.Store.Record(c.ctx, []job.Delivery{check(t, input("j", "")), check(t, input("k", ""))})
		if len(out) != 2 {
			t.Fatalf("%d outcomes, want 2", len(out))
		}
		for _, o := range out {
			wantEnded(t, o.Err, c.cause)
		}
		if _, err := e.Store.Get(c.ctx, "j", false); !errors.Is(err, c.cause) {
			t.Errorf("Get: %v, want %v", err, c.cause)
		}
	}
	// The store is none the worse for it.
	if o := record(t, e.Store, input("l", "")); !o.Verdict.StartWork {
		t.Errorf("after that: %+v", o.Verdict)
	}
}

// cancelUnderWay cancels calls at any moment. Whoever got an error repeats the call with its request id and learns the
// truth; the counter is between what was acknowledged and what was attempted.
func cancelUnderWay(t *testing.T, e Env) {
	ids := jobIDs(20)
	var mu sync.Mutex
	first, acknowledged, attempted := map[string]string{}, map[string]int64{}, map[string]int64{}
	ctx := deadline(t)
	together(4, func(w int) {
		for _, id := range ids {
			d := check(t, input(id, ""))
			for try := 0; ; try++ {
				callCtx, cancel := context.WithCancel(ctx)
				if try == 0 {
					go cancel() // races with the call, on purpose
				}
				o := e.Store.Record(callCtx, []job.Delivery{d})[0]
				cancel()
				mu.Lock()
				attempted[id]++
				if o.Err == nil {
					acknowledged[id]++
					if o.Verdict.StartWork {
						if other, ok := first[id]; ok && other != d.RequestID {
							t.Errorf("%s: two were first", id)
						}
						first[id] = d.RequestID
					}
				}
				mu.Unlock()
				if o.Err == nil {
					break
				}
				if try > 0 {
					t.Errorf("%s: %v", id, o.Err)
					break
				}
				wantEnded(t, o.Err, context.Canceled)
			}
		}
	})
	for _, id := range ids {
		if first[id] == "" {
			t.Errorf("%s: nobody was first", id)
		}
		if n := get(t, e.Store, id).Deliveries; n < acknowledged[id] || n > attempted[id] {
			t.Errorf("%s: %d deliveries stored, want %d to %d", id, n, acknowledged[id], attempted[id])
		}
	}
}

func useAfterClose(t *testing.T, e Env) {
	d := check(t, input("j", ""))
	var calls sync.WaitGroup
	for range 4 { // some before, some during, some after: each is answered or refused, none hangs or panics
		calls.Go(func() {
			for range 20 {
				if o := e.Store.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil && !errors.Is(o.Err, job.ErrUnavailable) {
					t.Errorf("while closing: %v", o.Err)
				}
			}
		})
	}
	if err := e.Store.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	calls.Wait()
	if err := e.Store.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if o := e.Store.Record(t.Context(), []job.Delivery{d})[0]; !errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("Record after Close: %v", o.Err)
	}
	if _, err := e.Store.Get(t.Context(), "j", false); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Get after Close: %v", err)
	}
	if err := e.Store.Check(t.Context()); err == nil {
		t.Error("Check after Close found nothing wrong")
	}
}

func survivesReopening(t *testing.T, e Env) {
	before := record(t, e.Store, input("j", "r"))
	if err := e.Store.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	testenv.Must(t, e.Store.Close())
	again := e.Reopen()
	wantDuplicate(t, record(t, again, input("j", "")), 2)
	wantFirst(t, record(t, again, input("j", "r")), 3)
	if r := get(t, again, "j"); r.Body != check(t, input("j", "r")).Body || !r.FirstSeen.Equal(before.Record.FirstSeen) {
		t.Errorf("after reopening: %+v", r)
	}
}
