package storetest_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

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
