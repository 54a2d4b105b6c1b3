package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

// flaky is a store whose calls now and then fail with err: after they were carried out, before, or instead, as fail
// chooses. Deliveries that it answers without an error are as good as those of the store.
type flaky struct {
	job.Store
	err    error
	broken func(job.Store) job.Store
	// late keeps what was not carried out, for later.
	late    bool
	waiting []func()
	// settled says that it will not be.
	settled bool
	mu      sync.Mutex
	rng     *rand.Rand
	fail    func(rng *rand.Rand) (carryOut, failed bool)
}

func (f *flaky) choose() (carryOut, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail(f.rng)
}

// call carries a call out or not, and tells whether it is to fail.
func (f *flaky) call(do func()) error {
	carryOut, failed := f.choose()
	switch {
	case carryOut:
		do()
	case f.late:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting = append(f.waiting, do)
	}
	if failed {
		return f.err
	}
	return nil
}

func (f *flaky) Record(ctx context.Context, ds []job.Delivery) (out []job.Outcome) {
	if err := f.call(func() { out = f.Store.Record(ctx, ds) }); err != nil {
		return []job.Outcome{{Err: err}}
	}
	return out
}

func (f *flaky) Claim(ctx context.Context, r job.ClaimRequest) (claimed []job.Claimed, err error) {
	if failed := f.call(func() { claimed, err = f.Store.Claim(ctx, r) }); failed != nil {
		if len(claimed) > 0 && claimed[0].Granted && time.Now().UnixNano()%2 == 0 {
			_ = f.Unclaim(ctx, claimed) // as the service does for a caller that has left
		}
		return nil, failed
	}
	return claimed, err
}

func (f *flaky) ChangeLeases(ctx context.Context, changes []job.LeaseChange) (out []job.LeaseOutcome) {
	if failed := f.call(func() { out = f.Store.ChangeLeases(ctx, changes) }); failed != nil {
		out = make([]job.LeaseOutcome, len(changes))
		for i := range out {
			out[i].Err = failed
		}
	}
	return out
}

// sometimes is one call in n.
func sometimes(rng *rand.Rand, n int) bool { return rng.IntN(n) == 0 }

// try runs trials on the store and returns what the first that fails is told.
func try(t *testing.T, trials int, f *flaky) error {
	t.Helper()
	e := embedded(t)
	f.Store = e.Store
	if f.broken != nil {
		f.Store = f.broken(e.Store)
	}
	operations := 0
	for n := range trials {
		tr := storetest.NewTrial(fmt.Sprintf("trial-%d", n), rand.New(rand.NewPCG(2, uint64(n))))
		for !tr.Ended() {
			again := func(error) bool { return true }
			testenv.Must(t, tr.Burst(t.Context(), e.Clock.Now(), []job.Store{f, f, f}, 3, again))
			if f.settled {
				tr.Settle(e.Clock.Now())
			}
			e.Clock.Advance(time.Duration([]int{1, 30, 61}[n%3]) * time.Second)
			for _, do := range f.waiting {
				do()
			}
			f.waiting = nil
		}
		operations += tr.Operations()
		if err := tr.Check(time.Minute); err != nil {
			return err
		}
	}
	t.Logf("%d operations", operations)
	return nil
}

// TestTrialExplains: an unknown outcome may be either, and a refusal is a refusal.
func TestTrialExplains(t *testing.T) {
	for name, f := range map[string]*flaky{
		"unknown": {err: job.ErrOutcomeUnknown, fail: func(rng *rand.Rand) (bool, bool) {
			failed := sometimes(rng, 10)
			return !failed || sometimes(rng, 2), failed
		}},
		"unknown, and late": {err: job.ErrOutcomeUnknown, late: true, fail: func(rng *rand.Rand) (bool, bool) {
			failed := sometimes(rng, 10)
			return !failed, failed
		}},
		"unavailable": {err: job.ErrUnavailable, fail: func(rng *rand.Rand) (bool, bool) {
			failed := sometimes(rng, 5)
			return !failed, failed
		}},
		"overloaded": {err: job.ErrOverloaded, fail: func(rng *rand.Rand) (bool, bool) {
			failed := sometimes(rng, 5)
			return !failed, failed
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f.rng = rand.New(rand.NewPCG(1, 1))
			testenv.OK(t, try(t, 30, f))
		})
	}
}

// TestTrialBites: what a store must not do is found out.
func TestTrialBites(t *testing.T) {
	for name, f := range map[string]*flaky{
		"a refused call took effect": {err: job.ErrUnavailable, fail: func(rng *rand.Rand) (bool, bool) { return true, sometimes(rng, 10) }},
		"so did an overloaded one":   {err: job.ErrOverloaded, fail: func(rng *rand.Rand) (bool, bool) { return true, sometimes(rng, 10) }},
		"an effect comes from the dead": {
			err: job.ErrOutcomeUnknown, late: true, settled: true, fail: func(rng *rand.Rand) (bool, bool) {
				failed := sometimes(rng, 10)
				return !failed, failed
			},
		},
		"a stale token completes, among unknown outcomes": {
			err: job.ErrOutcomeUnknown, broken: func(s job.Store) job.Store { return careless{s} },
			fail: func(rng *rand.Rand) (bool, bool) {
				failed := sometimes(rng, 20)
				return !failed || sometimes(rng, 2), failed
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.rng = rand.New(rand.NewPCG(1, 1))
			err := try(t, 30, f)
			if err == nil || !strings.Contains(err.Error(), "no order") {
				t.Errorf("not found out: %v", err)
			}
		})
	}
}

// TestLinearizabilityBites breaks a good store in several ways, each a fault that a real one could have, and sees that the
// checker finds out.
func TestLinearizabilityBites(t *testing.T) {
	for name, broken := range map[string]func(job.Store) job.Store{
		"a running lease is given to another": func(s job.Store) job.Store {
			return altered{Store: s, outcome: func(o *job.Outcome) {
				if o.Verdict.Disposition == job.InProgress {
					lease := o.Record.Work.Lease(o.Record.Work.Due)
					o.Verdict = job.Verdict{Disposition: job.Reclaimed, StartWork: true, FirstDelivery: o.Verdict.FirstDelivery}
					o.Lease = &lease
					o.Record.Body = job.Body{Kind: job.BodyText, Data: "body"}
				}
			}}
		},
		"a lost answer is not recovered": func(s job.Store) job.Store {
			seen := map[string]bool{}
			return altered{Store: s, outcome: func(o *job.Outcome) {
				if o.Lease != nil && seen[o.Lease.Token] {
					o.Verdict, o.Lease, o.Record.Body = job.Verdict{Disposition: job.InProgress}, nil, job.Body{}
				} else if o.Lease != nil {
					seen[o.Lease.Token] = true
				}
			}}
		},
		"a stale token completes": func(s job.Store) job.Store { return careless{s} },
		"the fencing number stands still": func(s job.Store) job.Store {
			return altered{Store: s, outcome: func(o *job.Outcome) {
				if o.Lease != nil && o.Record.Work.Attempts > 1 {
					o.Lease.Generation--
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.CheckCatches(t, embedded, broken)
		})
	}
}

func embedded(t *testing.T) storetest.Env {
	clock := testenv.NewClock()
	s, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Now: clock.Now, MaxAttempts: storetest.MaxAttempts})
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	return storetest.Env{Store: s, Clock: clock}
}

// alterMu makes one change at a time: what is broken on purpose is not to be found out by the race detector.
var alterMu sync.Mutex

// altered changes what Record answers.
type altered struct {
	job.Store
	outcome func(*job.Outcome)
}

func (a altered) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	out := a.Store.Record(ctx, ds)
	for i := range out {
		if out[i].Err == nil {
			alterMu.Lock()
			a.outcome(&out[i])
			alterMu.Unlock()
		}
	}
	return out
}

// careless completes whatever token it is shown.
type careless struct{ job.Store }

func (c careless) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	out := c.Store.ChangeLeases(ctx, changes)
	for i := range out {
		if changes[i].Kind != job.Renewal && errors.Is(out[i].Err, job.ErrLeaseLost) {
			out[i].Err = nil
		}
	}
	return out
}
