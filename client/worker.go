package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The values that [WorkerConfig] fields get when they are zero.
const (
	DefaultConcurrency     = 10
	DefaultWait            = 30 * time.Second
	DefaultShutdownTimeout = 30 * time.Second
)

// The service's limits of one claim.
const (
	maxClaimJobs = 100
	maxWait      = time.Minute
)

// WorkerConfig says how a [Worker] works. The zero value is ready for use.
type WorkerConfig struct {
	// Concurrency is how many jobs are worked on at once. 0: DefaultConcurrency.
	Concurrency int
	// Lease is how long a lease runs, at first and from each renewal on: 1 second to 24 hours. 0: DefaultLease.
	Lease time.Duration
	// Events lets only jobs with one of these events be claimed; at most 100, each at most 128 bytes. Empty: any.
	Events []string
	// WorkerID names the worker in the service's log. At most 128 bytes. Optional.
	WorkerID string
	// Wait is how long one call waits for work at the service, at most 1 minute. 0: DefaultWait.
	Wait time.Duration
	// ShutdownTimeout is how long the jobs under way may go on once the worker is to stop. 0: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Backoff is how long a job that failed is left alone, as in [WithBackoff]. nil: DefaultBackoff.
	Backoff func(attempts int) time.Duration
	// Logger hears of failed jobs and failed calls; payloads and lease tokens are never written to it. nil: slog.Default().
	Logger *slog.Logger
}

// withDefaults checks the configuration and returns a copy without zero values.
func (c WorkerConfig) withDefaults() (WorkerConfig, error) {
	if c.Concurrency < 0 {
		return c, fmt.Errorf("the field Concurrency is %d, it must not be negative", c.Concurrency)
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	for _, f := range []struct {
		name            string
		value           *time.Duration
		zero, low, high time.Duration
	}{
		{"Lease", &c.Lease, DefaultLease, minLease, maxLease},
		{"Wait", &c.Wait, DefaultWait, 0, maxWait},
		{"ShutdownTimeout", &c.ShutdownTimeout, DefaultShutdownTimeout, 0, 1<<63 - 1},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < f.low || *f.value > f.high {
			return c, fmt.Errorf("client: WorkerConfig.%s is %v, it must be %v to %v", f.name, *f.value, f.low, f.high)
		}
	}
	if c.Backoff == nil {
		c.Backoff = DefaultBackoff
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// Worker claims jobs whose work is due and does it: that of jobs recorded as QUEUED, and what others left undone. Make
// one with [NewWorker].
type Worker struct {
	c   *Client
	cfg WorkerConfig
	fn  WorkFunc
}

// NewWorker makes a worker that does the work with fn. It starts nothing. The error names the field of the configuration
// at fault.
func NewWorker(c *Client, cfg WorkerConfig, fn WorkFunc) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, errors.New("client: NewWorker: the client is nil")
	case fn == nil:
		return nil, errors.New("client: NewWorker: the function is nil")
	}
	return &Worker{c: c, cfg: cfg, fn: fn}, nil
}

// Run claims and works until ctx ends. Each job is worked on as by [Client.Do], but for a panic, which counts as a failed
// try: one job must not take the others down. When ctx ends the worker claims nothing more and lets the jobs under way
// finish; those that still run after [WorkerConfig.ShutdownTimeout] have their context ended, and what they then fail
// with gives the work back for others to start at once. Run returns nil once every function has returned.
//
// Calls that fail are repeated, with growing pauses, for as long as it takes. The error is an [*Error] that no repetition
// mends: the service refuses the configuration ([ErrInvalidField]), or the client was closed ([ErrClosed]).
//
// Values in ctx reach the function. Run may be called more than once.
func (w *Worker) Run(ctx context.Context) error {
	working, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var running sync.WaitGroup
	err := w.claim(ctx, func(claimed *joboncev1.ClaimedJob, until time.Time, done func()) {
		running.Go(func() {
			defer done()
			w.work(working, claimed, until)
		})
	})
	timer := time.AfterFunc(w.cfg.ShutdownTimeout, func() {
		w.cfg.Logger.Warn("jobs still run and are cut", "after", w.cfg.ShutdownTimeout)
		cut()
	})
	defer timer.Stop()
	running.Wait()
	if err != nil {
		return err
	}
	return nil
}

// claim claims jobs whenever there is room for some, and starts each. until is when the lease ends at the earliest; the
// room is free again once done is called.
func (w *Worker) claim(
	ctx context.Context, start func(claimed *joboncev1.ClaimedJob, until time.Time, done func()),
) *Error {
	free := newSlots(w.cfg.Concurrency)
	pauses := backoff.ExponentialBackOff{
		InitialInterval: time.Second, MaxInterval: 30 * time.Second, Multiplier: 2, RandomizationFactor: 0.5,
	}
	for {
		n := free.take(ctx, maxClaimJobs)
		if ctx.Err() != nil {
			return nil
		}
		asked := time.Now()
		resp, sent, err := w.c.claimWork(ctx, &joboncev1.ClaimWorkRequest{
			MaxJobs: int32(n), LeaseDuration: durationpb.New(w.cfg.Lease), Events: w.cfg.Events, WorkerId: w.cfg.WorkerID,
			Wait: durationpb.New(w.cfg.Wait),
		})
		for _, claimed := range resp.GetJobs() {
			n--
			start(claimed, sent.Add(claimed.GetLease().GetRemaining().AsDuration()), func() { free.give(1) })
		}
		free.give(n)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pauses.Reset()
			if len(resp.GetJobs()) == 0 {
				// A service that is about to stop answers before the time.
				pause = min(time.Second, w.cfg.Wait-time.Since(asked))
			}
		case errors.Is(err, ErrClosed), errors.Is(err, ErrInvalidField):
			return err
		default:
			pause = err.RetryDelay + pauses.NextBackOff()
			w.cfg.Logger.Warn("work cannot be claimed", "error", err, "retry_in", pause)
		}
		_ = w.c.wait(ctx, pause) // Why it ended early, the next round finds out.
	}
}

// work does the work of one job.
func (w *Worker) work(ctx context.Context, claimed *joboncev1.ClaimedJob, until time.Time) {
	job := claimed.GetJob()
	log := w.cfg.Logger.With("job_id", job.GetJobId(), "generation", claimed.GetLease().GetGeneration(),
		"attempts", job.GetWork().GetAttempts())
	p := &workRunner{c: w.c, lease: w.cfg.Lease, backoff: w.cfg.Backoff, fn: w.guarded(log)}
	done := p.run(ctx, &Work{Job: job, Lease: claimed.GetLease()}, until)
	switch {
	case done.err == nil:
		log.Debug("work completed")
	case done.settled:
		log.Error("work given up", "error", done.err)
	default:
		log.Warn("work failed", "error", done.err, "retry_in", done.delay)
	}
}

// guarded is the function with panics turned into errors.
func (w *Worker) guarded(log *slog.Logger) WorkFunc {
	return func(ctx context.Context, work *Work) (err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic", "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return w.fn(ctx, work)
	}
}

// slots are the places for jobs under way.
type slots chan struct{}

func newSlots(n int) slots {
	s := make(slots, n)
	s.give(n)
	return s
}

func (s slots) give(n int) {
	for range n {
		s <- struct{}{}
	}
}

// take waits until one is free and takes as many as there are, at most limit. It returns 0 when ctx ended first.
func (s slots) take(ctx context.Context, limit int) int {
	select {
	case <-s:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		if n == limit {
			return n
		}
		select {
		case <-s:
		default:
			return n
		}
	}
}
