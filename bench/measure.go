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
	for _, cell := range got.order {
		for _, s := range got.samples[cell] {
			r.add(cell, s)
		}
	}
	return nil
}

// cell is one thing that is measured again and again.
type cell struct {
	name    string
	measure func(context.Context) (sample, error)
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
			warm, err := l.warmUp(ctx, g, kind, p, undo)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			c.measure = warm
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
	warm, err := l.warmUp(ctx, g, kindSmall, p, &undo)
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
func (l *lab) warmUp(ctx context.Context, g group, kind string, p place, undo *cleanup) (func(context.Context) (sample, error), error) {
	s := p.spec
	s.Callers, s.BodyBytes = g.callers, g.bodyBytes
	callers, err := startCaller(ctx, l.dir, s)
	if err != nil {
		return nil, err
	}
	undo.add(callers.stop)
	l.note(callers.note)
	run := func(ctx context.Context, d time.Duration) (load.Result, error) {
		l.runs++
		return callers.run(ctx, load.Workload{
			Run: fmt.Sprintf("r%d", l.runs), Callers: g.callers, Duration: d, BodyBytes: g.bodyBytes,
			Duplicates: g.duplicates, HotKeys: g.hotKeys,
		})
	}
	if _, err := run(ctx, l.cfg.cell/4); err != nil {
		return nil, err
	}
	pids := append([]int{callers.process.pid()}, p.pids...)
	return func(ctx context.Context) (sample, error) {
		before, err := cpuTime(pids)
		if err != nil {
			return sample{}, err
		}
		r, err := run(ctx, l.cfg.cell)
		if err != nil {
			return sample{}, err
		}
		after, err := cpuTime(pids)
		if err != nil {
			return sample{}, err
		}
		used := after - before
		if p.pids == nil {
			used = -1
		}
		return sample{Result: r, CPU: used}, nil
	}, nil
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
	if l.binary, err = build(ctx, dir); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}
