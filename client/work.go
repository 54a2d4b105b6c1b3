package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The service's limits.
const (
	minLease       = time.Second
	maxLease       = 24 * time.Hour
	maxRetryDelay  = 24 * time.Hour
	maxResultBytes = 64 << 10
	maxErrorBytes  = 4 << 10
)

// DefaultLease is how long a lease runs at first and from each renewal on. After a crash nobody starts the work before
// its end.
const DefaultLease = time.Minute

// WorkFunc does the work of one job. An error, or a panic, means that the work is to be tried again later: it is given back,
// and left alone for as long as [DefaultBackoff] says. One that [Permanent] made means that it never will be: the job is dead.
// The error's text is stored with the job, cut to 4 KiB.
//
// The context ends when the lease is lost, or ran out because no renewal got through: [context.Cause] then matches
// [ErrLeaseLost]. The function must return soon then, since somebody else may start the work. It can also run twice for
// one job when a process stalls or cannot reach the service: where that matters, hand the lease's generation on to the
// systems that the work changes.
type WorkFunc func(ctx context.Context, work *Work) error

// Work is the work of one job, under a lease that is renewed while a [WorkFunc] runs.
type Work struct {
	// Job is the job as stored, with the payload of its first delivery. Work on this, not on the delivery at hand.
	Job *joboncev1.Job
	// Lease is the lease as it was granted; renewals move its end, which does not show here. Its generation is the fencing
	// number: it grows with every lease of the job, so that a system which keeps the highest number it has seen can refuse
	// a holder that is no longer the latest.
	Lease *joboncev1.Lease

	mu     sync.Mutex
	result string
}

// SetResult sets what later deliveries of the job are told once the work is done: at most 64 KiB of UTF-8. Without it
// the result is empty; the last call counts. On an error the result stays what it was.
func (w *Work) SetResult(result string) error {
	if len(result) > maxResultBytes {
		return invalid("result", fmt.Sprintf("result is %d bytes; the limit is %d", len(result), maxResultBytes))
	}
	if err := checkText("result", result); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result = result
	return nil
}

func (w *Work) currentResult() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

// Permanent marks an error of a [WorkFunc] as one that no further try can mend: the job becomes dead. It matches what err
// matches. Nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// DefaultBackoff is how long work that failed is left alone, given how many leases the job has had, this one included:
// 2 seconds at first, twice as long each time, an hour at most. With the service's default of 40 leases, work that always
// fails is given up after 29 hours.
func DefaultBackoff(attempts int) time.Duration {
	if attempts > 11 { // 1 s << 12 is over an hour.
		return time.Hour
	}
	return time.Second << max(0, attempts)
}

// workRunner does work under leases.
type workRunner struct {
	c       *Client
	lease   time.Duration
	backoff func(attempts int) time.Duration
	fn      WorkFunc
}

// workOutcome is what became of the work.
type workOutcome struct {
	ran bool
	// settled: the work is completed or given up, and the service knows it.
	settled bool
	// delay is how long the work is left alone now that it was given back.
	delay time.Duration
	err   error
}

// run does the work under a lease that runs until the given time at least, and tells the service what became of it.
func (r *workRunner) run(ctx context.Context, w *Work, until time.Time) workOutcome {
	h := &holding{c: r.c, jobID: w.Job.GetJobId(), token: w.Lease.GetToken(), lease: r.lease, until: until}
	if err := r.ready(ctx, h); err != nil {
		if h.lost == nil {
			_ = h.notStarted(ctx) // If it fails, the lease lapses.
		}
		return workOutcome{err: fmt.Errorf("the work was not started: %w", err)}
	}
	err := r.work(ctx, w, h)
	reached := workOutcome{ran: true}
	switch {
	case err == nil:
		if h.lost == nil {
			err = h.complete(ctx, w.currentResult())
		}
		switch {
		case h.lost != nil:
			err = fmt.Errorf("the work was done, but its lease was lost meanwhile, so somebody else may do it too: %w", h.lost)
		case err != nil:
			err = fmt.Errorf("the work was done, but the service could not be told, so it may be done again: %w", err)
		}
		reached.settled = err == nil
	case h.lost != nil:
		err = fmt.Errorf("%w (and the lease was lost: %w)", err, h.lost)
	default:
		permanent := (*permanentError)(nil)
		var failure error
		if errors.As(err, &permanent) {
			failure = h.giveUp(ctx, storable(err.Error()))
			reached.settled = failure == nil
		} else {
			reached.delay = r.delay(ctx, w)
			failure = h.release(ctx, reached.delay, storable(err.Error()))
		}
		if failure != nil {
			err = fmt.Errorf("%w (and the work could not be released: %w)", err, failure)
		}
	}
	reached.err = err
	return reached
}

// ready makes sure that the work can be started: somebody waits for it, and its lease lasts for a while.
func (r *workRunner) ready(ctx context.Context, h *holding) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if time.Until(h.until) >= r.lease/4 {
		return nil
	}
	// The answer took long to come. Renew the lease rather than start what may have to be cut short.
	if err := h.renew(ctx); err != nil {
		return fmt.Errorf("its lease could not be renewed: %w", err)
	}
	return nil
}

// work calls the function and keeps the lease meanwhile. When the function panics, or ends its goroutine, the work is
// given back on the way out.
func (r *workRunner) work(ctx context.Context, w *Work, h *holding) error {
	working, endWork := context.WithCancelCause(ctx)
	// The lease is kept until the function has returned, also when it takes its time once the caller is gone.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		h.keep(keeping, endWork)
	}()
	returned := false
	defer func() {
		stop()
		<-kept
		endWork(nil)
		if !returned && h.lost == nil {
			_ = h.release(ctx, r.delay(ctx, w), "the work panicked") // If it fails, the lease lapses.
		}
	}()
	err := r.fn(working, w)
	returned = true
	return err
}

// delay is how long the work is to be left alone. That somebody wanted to stop is not the job's fault.
func (r *workRunner) delay(ctx context.Context, w *Work) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	return min(max(0, r.backoff(int(w.Job.GetWork().GetAttempts()))), maxRetryDelay)
}

// storable is text as the service takes it for an error.
func storable(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxErrorBytes {
		return text
	}
	cut := maxErrorBytes
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
