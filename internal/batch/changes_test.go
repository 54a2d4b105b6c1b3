package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// changer is a store that hands each write of changes of leases to the test, which settles them.
type changer struct {
	job.Store
	writes chan *changeWrite
}

type changeWrite struct {
	changes []job.LeaseChange
	settle  func(int, job.LeaseOutcome)
	ret     chan struct{} // closed to let ChangeEach return
}

func (c *changer) ChangeLeases(context.Context, []job.LeaseChange) []job.LeaseOutcome {
	panic("each is to be settled by itself")
}

func (c *changer) ChangeEach(_ context.Context, changes []job.LeaseChange, settle func(int, job.LeaseOutcome)) {
	w := &changeWrite{changes, settle, make(chan struct{})}
	c.writes <- w
	<-w.ret
}

func (c *changer) Close() error { return nil }

// all settles what is left with err and ends the write.
func (w *changeWrite) all(err error) {
	for i := range w.changes {
		w.settle(i, job.LeaseOutcome{Lease: job.Lease{Token: w.changes[i].Token}, Err: err})
	}
	close(w.ret)
}

func (w *changeWrite) jobs() (ids []string) {
	for _, c := range w.changes {
		ids = append(ids, c.JobID)
	}
	return ids
}

func newChanger(t *testing.T, cfg batch.Config) (*changer, *batch.Store) {
	c := &changer{writes: make(chan *changeWrite, 100)}
	s := batch.New(c, cfg)
	t.Cleanup(func() {
		testenv.OK(t, s.Close())
		if n := s.QueuedChanges(); n != 0 {
			t.Errorf("%d changes are left", n)
		}
	})
	return c, s
}

// change makes a change in the background and returns once it counts.
func change(ctx context.Context, s *batch.Store, c job.LeaseChange) <-chan error {
	out, before := make(chan error, 1), s.QueuedChanges()
	go func() {
		_, err := job.Change(ctx, s, c)
		out <- err
	}()
	for s.QueuedChanges() == before {
		runtime.Gosched() // there is nothing to be told by
	}
	return out
}

func complete(id string) job.LeaseChange { return job.CompleteWork(id, "token of "+id, "done") }
func renew(id string) job.LeaseChange    { return job.RenewLease(id, "token of "+id, time.Minute) }
func release(id string) job.LeaseChange {
	return job.ReleaseWork(id, "token of "+id, job.Release{})
}

// TestChangesShareWrites: those that wait share the next write, each kind its own, and one that fails spoils no other.
func TestChangesShareWrites(t *testing.T) {
	c, s := newChanger(t, batch.Config{})
	for name, kind := range map[string]func(string) job.LeaseChange{"renew": renew, "complete": complete, "release": release} {
		t.Run(name, func(t *testing.T) {
			held := change(t.Context(), s, kind("held"))
			first := <-c.writes
			a, b := change(t.Context(), s, kind("a")), change(t.Context(), s, kind("b"))
			ctx, leave := context.WithCancel(t.Context())
			gone := change(ctx, s, kind("gone"))
			leave()
			if err := <-gone; !errors.Is(err, job.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("left while it waited: %v", err)
			}
			first.all(nil)
			second := <-c.writes
			if got := second.jobs(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("the second write has %v", got)
			}
			second.settle(0, job.LeaseOutcome{Err: job.ErrLeaseLost})
			second.all(nil)
			if err := <-a; !errors.Is(err, job.ErrLeaseLost) {
				t.Errorf("a: %v", err)
			}
			testenv.OK(t, errors.Join(<-held, <-b))
		})
	}
}

// TestRenewalsPassTheOthers: leases are renewed while completions are stuck and their queue is full.
func TestRenewalsPassTheOthers(t *testing.T) {
	for name, cfg := range map[string]batch.Config{"items": {QueueItems: 3}, "bytes": {QueueBytes: 3 * len("done")}} {
		t.Run(name, func(t *testing.T) {
			c, s := newChanger(t, cfg)
			outs := []<-chan error{change(t.Context(), s, complete("stuck"))}
			stuck := <-c.writes
			for i := range 2 {
				outs = append(outs, change(t.Context(), s, complete(fmt.Sprint(i))))
			}
			if err := job.Complete(t.Context(), s, "one too many", "token", "done"); !errors.Is(err, job.ErrOverloaded) {
				t.Errorf("past the bound: %v", err)
			}
			renewed := change(t.Context(), s, renew("r"))
			(<-c.writes).all(nil)
			if err := <-renewed; err != nil {
				t.Errorf("renewed: %v", err)
			}
			stuck.all(nil)
			(<-c.writes).all(nil)
			for _, out := range outs {
				testenv.OK(t, <-out)
			}
		})
	}
}

// TestOneChangeThatTakesLong: it holds up neither its neighbours nor the lane, and its caller may leave.
func TestOneChangeThatTakesLong(t *testing.T) {
	c, s := newChanger(t, batch.Config{})
	held := change(t.Context(), s, complete("held"))
	first := <-c.writes
	ctx, leave := context.WithCancel(t.Context())
	slow, quick := change(ctx, s, complete("slow")), change(t.Context(), s, complete("quick"))
	first.all(nil)
	w := <-c.writes
	w.settle(1, job.LeaseOutcome{})
	if err := errors.Join(<-held, <-quick); err != nil { // while ChangeEach still runs
		t.Error(err)
	}
	close(w.ret)
	next := change(t.Context(), s, complete("next"))
	(<-c.writes).all(nil)
	testenv.OK(t, <-next)
	leave()
	if err := <-slow; !errors.Is(err, job.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("left under way: %v", err)
	}
	w.settle(0, job.LeaseOutcome{})
}

// TestManyChangesInOneCall: those with one token are made one after the other, whatever their kinds, and none after one
// of which nobody knows. For one that takes long the others wait for a second.
func TestManyChangesInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newChanger(t, batch.Config{})
		changes := []job.LeaseChange{renew("a"), complete("a"), renew("b"), renew("b"), release("c"), complete("lost"), complete("lost")}
		all, from := make(chan []job.LeaseOutcome, 1), time.Now()
		var before []*changeWrite // of each kind, so that those that come meanwhile are in one batch
		for _, change := range []job.LeaseChange{renew("x"), complete("x"), release("x")} {
			go s.ChangeLeases(t.Context(), []job.LeaseChange{change})
			before = append(before, <-c.writes)
		}
		go func() { all <- s.ChangeLeases(t.Context(), changes) }()
		synctest.Wait()
		for _, w := range before {
			w.all(nil)
		}
		var sent []string
		var late *changeWrite
		for range 3 {
			w := <-c.writes
			sent = append(sent, fmt.Sprint(w.jobs()))
			for i, c := range w.changes {
				switch c.JobID {
				case "b":
					late = w
				case "lost":
					w.settle(i, job.LeaseOutcome{Err: job.ErrLeaseLost})
				default:
					w.settle(i, job.LeaseOutcome{Lease: job.Lease{Token: c.Token}})
				}
			}
			close(w.ret)
		}
		second := <-c.writes
		sent = append(sent, fmt.Sprint(second.jobs()))
		second.all(nil)
		out := <-all
		if took := time.Since(from); took != time.Second {
			t.Errorf("answered after %v", took)
		}
		slices.Sort(sent[:3])
		if want := []string{"[a b]", "[c]", "[lost]", "[a lost]"}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
		for i, want := range []error{nil, nil, job.ErrOutcomeUnknown, job.ErrUnavailable, nil, job.ErrLeaseLost, nil} {
			if !errors.Is(out[i].Err, want) {
				t.Errorf("%d: %v, want %v", i, out[i].Err, want)
			}
		}
		for i := range late.changes {
			late.settle(i, job.LeaseOutcome{})
		}
	})
}
