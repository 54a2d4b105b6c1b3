package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jobonce/jobonce/internal/load"
)

// measure measures the groups one after the other and prints each figure as soon as it is complete. A group that cannot
// be measured is told and left out, and makes an error of the whole; the results are there all the same.
func measure(ctx context.Context, cfg config, groups []group, figures []figure, stdout, notes io.Writer) (*results, error) {
	r := newResults()
	l, err := newLab(ctx, cfg, notes)
	if err != nil {
		return r, err
	}
	defer l.close()
	var failed error
	for _, g := range groups {
		start := time.Now()
		err := l.measure(ctx, g, r)
		if ctx.Err() != nil {
			return r, errors.Join(failed, ctx.Err())
		}
		if err != nil {
			fmt.Fprintf(notes, "bench: %s: %v\n", g.name, err)
			failed = errors.Join(failed, fmt.Errorf("%s was not measured", g.name))
		} else {
			fmt.Fprintf(notes, "bench: %s took %.0f s\n", g.name, time.Since(start).Seconds())
		}
		if err := r.print(stdout, figures); err != nil {
			return r, err
		}
	}
	return r, failed
}

// measure measures the cells of a group in turn, so that whatever else happens on the machine meets all of them alike.
func (l *lab) measure(ctx context.Context, g group, r *results) error {
	var undo cleanup
	defer undo.run()
	cells, err := l.open(ctx, g, &undo)
	if err != nil {
		return err
	}
	// Kept apart until all is well: a figure of fewer repetitions than asked for would look like any other.
	got := newResults()
	for range l.cfg.repeat {
		for _, c := range cells {
			s, err := c.measure(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			got.add(c.name, s)
		}
	}
	for _, c := range cells {
		var bytes, disk float64
		if c.sizes != nil {
			if bytes, disk, err = c.sizes(ctx); err != nil {
				return fmt.Errorf("%s: sizes: %w", c.name, err)
			}
		}
		for _, s := range got.samples[c.name] {
			s.Bytes, s.Disk = bytes, disk
			r.add(c.name, s)
		}
	}
	return nil
}

// cell is one thing that is measured again and again.
type cell struct {
	name    string
	measure func(context.Context) (sample, error)
	// sizes tells at the end how large the documents are, by themselves and on disk; nil where that is not asked for.
	sizes func(context.Context) (bytes, disk float64, err error)
}

// cleanup is what has to be undone, the latest first.
type cleanup []func()

func (c *cleanup) add(f func()) { *c = append(*c, f) }

func (c *cleanup) run() {
	for i := len(*c) - 1; i >= 0; i-- {
		(*c)[i]()
	}
	*c = nil
}

// open prepares everything that the cells of a group need.
func (l *lab) open(ctx context.Context, g group, undo *cleanup) ([]cell, error) {
	places := make(map[string]place)
	for _, kind := range g.kinds {
		if kind == kindSmall {
			continue // made anew for each measurement, so that it stays small
		}
		p, err := l.place(ctx, g, kind, places, undo)
		if gone := absentError(""); errors.As(err, &gone) {
			l.note(string(gone))
			continue
		}
		if err != nil {
			return nil, err
		}
		places[kind] = p
	}
	if err := l.settle(ctx, g); err != nil {
		return nil, err
	}
	var cells []cell
	for _, kind := range g.kinds {
		c := cell{name: g.cell(kind)}
		if kind == kindSmall {
			c.measure = func(ctx context.Context) (sample, error) { return l.measureFresh(ctx, g) }
		} else if p, ok := places[kind]; ok {
			warm, err := l.warmUp(ctx, g, p, undo)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			c.measure = warm
			if g.sizes {
				if c.sizes, err = l.db.sizes(ctx, p.collection); err != nil {
					return nil, fmt.Errorf("%s: sizes: %w", c.name, err)
				}
			}
		} else {
			continue
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// measureFresh measures the service on a store that was just made.
func (l *lab) measureFresh(ctx context.Context, g group) (sample, error) {
	var undo cleanup
	defer undo.run()
	p, err := l.place(ctx, g, kindSmall, nil, &undo)
	if err != nil {
		return sample{}, err
	}
	if err := l.settle(ctx, g); err != nil {
		return sample{}, err
	}
	warm, err := l.warmUp(ctx, g, p, &undo)
	if err != nil {
		return sample{}, err
	}
	return warm(ctx)
}

// settle lets the database look at what was seeded.
func (l *lab) settle(ctx context.Context, g group) error {
	if g.store == mongodb {
		return l.db.analyze(ctx)
	}
	return nil
}

// warmUp starts the callers of a cell and lets them call for a while, so that connections and caches are made. It returns
// what measures the cell.
func (l *lab) warmUp(ctx context.Context, g group, p place, undo *cleanup) (func(context.Context) (sample, error), error) {
	if g.work {
		return l.warmUpQueue(ctx, g, p, undo)
	}
	s := p.spec
	s.Callers, s.BodyBytes = g.callers, g.bodyBytes
	callers, err := l.startCallers(ctx, g, p, s)
	if err != nil {
		return nil, err
	}
	undo.add(callers.stop)
	l.note(callers.note)
	run := func(ctx context.Context, d time.Duration) (load.Result, error) {
		l.runs++
		o := order{Workload: load.Workload{
			Run: fmt.Sprintf("r%d", l.runs), Callers: g.callers, Duration: d, BodyBytes: g.bodyBytes,
			Duplicates: g.duplicates, HotKeys: g.hotKeys,
		}}
		o.Example = load.NewBody(o.Run, o.BodyBytes).Of(load.Key(o.Run, 0))
		return callers.run(ctx, o)
	}
	if _, err := run(ctx, l.cfg.cell/4); err != nil {
		return nil, err
	}
	pids := append([]int{callers.process.pid()}, p.pids...)
	return func(ctx context.Context) (sample, error) {
		s, err := timed(pids, func() (load.Result, error) { return run(ctx, l.cfg.cell) })
		if p.pids == nil {
			s.CPU = -1
		}
		return s, err
	}, nil
}

// startCallers starts the callers of a cell.
func (l *lab) startCallers(ctx context.Context, g group, p place, s spec) (*caller, error) {
	if g.node {
		return l.startNode(ctx, s)
	}
	return startCaller(ctx, l.dir, p.bench, s)
}

// timed runs something and counts the CPU time that the processes use meanwhile.
func timed(pids []int, run func() (load.Result, error)) (sample, error) {
	before, err := cpuTime(pids)
	if err != nil {
		return sample{}, err
	}
	r, err := run()
	if err != nil {
		return sample{}, err
	}
	after, err := cpuTime(pids)
	return sample{Result: r, CPU: after - before}, err
}

// newLab prepares what all groups share.
func newLab(ctx context.Context, cfg config, notes io.Writer) (*lab, error) {
	dir, err := os.MkdirTemp(cfg.dir, "jobonce-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{cfg: cfg, dir: dir, notes: notes, noted: map[string]bool{}, servers: map[string]place{}}
	l.undo.add(func() { _ = os.RemoveAll(dir) })
	// PostgreSQL, as a user of its own, has to get at its data in there.
	if err := os.Chmod(dir, 0o711); err != nil {
		l.close()
		return nil, err
	}
	if err := l.build(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}
