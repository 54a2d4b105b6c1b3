package chaostest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	// callTimeout bounds a call; few get there. Now and then one is given a few milliseconds.
	callTimeout = time.Second
	hasty       = 32 // one call in so many
	// quietTimeout bounds a call, its repetitions included, when all is quiet.
	quietTimeout = time.Minute
)

// remote is a service as a store: the real client makes one attempt for each call, and its errors come back as those of
// job.Store. What is asked and answered goes to the ledger.
type remote struct {
	job.Store // nil: what a client cannot ask for
	client    *client.Client
	ledger    *ledger
	began     func() // told of every call; may be nil

	mu  sync.Mutex
	rng *rand.Rand // nil: no call is in a hurry
}

// newRemote makes a client of the service at addr that makes one attempt for each call, unless an option says otherwise.
func newRemote(t *testing.T, addr string, rng *rand.Rand, opts ...client.Option) *remote {
	t.Helper()
	c, err := client.New(addr, append([]client.Option{
		client.WithTimeout(0),
		client.WithRetry(client.RetryPolicy{MaxAttempts: 1, BaseDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond}),
		// A service that is being started is waited for, within the call's time.
		client.WithDialOptions(grpc.WithDefaultCallOptions(grpc.WaitForReady(true))), client.WithBatching(),
	}, opts...)...)
	testenv.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &remote{client: c, rng: rng}
}

// within bounds a call that begins now.
func (r *remote) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.began != nil {
		r.began()
	}
	if r.rng == nil {
		return context.WithTimeout(ctx, quietTimeout)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := callTimeout
	if r.rng.IntN(hasty) == 0 {
		limit = time.Duration(1+r.rng.IntN(20)) * time.Millisecond
	}
	return context.WithTimeout(ctx, limit)
}

// asError makes of a client's error the one that a store would have given.
func asError(err error) error {
	e := new(client.Error)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrLeaseLost):
		return job.ErrLeaseLost
	case errors.Is(err, client.ErrJobNotFound):
		return job.ErrNotFound
	case !errors.As(err, &e), errors.Is(err, client.ErrInternal):
		return err
	case errors.Is(err, client.ErrOverloaded):
		return fmt.Errorf("%w: %w", job.ErrOverloaded, err)
	case e.OutcomeUnknown:
		return fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	case e.Reason == joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, e.ReasonText == "":
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	return err
}

// Record makes one call for one delivery, and one for many.
func (r *remote) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	ctx, cancel := r.within(ctx)
	defer cancel()
	reqs := make([]*joboncev1.RecordDeliveryRequest, len(ds))
	for i := range ds {
		reqs[i] = toRequest(&ds[i])
	}
	var results []client.BatchResult
	if len(ds) == 1 {
		resp, err := r.client.RecordDelivery(ctx, reqs[0])
		results = []client.BatchResult{{Response: resp, Err: err}}
	} else {
		results, _ = r.client.BatchRecordDeliveries(ctx, reqs) // each result has its error
	}
	out := make([]job.Outcome, len(ds))
	for i, res := range results {
		if out[i].Err = asError(res.Err); out[i].Err == nil {
			out[i] = toOutcome(res.Response)
		}
	}
	r.ledger.recorded(ds, out)
	return out
}

func toRequest(d *job.Delivery) *joboncev1.RecordDeliveryRequest {
	req := &joboncev1.RecordDeliveryRequest{
		JobId: d.JobID, Event: d.Event, Status: d.Status, RequestId: d.RequestID, WorkMode: joboncev1.WorkMode(d.Mode),
		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: d.Body.Data},
	}
	if d.Mode == job.ModeLeased {
		req.LeaseDuration = durationpb.New(d.Lease)
	}
	return req
}

func toOutcome(resp *joboncev1.RecordDeliveryResponse) job.Outcome {
	o := job.Outcome{Verdict: job.Verdict{
		Disposition: job.Disposition(resp.GetDisposition()), StartWork: resp.GetStartWork(), FirstDelivery: resp.GetFirstDelivery(),
	}}
	if c := resp.GetConflict(); c != nil {
		o.Verdict.Conflict = &job.Conflict{Kind: job.ConflictKind(c.GetKind())}
	}
	if resp.GetLease() != nil {
		l := toLease(resp.GetLease())
		o.Lease = &l
	}
	o.Record = job.Record{JobID: resp.GetJob().GetJobId(), Deliveries: resp.GetDeliveries(), Body: job.Body{Data: resp.GetJob().GetPayload()}}
	o.Record.Work.Result = resp.GetResult()
	return o
}

func toLease(l *joboncev1.Lease) job.Lease {
	return job.Lease{Token: l.GetToken(), Generation: l.GetGeneration(), Expires: l.GetExpireTime().AsTime()}
}

// Claim implements [job.Store].
func (r *remote) Claim(ctx context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	resp, err := r.client.ClaimWork(ctx, &joboncev1.ClaimWorkRequest{
		RequestId: req.RequestID, MaxJobs: int32(req.Max), LeaseDuration: durationpb.New(req.Lease), Events: req.Events,
	})
	var claimed []job.Claimed
	for _, j := range resp.GetJobs() {
		claimed = append(claimed, job.Claimed{Lease: toLease(j.GetLease()), Record: job.Record{
			JobID: j.GetJob().GetJobId(), Body: job.Body{Data: j.GetJob().GetPayload()},
		}})
	}
	err = asError(err)
	r.ledger.claimed(claimed, err)
	return claimed, err
}

// ChangeLeases implements [job.Store].
func (r *remote) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	out := make([]job.LeaseOutcome, len(changes))
	for i, c := range changes {
		switch o := &out[i]; c.Kind {
		case job.Renewal:
			o.Lease, o.Err = r.renew(ctx, c.JobID, c.Token, c.Duration)
		case job.Completion:
			o.Err = r.complete(ctx, c.JobID, c.Token, c.Result)
		case job.Releasing:
			o.Err = r.release(ctx, c.JobID, c.Token, c.Release)
		}
	}
	return out
}

func (r *remote) renew(ctx context.Context, jobID, token string, d time.Duration) (job.Lease, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	l, err := r.client.RenewLease(ctx, &joboncev1.RenewLeaseRequest{JobId: jobID, LeaseToken: token, LeaseDuration: durationpb.New(d)})
	if err != nil {
		err = asError(err)
		r.ledger.answered(err)
		return job.Lease{}, err
	}
	r.ledger.answered(nil)
	lease := toLease(l)
	r.ledger.leased(jobID, lease)
	return lease, nil
}

func (r *remote) complete(ctx context.Context, jobID, token, result string) error {
	ctx, cancel := r.within(ctx)
	defer cancel()
	r.ledger.giveUp(jobID, token)
	err := asError(r.client.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: jobID, LeaseToken: token, Result: result}))
	r.ledger.completed(jobID, err)
	return err
}

func (r *remote) release(ctx context.Context, jobID, token string, rel job.Release) error {
	ctx, cancel := r.within(ctx)
	defer cancel()
	r.ledger.giveUp(jobID, token)
	req := &joboncev1.ReleaseWorkRequest{JobId: jobID, LeaseToken: token, Error: rel.Error, Dead: rel.Dead, NotStarted: rel.NotStarted}
	if rel.Delay > 0 {
		req.RetryDelay = durationpb.New(rel.Delay)
	}
	err := asError(r.client.ReleaseWork(ctx, req))
	r.ledger.answered(err)
	return err
}

// read reads a job with its body.
func (r *remote) read(ctx context.Context, jobID string) (*joboncev1.Job, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	j, err := r.client.GetJob(ctx, jobID, joboncev1.JobView_JOB_VIEW_FULL)
	return j, asError(err)
}
