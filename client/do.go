package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// DoOption changes a default of [Client.Do].
type DoOption func(*workRunner)

// WithWait lets the service wait, a minute at most, when the work is somebody else's, until it is done, or free for this caller:
// the provider then need not deliver again. It comes on top of the client's timeout. Default 0: answer at once.
func WithWait(d time.Duration) DoOption {
	return func(r *workRunner) { r.wait = d }
}

// WithBackoff sets how long work that failed is left alone, given how many leases the job has had, this one included. At
// most 24 hours. Default [DefaultBackoff].
func WithBackoff(backoff func(attempts int) time.Duration) DoOption {
	return func(r *workRunner) { r.backoff = backoff }
}

// Result is what became of a delivery that was given to [Client.Do]: what a webhook frontend needs to know to answer its
// provider.
type Result struct {
	// Settled is true when the job needs no further delivery, because its work is done, was given up, or is not tracked:
	// answer with a 2xx. When false, answer with a 503 and a Retry-After header, so that the provider delivers again: the
	// work has yet to be done, and another delivery may be what starts it.
	Settled bool
	// RetryAfter is when the next delivery is likely to find the work done, or free to be started: in whole seconds, at
	// least one. Work that somebody is at is given as long again as its job is known, but at most until the lease ends. 0
	// when Settled.
	RetryAfter time.Duration
	// Ran is true when this call ran the function.
	Ran bool
	// Response is the service's answer to the delivery: how the job stood before the function ran. Nil when there was none,
	// and the error is the delivery's; otherwise the delivery is recorded, and the error is the work's.
	Response *joboncev1.RecordDeliveryResponse
}

// Do records a delivery and, if this caller is to start the work, runs fn under a lease: fn gets the stored job, the
// lease is renewed while fn runs, and afterwards the work is completed, or given back when fn failed. When fn panics, the
// work is given back and the panic goes on. The calls that complete and give back do not depend on ctx.
//
// work_mode is set to LEASED and must not ask for another one; lease_duration is [DefaultLease] unless it is set. The rest
// of the request is as for [Client.RecordDelivery]. The request is not modified.
//
// The result tells what to answer the provider, also when there is an error: look at it first. The error is nil when nothing
// went wrong, with the work done or not this caller's to do. Otherwise it is the [*Error] of a delivery that could not be
// recorded, an error that matches fn's, or one that says that fn was not started, or that it succeeded and the service could
// not be told: it matches [ErrLeaseLost] when the lease was lost by then, and somebody else may do the work too. An error of
// fn's can match [ErrInvalidField] and the like, when fn calls this package or another service: only with a nil
// [Result.Response] do they speak of the delivery.
func (c *Client) Do(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest, fn WorkFunc, opts ...DoOption,
) (Result, error) {
	unsettled := Result{RetryAfter: wholeSeconds(0)}
	p := &workRunner{c: c, backoff: DefaultBackoff, fn: fn}
	for _, opt := range opts {
		opt(p)
	}
	switch {
	case fn == nil:
		return unsettled, errors.New("client: the function is nil")
	case p.backoff == nil:
		return unsettled, errors.New("client: WithBackoff: the function is nil")
	}
	req, err := leased(req)
	if err != nil {
		return unsettled, err
	}
	p.lease = req.GetLeaseDuration().AsDuration()
	if p.wait != 0 { // req is a copy
		req.Wait = durationpb.New(p.wait)
	}

	resp, sent, err := c.record(ctx, req)
	if err != nil {
		return Result{RetryAfter: wholeSeconds(err.RetryDelay)}, err
	}
	if !resp.GetStartWork() {
		return notStarted(resp), nil
	}
	unsettled.Response = resp
	if resp.GetLease().GetToken() == "" || resp.GetJob().GetJobId() == "" {
		// It is the answer to an earlier call with the same request_id that asked for no lease.
		return unsettled, errors.New("client: the service says to start the work and grants no lease: " +
			"was the job recorded before with this request_id and another work_mode?")
	}
	w := &Work{Job: resp.GetJob(), Lease: resp.GetLease()}
	if resp.GetFirstDelivery() && w.Job.GetBody() == nil {
		w.Job = withBody(w.Job, req)
	}
	done := p.run(ctx, w, sent.Add(w.Lease.GetRemaining().AsDuration()))
	result := Result{Settled: done.settled, Ran: done.ran, Response: resp}
	if !result.Settled {
		result.RetryAfter = wholeSeconds(done.delay)
	}
	return result, done.err
}

// leased returns a copy of req that asks for a lease.
func leased(req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryRequest, *Error) {
	if req == nil {
		return nil, invalid("", "the delivery is nil")
	}
	switch req.GetWorkMode() {
	case joboncev1.WorkMode_WORK_MODE_UNSPECIFIED, joboncev1.WorkMode_WORK_MODE_LEASED:
	default:
		return nil, invalid("work_mode", "work_mode must be LEASED or unset")
	}
	req = shallowCopy(req)
	req.WorkMode = joboncev1.WorkMode_WORK_MODE_LEASED
	if req.LeaseDuration == nil {
		req.LeaseDuration = durationpb.New(DefaultLease)
	}
	return req, nil
}

// withBody returns the job with the body of the delivery that created it, which the service does not send back.
func withBody(job *joboncev1.Job, req *joboncev1.RecordDeliveryRequest) *joboncev1.Job {
	job = proto.CloneOf(job)
	switch b := req.GetBody().(type) {
	case *joboncev1.RecordDeliveryRequest_Payload:
		job.Body = &joboncev1.Job_Payload{Payload: b.Payload}
	case *joboncev1.RecordDeliveryRequest_PayloadBytes:
		job.Body = &joboncev1.Job_PayloadBytes{PayloadBytes: b.PayloadBytes}
	}
	return job
}

// notStarted is the result of a delivery whose work is not this caller's to start. A disposition that is not known here
// counts as work that has yet to be done: a delivery too many does no harm.
func notStarted(resp *joboncev1.RecordDeliveryResponse) Result {
	switch resp.GetDisposition() {
	case joboncev1.Disposition_DISPOSITION_COMPLETED,
		joboncev1.Disposition_DISPOSITION_DEAD,
		joboncev1.Disposition_DISPOSITION_DUPLICATE:
		return Result{Settled: true, Response: resp}
	}
	return Result{RetryAfter: wholeSeconds(untilFree(resp)), Response: resp}
}

// untilFree is how long the work of a job is likely to be neither done nor free.
func untilFree(resp *joboncev1.RecordDeliveryResponse) time.Duration {
	job := resp.GetJob()
	first, due, now := job.GetFirstSeenTime(), job.GetWork().GetDueTime(), job.GetLastSeenTime()
	if due == nil || now == nil {
		return 0
	}
	// All are the store's times, and this very delivery was the latest.
	left := due.AsTime().Sub(now.AsTime())
	if resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_IN_PROGRESS && first != nil {
		// Waits that double ask seldom for long work and soon for short work.
		return min(left, now.AsTime().Sub(first.AsTime()))
	}
	return left
}

// wholeSeconds rounds up, to one at least, as a Retry-After header wants it.
func wholeSeconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}
