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
type write[T, O any] struct {
	*lanes[T, O]
	ctx context.Context
	end context.CancelFunc
	// calls are those that have no outcome yet; the others are nil, so that their bodies go while one takes longer.
	calls []atomic.Pointer[call[T, O]]
	// open counts them, and the store's call itself.
	open atomic.Int64
}

// writeBatch writes one batch under a context of its own, so that no caller's deadline cuts its neighbours' write short. It
// returns when the store has done so; the write is over when every call has its outcome.
func (l *lanes[T, O]) writeBatch(batch []*call[T, O]) {
	w := &write[T, O]{lanes: l, calls: make([]atomic.Pointer[call[T, O]], len(batch))}
	ctx, endSpan := l.traced(context.Background(), batch)
	defer endSpan()
	w.ctx, w.end = context.WithTimeout(ctx, l.cfg.Timeout)
	w.open.Store(int64(len(batch)) + 1)
	l.running.Add(1)
	defer w.done()
	items := make([]T, len(batch))
	for i, c := range batch {
		w.calls[i].Store(c)
		items[i] = c.item
	}
	defer func() {
		if p := recover(); p != nil {
			l.cfg.Logger.Error("panic while writing a batch", "of", l.name, "panic", p, "stack", string(debug.Stack()))
			for i := range w.calls {
				w.settle(i, l.failed(fmt.Errorf("%w: panic: %v", job.ErrOutcomeUnknown, p)))
			}
		}
	}()
	start := time.Now()
	l.write(w.ctx, items, w.settle)
	for i := range w.calls {
		if c := w.calls[i].Load(); c != nil && c.with != nil {
			close(c.late)
		}
	}
	if l.observe != nil {
		l.observe(len(batch), time.Since(start))
	}
}

// settle gives a call its outcome, the first one that comes.
func (w *write[T, O]) settle(i int, o O) {
	c := w.calls[i].Swap(nil)
	if c == nil {
		return
	}
	if err := w.err(&o); w.ctx.Err() != nil && (errors.Is(*err, context.DeadlineExceeded) || errors.Is(*err, context.Canceled)) {
		// The batch's deadline is not the caller's: what it gets to hear is whether anything was sent.
		*err = hideContext(*err)
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
func (w *write[T, O]) done() {
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
