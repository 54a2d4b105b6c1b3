// Package retention drops the payloads of jobs that were finished long ago, and the jobs themselves: little by little, along the
// order in which they were first seen.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// every is how often what has become old is looked for. wholeEvery is how often that is done from the beginning: jobs that
	// were passed over, as they were not finished or had come again, are looked at once more then.
	every      = time.Minute
	wholeEvery = 24 * time.Hour
	// pause is between two parts, so that others come in between.
	pause = 20 * time.Millisecond
	// part is how many jobs are changed at a time.
	part = 200
)

// Policy says for how long what is kept. Zero is for ever. A job is as old as its latest delivery or lease.
type Policy struct {
	// Payload is for how long the payloads of finished jobs are kept. A job is finished when its work is completed, or is not
	// tracked.
	Payload time.Duration
	// Job is for how long finished jobs are kept.
	Job time.Duration
	// Dead is for how long a dead job keeps its payload. Where finished jobs are removed, it is removed too, when it is as old as
	// both say.
	Dead time.Duration
}

// Store is the part of a store that retention uses.
type Store interface {
	List(ctx context.Context, q job.ListQuery) (job.Page, error)
	Delete(ctx context.Context, ds []job.Deletion) []job.DeleteOutcome
}

// Config configures a [Keeper].
type Config struct {
	Policy
	// Now is the store's clock. Required.
	Now func() time.Time
	// Dropped is told of payloads that were dropped, and jobs that were removed; nil for nobody.
	Dropped func(payloads, jobs int)
	Logger  *slog.Logger

	// pause replaces the pause between two parts. Tests set it.
	pause func(ctx context.Context) error
}

// Keeper keeps to a policy. Several on one store do no harm.
type Keeper struct {
	cfg   Config
	store Store
	rules []*rule
	began time.Time // of the latest pass from the beginning
}

// rule is what becomes of jobs in a state, and how far that has come.
type rule struct {
	state job.WorkState
	kind  job.DeleteKind
	age   time.Duration
	from  job.Place
}

// New makes a keeper. It starts nothing.
func New(cfg Config, store Store) *Keeper {
	k := &Keeper{cfg: cfg, store: store}
	if k.cfg.pause == nil {
		k.cfg.pause = func(ctx context.Context) error { return sleep(ctx, pause) }
	}
	add := func(state job.WorkState, kind job.DeleteKind, age time.Duration) {
		if age > 0 {
			k.rules = append(k.rules, &rule{state: state, kind: kind, age: age})
		}
	}
	// Jobs go first: what is removed needs no dropping.
	for _, state := range []job.WorkState{job.StateUntracked, job.StateCompleted} {
		add(state, job.DeleteJob, cfg.Job)
		add(state, job.DropPayload, cfg.Payload)
	}
	if cfg.Job > 0 && cfg.Dead > 0 {
		add(job.StateDead, job.DeleteJob, max(cfg.Job, cfg.Dead))
	}
	add(job.StateDead, job.DropPayload, cfg.Dead)
	return k
}

// Report is what a pass came to.
type Report struct{ Payloads, Jobs, Examined int }

// Run makes a pass every minute until ctx ends. What fails is logged, and tried again.
func (k *Keeper) Run(ctx context.Context) {
	if len(k.rules) == 0 {
		return
	}
	for {
		r, err := k.Pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			k.cfg.Logger.Warn("retention could not do all; it is tried again", "error", err)
		}
		if r.Payloads+r.Jobs > 0 {
			k.cfg.Logger.Info("retention", "payloads_dropped", r.Payloads, "jobs_removed", r.Jobs, "examined", r.Examined)
		}
		if sleep(ctx, every) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Pass does what is to be done by now, from where the pass before ended. What fails keeps nothing else from being done: a job that
// could not be changed is tried again in the next pass, or, where the store refuses it, when all is looked at from the beginning.
func (k *Keeper) Pass(ctx context.Context) (sum Report, err error) {
	now := k.cfg.Now()
	if now.Sub(k.began) >= wholeEvery {
		k.began = now
		for _, r := range k.rules {
			r.from = job.Place{}
		}
	}
	for _, r := range k.rules {
		if failed := k.apply(ctx, r, now.Add(-r.age), &sum); failed != nil {
			err = errors.Join(err, fmt.Errorf("%v jobs: %w", r.state, failed))
		}
	}
	return sum, err
}

// apply goes through the jobs of a rule that were first seen before the time. It ends early where many fail. The next pass goes on
// from the first part in which one failed for a reason that passes.
func (k *Keeper) apply(ctx context.Context, r *rule, before time.Time, sum *Report) error {
	var failed failures
	defer func() {
		if failed.again != nil {
			r.from = *failed.again
		}
	}()
	for {
		page, err := k.store.List(ctx, job.ListQuery{Filter: job.Filter{State: r.state, SeenBefore: job.Millis(before)}, Order: job.OldestFirst,
			Size: part, After: r.from})
		if err != nil {
			return errors.Join(failed.err(), err)
		}
		sum.Examined += page.Examined
		var old []job.Deletion
		for i := range page.Jobs {
			if j := &page.Jobs[i]; j.Aged(r.kind, before) && (r.kind == job.DeleteJob || j.BodyDropped.IsZero()) {
				old = append(old, job.Deletion{Expected: job.ExpectedOf(j), Kind: r.kind, ActiveBefore: before, Deliveries: j.Deliveries})
			}
		}
		k.delete(ctx, r, old, sum, &failed)
		if page.Next == (job.Place{}) {
			if n := len(page.Jobs); n > 0 {
				r.from = job.PlaceOf(&page.Jobs[n-1])
			}
			return failed.err()
		}
		r.from = page.Next
		if failed.n >= part {
			return failed.err()
		}
		if err := k.cfg.pause(ctx); err != nil {
			return errors.Join(failed.err(), err)
		}
	}
}

// failures are the deletions of a pass by one rule that failed, and the first of them.
type failures struct {
	n     int
	jobID string
	first error
	again *job.Place // where the first part begins in which one failed that may be done soon
}

func (f *failures) err() error {
	if f.n == 0 {
		return nil
	}
	return fmt.Errorf("%d could not be changed, such as %q: %w", f.n, f.jobID, f.first)
}

func (k *Keeper) delete(ctx context.Context, r *rule, old []job.Deletion, sum *Report, failed *failures) {
	if len(old) == 0 {
		return
	}
	done := 0
	for i, o := range k.store.Delete(ctx, old) {
		switch {
		case o.Deleted:
			done++
		case o.Err == nil, errors.Is(o.Err, job.ErrWrongState): // gone, or in use again
		default:
			if failed.n++; failed.n == 1 {
				failed.jobID, failed.first = old[i].JobID, o.Err
			}
			if failed.again == nil && (errors.Is(o.Err, job.ErrUnavailable) || errors.Is(o.Err, job.ErrOutcomeUnknown)) {
				from := r.from
				failed.again = &from
			}
		}
	}
	payloads, jobs := done, 0
	if r.kind == job.DeleteJob {
		payloads, jobs = 0, done
	}
	sum.Payloads, sum.Jobs = sum.Payloads+payloads, sum.Jobs+jobs
	if k.cfg.Dropped != nil && done > 0 {
		k.cfg.Dropped(payloads, jobs)
	}
}
