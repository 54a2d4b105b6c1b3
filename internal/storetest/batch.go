package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
)

func emptyBatch(t *testing.T, e Env) {
	if out := e.Store.Record(t.Context(), nil); len(out) != 0 {
		t.Errorf("an empty batch gave %d outcomes", len(out))
	}
}

func batchKeepsOrder(t *testing.T, e Env) {
	// 97 and 256 share no factor, so the ids come in an order that is neither sorted nor reversed.
	const n = 256
	var batch []job.Delivery
	for i := range n {
		batch = append(batch, check(t, input(fmt.Sprintf("job-%03d", i*97%n), "")))
	}
	for round := int64(1); round <= 2; round++ {
		for i, o := range e.Store.Record(t.Context(), batch) {
			if o.Err != nil || o.Record.JobID != batch[i].JobID || o.Record.Deliveries != round {
				t.Fatalf("round %d, outcome %d is %q with %d deliveries, %v; want %q", round, i, o.Record.JobID,
					o.Record.Deliveries, o.Err, batch[i].JobID)
			}
			wantFirst(t, o, round) // the same request ids in both rounds
		}
	}
}

func batchHoldsOneIDTwice(t *testing.T, e Env) {
	out := e.Store.Record(t.Context(), []job.Delivery{
		check(t, input("twice", "r1")), check(t, input("other", "")), check(t, input("twice", "r2")),
		check(t, input("twice", "r1")), check(t, input("twice", "r3")),
	})
	wantFirst(t, out[0], 1)
	wantFirst(t, out[1], 1)
	wantDuplicate(t, out[2], 2)
	wantFirst(t, out[3], 3)
	wantDuplicate(t, out[4], 4)
	out = e.Store.Record(t.Context(), []job.Delivery{check(t, input("twice", "r4")), check(t, input("twice", "r1"))})
	wantDuplicate(t, out[0], 5)
	wantFirst(t, out[1], 6)
	if r := get(t, e.Store, "twice"); r.Deliveries != 6 || r.RequestID != "r1" {
		t.Errorf("stored %d deliveries, made by %q; want 6, r1", r.Deliveries, r.RequestID)
	}
}

// together runs f in n goroutines that start at once, and waits for them.
func together(n int, f func(worker int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for w := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			f(w)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// tally counts what concurrent callers were told.
type tally struct {
	mu         sync.Mutex
	first, dup map[string]int
	top        map[string]int64
	errs       []error
}

func newTally() *tally {
	return &tally{first: map[string]int{}, dup: map[string]int{}, top: map[string]int64{}}
}

func (c *tally) add(id string, o job.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o.Err != nil:
		c.errs = append(c.errs, fmt.Errorf("%s: %w", id, o.Err))
	case o.Verdict.Disposition == job.First && o.Verdict.StartWork:
		c.first[id]++
	case o.Verdict.Disposition == job.Duplicate && !o.Verdict.StartWork:
		c.dup[id]++
	default:
		c.errs = append(c.errs, fmt.Errorf("%s: unexpected %+v", id, o.Verdict))
	}
	c.top[id] = max(c.top[id], o.Record.Deliveries)
}

// check holds the tally against one first per id and calls deliveries of each.
func (c *tally) check(t *testing.T, s job.Store, ids []string, calls int64) {
	t.Helper()
	for _, err := range c.errs {
		t.Error(err)
	}
	for _, id := range ids {
		if c.first[id] != 1 {
			t.Errorf("%s: %d were first", id, c.first[id])
		}
		if got := get(t, s, id).Deliveries; got != calls {
			t.Errorf("%s: %d deliveries stored, want %d", id, got, calls)
		}
		if c.top[id] != calls {
			t.Errorf("%s: the highest count answered is %d, want %d", id, c.top[id], calls)
		}
	}
}

func jobIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("job-%03d", i)
	}
	return ids
}

func raceOnManyIDs(t *testing.T, e Env) {
	const workers = 8
	ids, c := jobIDs(50), newTally()
	together(workers, func(int) {
		for _, id := range ids {
			c.add(id, e.Store.Record(t.Context(), []job.Delivery{check(t, input(id, ""))})[0])
		}
	})
	c.check(t, e.Store, ids, workers)
}

func raceOfBatches(t *testing.T, e Env) {
	const workers = 4
	ids, c := jobIDs(40), newTally()
	together(workers, func(w int) {
		var batch []job.Delivery
		for i := range ids { // each worker in an order of its own, so that batches overlap crosswise
			batch = append(batch, check(t, input(ids[(i*7+w*11)%len(ids)], "")))
		}
		for i, o := range e.Store.Record(t.Context(), batch) {
			c.add(batch[i].JobID, o)
		}
	})
	c.check(t, e.Store, ids, workers)
}

func raceOfOneRequest(t *testing.T, e Env) {
	const workers = 6
	ids := jobIDs(10)
	for _, id := range ids {
		out := make([]job.Outcome, workers)
		together(workers, func(w int) {
			out[w] = e.Store.Record(t.Context(), []job.Delivery{check(t, input(id, "the same"))})[0]
		})
		for _, o := range out {
			want(t, o, job.First, true, true, o.Record.Deliveries)
		}
		if got := get(t, e.Store, id).Deliveries; got != workers {
			t.Errorf("%s: %d deliveries stored, want %d", id, got, workers)
		}
	}
}
