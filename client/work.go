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
// [RetryIn], [NotStarted] and [Unavailable] say other things about it. The error's text is stored with the job, cut to 4 KiB. A
// [Worker] logs it too; of an error that is a [slog.LogValuer] it logs that value instead.
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

// RetryIn marks an error of a [WorkFunc] with how long the work is to be left alone at least, 24 hours at most: what an HTTP
// service means by Retry-After. It matches what err matches. Nil stays nil.
func RetryIn(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryInError{err, delay}
}

type retryInError struct {
	error
	delay time.Duration
}

func (e *retryInError) Unwrap() error { return e.error }

// NotStarted marks an error of a [WorkFunc] that returned before it began the work: it is given back, due at once, and the
// attempt does not count. It matches what err matches. Nil stays nil.
func NotStarted(err error) error {
	if err == nil {
		return nil
	}
	return &notStartedError{err}
}

type notStartedError struct{ error }

func (e *notStartedError) Unwrap() error { return e.error }

// Unavailable marks an error of a [WorkFunc] as one that says nothing about the job: what all work needs is away, such as the
// service that it calls. When it is told so by 3 jobs in a row, a [Worker] claims nothing for a while, then one job alone, and
// goes on as before once one ends otherwise. Meanwhile no attempt counts, so that no job dies of it. With [Client.Do], and
// before the third, it is an error like any other. It matches what err matches. Nil stays nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err}
}

type unavailableError struct{ error }

func (e *unavailableError) Unwrap() error { return e.error }

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
	wait    time.Duration // of the delivery, in Do
	// away is told how the work of a job ended, and says whether that is due to an outage and counts for nothing. Nil: it never is.
	away func(jobID string, err error) bool
}

// workOutcome is what became of the work.
type workOutcome struct {
	ran bool
	// settled: the work is completed or given up, and the service knows it.
	settled bool
	// uncounted: the work was given back without counting the attempt.
	uncounted bool
	// delay is how long the work is left alone now that it was given back.
	delay time.Duration
	err   error
}

func (o workOutcome) outcome() WorkOutcome {
	switch {
	case o.err == nil:
		return WorkDone
	case o.settled:
		return WorkDead
	case errors.Is(o.err, ErrLeaseLost):
		return WorkLost
	case o.uncounted, !o.ran:
		return WorkGivenBack
	}
	return WorkFailed
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
	away := h.lost == nil && r.away != nil && r.away(w.Job.GetJobId(), err)
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
		var failure error
		switch {
		case errors.As(err, new(*permanentError)):
			failure = h.giveUp(ctx, storable(err.Error(), maxErrorBytes))
			reached.settled = failure == nil
		case away, errors.As(err, new(*notStartedError)):
			reached.uncounted = true
			failure = h.notStarted(ctx)
		default:
			reached.delay = r.delay(ctx, w)
			if asked := (*retryInError)(nil); errors.As(err, &asked) {
				reached.delay = min(max(reached.delay, asked.delay), maxRetryDelay)
			}
			failure = h.release(ctx, reached.delay, storable(err.Error(), maxErrorBytes))
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

// storable is text as the service takes it for an error of so many bytes.
func storable(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	cut := limit
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
