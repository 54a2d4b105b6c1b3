package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// tally is what the callers got to hear of one job.
type tally struct {
	mu                      sync.Mutex
	attempted, acknowledged int64
	firsts                  []string // request ids
}

// frontends call a store like webhook frontends that repeat a call with its request id until it is answered.
type frontends struct {
	store   *batch.Store
	acked   atomic.Int64
	watch   sync.Mutex
	target  int64
	reached chan struct{}
}

// after returns a channel that is closed once n more calls have been answered.
func (f *frontends) after(n int64) <-chan struct{} {
	f.watch.Lock()
	defer f.watch.Unlock()
	f.target, f.reached = f.acked.Load()+n, make(chan struct{})
	return f.reached
}

func (f *frontends) acknowledge() {
	f.watch.Lock()
	defer f.watch.Unlock()
	if f.acked.Add(1) >= f.target && f.reached != nil {
		close(f.reached)
		f.reached = nil
	}
}

func (f *frontends) call(ctx context.Context, d job.Delivery, c *tally) error {
	for {
		o := f.store.RecordOne(ctx, d)
		c.mu.Lock()
		c.attempted++
		if o.Err == nil {
			c.acknowledged++
			if o.Verdict.Disposition == job.First {
				c.firsts = append(c.firsts, d.RequestID)
			}
		}
		c.mu.Unlock()
		switch {
		case o.Err == nil:
			f.acknowledge()
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("no answer until the end: %w", o.Err)
		case !errors.Is(o.Err, job.ErrUnavailable) && !errors.Is(o.Err, job.ErrOutcomeUnknown):
			return o.Err
		}
		select { // as a client backs off
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestKilledUnderLoad kills the database while frontends write, and starts it again: the store serves again unaided, and
// every answer that it gave, before and after, is true.
func TestKilledUnderLoad(t *testing.T) {
	const pairs = 6 // of frontends; both of a pair deliver the same jobs
	m := testenv.PrivateMongo(t)
	s := open(t, mongostore.Options{URI: m.URI})
	f := &frontends{store: batch.New(s, batch.Config{Lanes: 2, Timeout: 5 * time.Second, Logger: testenv.Logger(t)})}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	var calls sync.WaitGroup
	var tallies sync.Map // job id to *tally
	stop := make(chan struct{})
	early := f.after(150)
	for i := range 2 * pairs {
		calls.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("job-%d-%d", i%pairs, n)
				c, _ := tallies.LoadOrStore(id, &tally{})
				in := job.Input{JobID: id, RequestID: fmt.Sprintf("request-%d-%d", i, n)}
				d, err := in.Delivery(job.MaxBodyBytes)
				if err == nil {
					err = f.call(ctx, d, c.(*tally))
				}
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
			}
		})
	}
	wait := func(what string, reached <-chan struct{}) {
		t.Helper()
		select {
		case <-reached:
		case <-ctx.Done():
			t.Errorf("not enough answers %s", what)
		}
	}
	wait("before the database was killed", early)
	m.Kill(t)
	if err := s.Check(ctx); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Check of a killed database: %v", err)
	}
	late := f.after(150)
	m.Start(t)
	wait("after the database was started", late)
	close(stop)
	calls.Wait()

	jobs := 0
	tallies.Range(func(id, v any) bool {
		jobs++
		c := v.(*tally)
		r, err := s.Get(ctx, id.(string), false)
		if err != nil {
			t.Errorf("%s was acknowledged: %v", id, err)
			return false
		}
		if len(c.firsts) != 1 || r.RequestID != c.firsts[0] {
			t.Errorf("%s: first for %q, the record is of %q", id, c.firsts, r.RequestID)
		}
		// A write that was under way when the database died may have been applied, and is then repeated by the store
		// itself: once for each call of the pair.
		if r.Deliveries < c.acknowledged || r.Deliveries > c.attempted+2 {
			t.Errorf("%s: %d deliveries, acknowledged %d, attempted %d", id, r.Deliveries, c.acknowledged, c.attempted)
		}
		return true
	})
	if jobs < 150/2 {
		t.Errorf("only %d jobs", jobs)
	}
	t.Logf("%d answers on %d jobs", f.acked.Load(), jobs)
}
