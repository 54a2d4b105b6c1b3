package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jobonce/jobonce/internal/load"
)

// The cells of groups of work: jobs are recorded, and then the clock runs until the work of the last one is durably done.
// The work itself is nothing, so that what is measured is how fast it is handed out and crossed off.

// queue keeps work until it is done. It lives in a load child.
type queue interface {
	// fill records the jobs of a workload, w.Count of them.
	fill(ctx context.Context, w load.Workload) (load.Result, error)
	// drain does their work, w.Callers at a time. It tells t of each piece of work that starts, and returns how long it took
	// until the last was durably done.
	drain(ctx context.Context, w load.Workload, t *tally) (time.Duration, error)
	// check looks into the store and fails unless the work of all of the workload's jobs is done.
	check(ctx context.Context, w load.Workload) error
	close()
}

// step is what is done with a queue.
type step string

const (
	stepFill  step = "fill"
	stepDrain step = "drain"
	stepCheck step = "check"
)

// kindWorkers is the kind of a load child whose queue is JobOnce.
const kindWorkers = "workers"

// queueRunner does orders on a queue.
type queueRunner struct{ queue }

func (q queueRunner) run(ctx context.Context, o order) (load.Result, error) {
	switch o.Step {
	case stepFill:
		return q.fill(ctx, o.Workload)
	case stepDrain:
		t := newTally(o.Count)
		elapsed, err := q.drain(ctx, o.Workload, t)
		if err == nil {
			err = t.check()
		}
		return load.Result{Ops: o.Count, Elapsed: elapsed}, err
	case stepCheck:
		return load.Result{}, q.check(ctx, o.Workload)
	default:
		return load.Result{}, fmt.Errorf("a queue has no step %q", o.Step)
	}
}

// tally counts the pieces of work that are started, by job.
type tally struct {
	want int64
	// all is closed once the work of every job was started.
	all chan struct{}

	mu      sync.Mutex
	started int64
	jobs    map[string]bool
}

func newTally(jobs int64) *tally {
	return &tally{want: jobs, all: make(chan struct{}), jobs: make(map[string]bool, jobs)}
}

// start counts the start of a job's work.
func (t *tally) start(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started++
	if !t.jobs[key] {
		t.jobs[key] = true
		if int64(len(t.jobs)) == t.want {
			close(t.all)
		}
	}
}

// check fails unless the work of each job was started once.
func (t *tally) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started != t.want || int64(len(t.jobs)) != t.want {
		return fmt.Errorf("work was started %d times, for %d of %d jobs", t.started, len(t.jobs), t.want)
	}
	return nil
}

// warmUpQueue starts the workers of a cell and lets them work for a while. It returns what measures the cell: as many jobs
// as it is likely to work off in a cell's time.
func (l *lab) warmUpQueue(ctx context.Context, g group, p place, undo *cleanup) (func(context.Context) (sample, error), error) {
	s := p.spec
	s.Callers, s.BodyBytes = g.callers, g.bodyBytes
	workers, err := startCaller(ctx, l.dir, p.bench, s)
	if err != nil {
		return nil, err
	}
	undo.add(workers.stop)
	l.note(workers.note)
	pids := append([]int{workers.process.pid()}, p.pids...)
	count := int64(4 * g.callers)
	drain := func(ctx context.Context, aim time.Duration) (sample, error) {
		l.runs++
		o := order{Workload: load.Workload{Run: fmt.Sprintf("r%d", l.runs), Callers: g.callers, Count: count, BodyBytes: g.bodyBytes}}
		o.Step = stepFill
		filled, err := workers.run(ctx, o)
		if err != nil {
			return sample{}, err
		}
		before, err := p.claims.read(ctx)
		if err != nil {
			return sample{}, err
		}
		o.Step = stepDrain
		got, err := timed(pids, func() (load.Result, error) { return workers.run(ctx, o) })
		if err != nil {
			return sample{}, err
		}
		after, err := p.claims.read(ctx)
		if err != nil {
			return sample{}, err
		}
		o.Step = stepCheck
		if _, err := workers.run(ctx, o); err != nil {
			return sample{}, err
		}
		if p.pids == nil {
			got.CPU = -1
		}
		got.Recorded, got.Won, got.Tried = filled.Rate(), after.won-before.won, after.tried-before.tried
		count = max(int64(4*g.callers), int64(got.Rate()*aim.Seconds()))
		return got, nil
	}
	// Twice, since the first time says little about how many jobs it takes. Then the database looks at what there is.
	for range 2 {
		if _, err := drain(ctx, l.cfg.cell/2); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) (sample, error) { return drain(ctx, l.cfg.cell) }, l.settle(ctx, g)
}
