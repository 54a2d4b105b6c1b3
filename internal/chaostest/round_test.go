package chaostest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/storetest"
)

// What one round has. A trial's bursts must stay short enough for the checker.
const (
	trialsPerRound  = 4
	workersPerTrial = 4
	burstsPerRound  = 6
	callsPerBurst   = 3 // of each worker
	roundCalls      = trialsPerRound * workersPerTrial * burstsPerRound * callsPerBurst

	// refusals is how many calls of the trials a fault that lasts has to have had refused. Where it has fewer, the trials
	// end first.
	refusals = 12

	// checkLimit is the time that the checker gets for one history.
	checkLimit = 2 * time.Minute
	// leaseTime is how long all leases run.
	leaseTime = storetest.LeaseTime
)

// round is what happens on jobs of its own, which are checked and forgotten at its end.
type round struct {
	*world
	ctx      context.Context
	n        int
	rng      *rand.Rand // the nemesis's
	ledger   *ledger
	progress *progress
	trials   []*storetest.Trial
	load     *load

	mu    sync.Mutex
	found []finding
}

func (r *round) find(found ...finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = append(r.found, found...)
}

// round has trials and load under so many faults, then makes all quiet and checks.
func (w *world) round(n, faults int) []finding {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	r := &round{world: w, ctx: ctx, n: n, rng: w.split(), ledger: newLedger(w.tally), progress: newProgress()}
	r.load = newLoad(r, w.split())
	for _, remotes := range [][]*remote{w.trial, w.load, {w.quiet}} {
		for _, remote := range remotes {
			remote.ledger, remote.began = r.ledger, nil
		}
	}
	for _, remote := range w.trial {
		remote.began = func() { r.progress.note(func() { r.progress.calls++ }) }
	}
	for i := range trialsPerRound {
		r.trials = append(r.trials, storetest.NewTrial(fmt.Sprintf("round %d trial %d", n, i), w.split()))
	}
	w.storm()
	r.load.start()
	bursts, rng := make(chan struct{}), w.split()
	go func() {
		defer close(bursts)
		r.bursts(rng)
	}()
	err := r.nemesis(faults)
	<-bursts
	w.calm()
	r.load.finish()
	if err != nil {
		return append(r.found, finding{badError, err.Error()})
	}
	r.settle()
	w.tally.rounds.Add(1)
	return r.found
}

// bursts has the trials' bursts, and moves the clock between them.
func (r *round) bursts(rng *rand.Rand) {
	defer r.progress.note(func() { r.progress.over = true })
	for range burstsPerRound {
		var all sync.WaitGroup
		for _, tr := range r.trials {
			if tr.Ended() {
				continue
			}
			stores := make([]job.Store, workersPerTrial)
			for i := range stores {
				stores[i] = r.trial[i%len(r.trial)]
			}
			all.Go(func() {
				if err := tr.Burst(r.ctx, r.clock.now(), stores, callsPerBurst, r.again); err != nil {
					r.find(finding{badError, err.Error()})
				}
			})
		}
		all.Wait()
		r.clock.advance([]time.Duration{time.Second, 30 * time.Second, 61 * time.Second}[rng.IntN(3)])
	}
}

// again waits a little after a call that was refused, as clients do, and tells whether it is to be repeated.
func (r *round) again(error) bool {
	r.progress.note(func() { r.progress.refused++ })
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.ctx.Done():
		r.find(finding{badError, "a call was refused until the round had taken too long"})
		return false
	}
}

// untilRefused waits until so many more of the trials' calls were refused, or the trials are over.
func (r *round) untilRefused(calls int64) {
	var before int64 = -1
	r.progress.until(r.ctx, func(_, refused int64) bool {
		if before < 0 {
			before = refused
		}
		return refused >= before+calls
	})
}

// nemesis has the faults strike when the trials have got so far.
func (r *round) nemesis(faults int) error {
	moments := make([]int64, faults)
	for i := range moments {
		moments[i] = r.rng.Int64N(roundCalls * 3 / 4)
	}
	slices.Sort(moments)
	for _, moment := range moments {
		if !r.progress.until(r.ctx, func(calls, _ int64) bool { return calls >= moment }) {
			return nil
		}
		f := r.draw()
		if err := f.strike(r); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.tally.fault(f.name, 1)
	}
	return nil
}

// settle checks the round, with all quiet: every call gets its answer, all work can be done, and nothing that anybody was
// told is wrong.
func (r *round) settle() {
	r.load.settle()
	var checks sync.WaitGroup
	for _, tr := range r.trials {
		r.tally.trials.Add(1)
		r.tally.operations.Add(int64(tr.Operations()))
		checks.Go(func() {
			if err := tr.Check(checkLimit); err != nil {
				r.find(finding{noOrder, err.Error()})
			}
		})
	}
	// Longer than any lease.
	r.clock.advance(2 * time.Hour)
	if err := r.drain(); err != nil {
		r.find(finding{badError, err.Error()})
	}
	if err := r.compare(); err != nil {
		r.find(finding{badError, err.Error()})
	}
	checks.Wait()
}

// drain does all work that there is.
func (r *round) drain() error {
	events := []string{r.load.event}
	for _, tr := range r.trials {
		events = append(events, tr.JobID())
	}
	for n := 0; ; n++ {
		claimed, err := r.quiet.Claim(r.ctx, job.ClaimRequest{
			RequestID: fmt.Sprintf("drain %d of round %d", n, r.n), Max: job.MaxClaimJobs, Lease: leaseTime, Events: events,
		})
		if err != nil {
			return fmt.Errorf("claiming what is left: %w", err)
		}
		if len(claimed) == 0 {
			return nil
		}
		var group errgroup.Group
		group.SetLimit(16)
		for _, c := range claimed {
			group.Go(func() error {
				if err := job.Complete(r.ctx, r.quiet, c.Record.JobID, c.Lease.Token, ""); err != nil {
					return fmt.Errorf("completing %s: %w", c.Record.JobID, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
}

// compare holds all that the clients were told against what is stored.
func (r *round) compare() error {
	var group errgroup.Group
	group.SetLimit(16)
	for _, id := range r.ledger.ids() {
		group.Go(func() error {
			j, err := r.quiet.read(r.ctx, id)
			if err != nil && !errors.Is(err, job.ErrNotFound) {
				return fmt.Errorf("reading %s: %w", id, err)
			}
			r.ledger.mu.Lock()
			defer r.ledger.mu.Unlock()
			a := r.ledger.jobs[id]
			r.find(a.check(id)...)
			r.find(a.checkStored(id, j, r.most(id, a))...)
			return nil
		})
	}
	return group.Wait()
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
