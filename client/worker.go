package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
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
	// JobIDPrefix lets only jobs be claimed whose id begins with it. It ends in ":". Empty: any.
	JobIDPrefix string
	// WorkerID names the worker in the service's log. At most 128 bytes. Optional.
	WorkerID string
	// Wait is how long one call waits for work at the service, at most 1 minute. 0: DefaultWait.
	Wait time.Duration
	// ShutdownTimeout is how long the jobs under way may go on once the worker is to stop. 0: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Backoff is how long a job that failed is left alone, as in [WithBackoff]. nil: DefaultBackoff.
	Backoff func(attempts int) time.Duration
	// Ended is told how the work of each job ended that was started, and how long it took, the call that told the service included.
	// It is called by several goroutines, and holds up the job's place. nil: nobody is told.
	Ended func(outcome WorkOutcome, took time.Duration)
	// Logger hears of failed jobs and failed calls; payloads and lease tokens are never written to it. nil: slog.Default().
	Logger *slog.Logger
}

// WorkOutcome is how the work of a job ended at a [Worker]. There may be more of them in later versions.
type WorkOutcome string

const (
	// WorkDone: the work is completed, and the service knows it.
	WorkDone WorkOutcome = "done"
	// WorkFailed: the work is to be tried again. It may have been done, if the service could not be told.
	WorkFailed WorkOutcome = "failed"
	// WorkDead: the work was given up, by an error that [Permanent] made.
	WorkDead WorkOutcome = "dead"
	// WorkGivenBack: the attempt does not count, since the work was not begun, or what it needs is away.
	WorkGivenBack WorkOutcome = "given_back"
	// WorkLost: the lease was lost, so somebody else may do the work too.
	WorkLost WorkOutcome = "lost"
)

// withDefaults checks the configuration and returns a copy without zero values.
func (c WorkerConfig) withDefaults() (WorkerConfig, error) {
	if c.Concurrency < 0 {
		return c, fmt.Errorf("client: WorkerConfig.Concurrency is %d, it must not be negative", c.Concurrency)
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
// So that no place stays empty until a claim is answered, a busy worker claims ahead: no more jobs than it has started
// within the last second, or the last eighth of a lease if that is shorter, and no more than 100, or Concurrency if that is
// more. What it has not started within a quarter of a lease, or when ctx ends, it gives back, and the attempt does not count.
//
// Calls that fail are repeated, with growing pauses, for as long as it takes; the log says so once, and again when it is over.
// The error is an [*Error] that no repetition
// mends: the service refuses the configuration ([ErrInvalidField]), or the client was closed ([ErrClosed]).
//
// Values in ctx reach the function. Run may be called more than once.
func (w *Worker) Run(ctx context.Context) error {
	working, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var o *outage
	s := newStock(w.cfg, func(job claimedJob) {
		defer o.over(job.GetJob().GetJobId())
		w.work(working, o, job)
	}, func(job claimedJob) {
		defer o.over(job.GetJob().GetJobId())
		w.giveBack(working, job)
	})
	o = newOutage(w.cfg.Logger, s.returnWaiting)
	req := &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(w.cfg.Lease), Events: w.cfg.Events, JobIdPrefix: w.cfg.JobIDPrefix,
		WorkerId: w.cfg.WorkerID}
	err := w.claim(ctx, s, o, req)
	timer := time.AfterFunc(w.cfg.ShutdownTimeout, func() {
		w.cfg.Logger.Warn("jobs still run and are cut", "after", w.cfg.ShutdownTimeout)
		cut()
	})
	defer timer.Stop()
	s.stop()
	if err == nil && req.RequestId != "" {
		w.claimLast(working, s, req)
	}
	s.running.Wait()
	if err != nil {
		return err
	}
	return nil
}

// claim claims jobs whenever there is room for some, until ctx ends. The request keeps its request_id as long as nobody
// knows what a claim was granted: the next one finds out.
func (w *Worker) claim(ctx context.Context, s *stock, o *outage, req *joboncev1.ClaimWorkRequest) *Error {
	pauses := backoff.ExponentialBackOff{
		InitialInterval: time.Second, MaxInterval: 30 * time.Second, Multiplier: 2, RandomizationFactor: 0.5,
	}
	said := "" // what was logged of the failure that goes on
	for unknown := false; ; {
		n, wait := s.room(ctx)
		alone := o.pass(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if alone {
			n = 1
		}
		if req.RequestId == "" {
			req.RequestId, req.MaxJobs = rand.Text(), int32(n)
		}
		req.Wait = durationpb.New(wait)
		asked := time.Now()
		resp, sent, err := w.c.claimWork(ctx, req)
		switch jobs := resp.GetJobs(); {
		case alone && len(jobs) > 0:
			o.sent(jobs[0].GetJob().GetJobId())
			s.add(jobs[:1], sent)
			s.giveBackAll(jobs[1:], sent)
		case !alone && o.away(): // It began while the claim was under way.
			s.giveBackAll(jobs, sent)
		default:
			s.add(jobs, sent)
		}
		// A refusal tells of its own call alone.
		if unknown = err != nil && (unknown || err.OutcomeUnknown); !unknown {
			req.RequestId = ""
		}
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pauses.Reset()
			if said != "" {
				w.cfg.Logger.Info("work can be claimed again")
				said = ""
			}
			if len(resp.GetJobs()) == 0 {
				// A service that is about to stop answers before the time.
				pause = min(time.Second, wait-time.Since(asked))
			}
		case errors.Is(err, ErrClosed), errors.Is(err, ErrInvalidField):
			return err
		default:
			pause = err.RetryDelay + pauses.NextBackOff()
			level := slog.LevelDebug
			if kind := err.Code.String() + err.ReasonText; kind != said {
				said, level = kind, slog.LevelWarn
			}
			w.cfg.Logger.Log(ctx, level, "work cannot be claimed; it is tried again until it can", "error", err, "retry_in", pause)
		}
		_ = w.c.wait(ctx, pause) // Why it ended early, the next round finds out.
	}
}

// claimLast finds out what a claim that was cut short was granted after all, for the stock to give back.
func (w *Worker) claimLast(ctx context.Context, s *stock, req *joboncev1.ClaimWorkRequest) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req.Wait = nil
	if resp, sent, err := w.c.claimWork(ctx, req); err == nil { // Otherwise the leases lapse, if there are any.
		s.add(resp.GetJobs(), sent)
	}
}

// work does the work of one job.
func (w *Worker) work(ctx context.Context, o *outage, claimed claimedJob) {
	job := claimed.GetJob()
	log := func() *slog.Logger {
		return w.cfg.Logger.With("job_id", job.GetJobId(), "generation", claimed.GetLease().GetGeneration(),
			"attempts", job.GetWork().GetAttempts())
	}
	r := &workRunner{c: w.c, lease: w.cfg.Lease, backoff: w.cfg.Backoff, fn: w.guarded(log), away: o.ended}
	began := time.Now()
	done := r.run(ctx, &Work{Job: job, Lease: claimed.GetLease()}, claimed.until)
	if w.cfg.Ended != nil {
		w.cfg.Ended(done.outcome(), time.Since(began))
	}
	switch {
	case done.err != nil && done.settled:
		log().Error("work given up", "error", logged(done.err))
	case done.err != nil && done.uncounted:
		log().Debug("work given back, and not counted", "error", logged(done.err))
	case done.err != nil:
		log().Warn("work failed", "error", logged(done.err), "retry_in", done.delay)
	case w.cfg.Logger.Enabled(ctx, slog.LevelDebug):
		log().Debug("work completed")
	}
}

// logged is what is logged of an error.
func logged(err error) any {
	if v := slog.LogValuer(nil); errors.As(err, &v) {
		return v
	}
	return err
}

// giveBack returns a job that was not started. If that fails, its lease lapses.
func (w *Worker) giveBack(ctx context.Context, claimed claimedJob) {
	h := &holding{c: w.c, jobID: claimed.GetJob().GetJobId(), token: claimed.GetLease().GetToken()}
	if err := h.notStarted(ctx); err != nil {
		w.cfg.Logger.Warn("a job that was not started could not be given back", "job_id", h.jobID, "error", err)
	}
}

// guarded is the function with panics turned into errors.
func (w *Worker) guarded(log func() *slog.Logger) WorkFunc {
	return func(ctx context.Context, work *Work) (err error) {
		defer func() {
			if p := recover(); p != nil {
				log().Error("panic", "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return w.fn(ctx, work)
	}
}
