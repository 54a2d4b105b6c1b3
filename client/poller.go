package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// Polled is what a provider says of a job.
type Polled struct {
	// Delivery is what to record, when the job is over; nil when it is not. The poller sets its job_id, and its source where
	// there is none.
	Delivery *joboncev1.RecordDeliveryRequest
	// After is when to ask again, from now, such as the provider's Retry-After; at most 24 hours. 0 leaves it to the service,
	// which waits longer each time.
	After time.Duration
}

// ErrPutOff is what a [PollFunc] wraps in the error for a job that it has not asked about, such as one too many of its provider for
// now. It is reported like any other error, so that people see why they wait, but counts as no poll, and is logged at level DEBUG alone.
var ErrPutOff = errors.New("put off")

// PollFunc asks the provider how a job stands, at the expectation's status_url. The context ends before the lease on the
// expectation does. What is polled is asked again after an error too; it must hold no secret, since it is kept.
type PollFunc func(ctx context.Context, e *joboncev1.Expectation) (Polled, error)

// PollerConfig adjusts a [Poller]; the zero value is fine.
type PollerConfig struct {
	// Concurrency is how many jobs are polled at a time, 1 to 100. Default 4.
	Concurrency int
	// Lease is how long nobody else polls a job that was claimed, 1 second to 1 hour. Default 1 minute.
	Lease time.Duration
	// Idle is how long to wait before looking again when nothing is overdue. Default 5 seconds.
	Idle time.Duration
	// Recorded is told of each job that was recorded by polling: with first_delivery set, its webhook was lost. nil: nobody is.
	Recorded func(e *joboncev1.Expectation, resp *joboncev1.RecordDeliveryResponse)
	// Logger hears of what fails. Default slog.Default().
	Logger *slog.Logger
}

// maxPollError is what the service takes of an error, in bytes.
const maxPollError = 1 << 10

// recordWithin bounds the report of a job that is over and its record together: nobody else gets the job for 12 seconds from the report, the
// least that the service waits by itself.
const recordWithin = 10 * time.Second

// Poller asks providers about jobs whose webhook is overdue, and records what it hears, with `poll` as the source: like a webhook,
// which may still come and is then a duplicate. Several may run; each job is polled by one at a time. Make one with
// [Client.NewPoller].
type Poller struct {
	client *Client
	poll   PollFunc
	cfg    PollerConfig
}

// NewPoller makes a poller. The error names the field of the configuration at fault.
func (c *Client) NewPoller(poll PollFunc, cfg PollerConfig) (*Poller, error) {
	if poll == nil {
		return nil, errors.New("client: the PollFunc is nil")
	}
	for _, f := range []struct {
		name              string
		value             *time.Duration
		otherwise, lo, hi time.Duration
	}{{"Lease", &cfg.Lease, time.Minute, time.Second, time.Hour}, {"Idle", &cfg.Idle, 5 * time.Second, time.Millisecond, time.Hour}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < f.lo || *f.value > f.hi {
			return nil, fmt.Errorf("client: PollerConfig.%s is %v, it must be %v to %v", f.name, *f.value, f.lo, f.hi)
		}
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 4
	}
	if cfg.Concurrency < 1 || cfg.Concurrency > 100 {
		return nil, fmt.Errorf("client: PollerConfig.Concurrency is %d, it must be 1 to 100", cfg.Concurrency)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Poller{client: c, poll: poll, cfg: cfg}, nil
}

// Run polls until ctx ends, and returns when the polls under way have ended. Jobs that it has then come to others once their leases
// are over.
func (p *Poller) Run(ctx context.Context) {
	var polls sync.WaitGroup
	defer polls.Wait()
	places := make(chan struct{}, p.cfg.Concurrency)
	turns := make(chan struct{}, 1) // the turn has come of a job that was put off
	for ctx.Err() == nil {
		free := 0
		for free < p.cfg.Concurrency {
			select {
			case places <- struct{}{}:
				free++
				continue
			default:
			}
			break
		}
		if free == 0 { // wait for one place
			select {
			case <-ctx.Done():
				return
			case places <- struct{}{}:
				free = 1
			}
		}
		began := time.Now()
		resp, err := p.client.ClaimOverdueJobs(ctx, &joboncev1.ClaimOverdueJobsRequest{MaxJobs: int32(free), LeaseDuration: durationpb.New(p.cfg.Lease)})
		if err != nil && ctx.Err() == nil {
			p.cfg.Logger.Warn("overdue jobs could not be claimed; the poller goes on", "error", err)
		}
		for _, j := range resp.GetJobs() {
			free--
			polls.Go(func() {
				defer func() { <-places }()
				if after, put := p.one(ctx, j, began); put {
					time.AfterFunc(after, func() {
						select {
						case turns <- struct{}{}:
						default:
						}
					})
				}
			})
		}
		for range free {
			<-places
		}
		if resp.GetMore() && err == nil {
			continue
		}
		wait := time.NewTimer(time.Duration(float64(p.cfg.Idle) * (0.8 + 0.4*p.client.random())))
		select {
		case <-ctx.Done():
		case <-wait.C:
		case <-turns:
		}
		wait.Stop()
	}
}

// one polls one job, gives it back, and records what it has heard. It tells whether the job was put off, and for how long.
func (p *Poller) one(ctx context.Context, j *joboncev1.OverdueJob, began time.Time) (after time.Duration, put bool) {
	e := j.GetExpectation()
	log := p.cfg.Logger.With("job_id", e.GetJobId())
	report := &joboncev1.ReportPollRequest{JobId: e.GetJobId(), LeaseToken: j.GetLeaseToken()}
	// What is left of the lease is for recording and reporting.
	polling, cancel := context.WithDeadline(ctx, began.Add(p.cfg.Lease*3/4))
	polled, err := p.poll(polling, e)
	cancel()
	if ctx.Err() != nil {
		return 0, false
	}
	report.PutOff = errors.Is(err, ErrPutOff)
	put = report.PutOff && polled.After > 0
	if polled.After > 0 {
		report.NextAfter = durationpb.New(min(polled.After, 24*time.Hour))
	}
	over := err == nil && polled.Delivery != nil
	switch {
	case err != nil:
		level := slog.LevelWarn
		if report.PutOff {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "a job that is overdue could not be polled; it is polled again", "error", err)
		report.Error = storable(err.Error(), maxPollError)
	case over: // recorded, the expectation is removed, and nobody sees this
		report.Error = "is over, and not recorded yet: see the poller's log"
		if polled.After <= recordWithin { // the record ends before the service's own delay does
			report.NextAfter = nil
		}
	}
	recording, cancel := context.WithTimeout(ctx, recordWithin)
	defer cancel()
	// The report comes first: it tells whether the job is expected yet, and is polled by us.
	resp, err := p.client.ReportPoll(ctx, report)
	switch {
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrExpectationNotFound):
		log.Info("what a poll has heard is not recorded: the job is not expected any more, or another poller has it")
	case err != nil && ctx.Err() == nil:
		log.Warn("a poll could not be reported; the job comes again when its lease is over", "error", err)
	case err == nil && over && !resp.GetRecorded():
		p.record(recording, e, polled.Delivery, report, log)
	}
	return polled.After, put
}

// record records what was heard of a job. Reported once more, the expectation is removed.
func (p *Poller) record(ctx context.Context, e *joboncev1.Expectation, d *joboncev1.RecordDeliveryRequest, report *joboncev1.ReportPollRequest, log *slog.Logger) {
	req := proto.CloneOf(d)
	if req.JobId = e.GetJobId(); req.GetSource() == "" {
		req.Source = "poll"
	}
	resp, err := p.client.RecordDelivery(ctx, req)
	if err != nil {
		log.Warn("a job that is overdue could not be recorded; it is polled again", "error", err)
		return
	}
	if p.cfg.Recorded != nil {
		p.cfg.Recorded(e, resp)
	}
	if _, err := p.client.ReportPoll(ctx, report); err != nil && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrExpectationNotFound) && ctx.Err() == nil {
		log.Warn("a poll that recorded a job could not be reported; the job stays listed as overdue for a while", "error", err)
	}
}
