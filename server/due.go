package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// dueEvery is how often the store is asked what has been due for longest.
	dueEvery = 15 * time.Second
	// dueSaidEvery is how often that is said to be too long.
	dueSaidEvery = time.Minute
)

// dueWatch watches whether work is done: what has been due for longest, and when work was last asked for.
type dueWatch struct {
	store job.Worker
	limit time.Duration // 0: nothing is said
	log   *slog.Logger

	// since is how long the work that has been due for longest has been; -1 when the store has not told. claimed is when
	// work was last asked for, in milliseconds since 1970; 0 when it was not.
	since, claimed atomic.Int64
	said           time.Time // Used by the goroutine that asks alone.
}

func newDueWatch(store job.Worker, limit time.Duration, log *slog.Logger) *dueWatch {
	w := &dueWatch{store: store, limit: limit, log: log}
	w.since.Store(-1)
	return w
}

// run asks until ctx ends.
func (w *dueWatch) run(ctx context.Context) {
	ticker := time.NewTicker(dueEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.ask(ctx)
		}
	}
}

// ask asks the store once. That it cannot tell is said by its health.
func (w *dueWatch) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	id, since, err := w.store.LongestDue(ctx)
	if err != nil {
		w.since.Store(-1)
		return
	}
	w.since.Store(int64(since))
	// Half a tick is within what a ticker is late by.
	if w.limit == 0 || since <= w.limit || !w.said.IsZero() && time.Since(w.said) < dueSaidEvery-dueEvery/2 {
		return
	}
	w.said = time.Now()
	attrs := []slog.Attr{slog.String("job_id", id), slog.Duration("due_for", since.Round(time.Second))}
	last := w.lastClaim()
	if last.IsZero() {
		w.log.LogAttrs(ctx, slog.LevelError, "work is due and nobody does it: nobody has asked this instance for work since it "+
			"started; run jobonce worker, or a program with the Go client's Worker", attrs...)
		return
	}
	w.log.LogAttrs(ctx, slog.LevelError, "work is due and is not done: the workers that ask for work are too few or too slow, or "+
		"ask for other work than this", append(attrs, slog.Time("last_claim", last))...)
}

// asked notes that somebody asks for work.
func (w *dueWatch) asked() { w.claimed.Store(time.Now().UnixMilli()) }

// lastClaim is when work was last asked for; the zero time when it was not.
func (w *dueWatch) lastClaim() time.Time {
	ms := w.claimed.Load()
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// LongestDue is for how long the work that has been due for longest has been due, as the store said when it was last asked,
// every 15 seconds; 0 when nothing is due. ok is false when it could not say.
func (s *Server) LongestDue() (since time.Duration, ok bool) {
	d := time.Duration(s.due.since.Load())
	return max(d, 0), d >= 0
}

// LastClaim is when ClaimWork was last called here; the zero time when it was not.
func (s *Server) LastClaim() time.Time { return s.due.lastClaim() }
