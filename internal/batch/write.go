package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// write is one batch at the store.
type write struct {
	*Store
	ctx context.Context
	end context.CancelFunc
	// calls are those that have no outcome yet; the others are nil, so that their bodies go while one takes longer.
	calls []atomic.Pointer[call]
	// open counts them, and the store's call itself.
	open atomic.Int64
}

// write records one batch under a context of its own, so that no caller's deadline cuts its neighbours' write short. It
// returns when the store has done so; the write is over when every call has its outcome.
func (s *Store) write(batch []*call) {
	w := &write{Store: s, calls: make([]atomic.Pointer[call], len(batch))}
	w.ctx, w.end = context.WithTimeout(context.Background(), s.cfg.Timeout)
	w.open.Store(int64(len(batch)) + 1)
	s.running.Add(1)
	defer w.done()
	deliveries := make([]job.Delivery, len(batch))
	for i, c := range batch {
		w.calls[i].Store(c)
		deliveries[i] = c.delivery
	}
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.Error("panic while recording a batch", "panic", p, "stack", string(debug.Stack()))
			for i := range w.calls {
				w.settle(i, job.Outcome{Err: fmt.Errorf("%w: panic: %v", job.ErrOutcomeUnknown, p)})
			}
		}
	}()
	start := time.Now()
	s.each(w.ctx, deliveries, w.settle)
	for i := range w.calls {
		if c := w.calls[i].Load(); c != nil && c.with != nil {
			close(c.late)
		}
	}
	if s.cfg.Observe != nil {
		s.cfg.Observe(len(batch), time.Since(start))
	}
}

// settle gives a call its outcome, the first one that comes.
func (w *write) settle(i int, o job.Outcome) {
	c := w.calls[i].Swap(nil)
	if c == nil {
		return
	}
	if w.ctx.Err() != nil && (errors.Is(o.Err, context.DeadlineExceeded) || errors.Is(o.Err, context.Canceled)) {
		// The batch's deadline is not the caller's: what it gets to hear is whether anything was sent.
		o.Err = hideContext(o.Err)
	}
	c.outcome = o
	w.leave(c)
	close(c.done)
	if c.with != nil {
		c.with.once.Do(func() { close(c.with.known) })
	}
	w.done()
}

// done counts down to the end of the write.
func (w *write) done() {
	if w.open.Add(-1) == 0 {
		w.end()
		w.running.Done()
	}
}

// hideContext keeps what a store's error says about the write and drops what it says about the batch's own context.
func hideContext(err error) error {
	if errors.Is(err, job.ErrUnavailable) {
		return fmt.Errorf("%w: %v", job.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, err)
}
