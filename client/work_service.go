package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// ClaimWork leases jobs whose work is due; none is no error. The time that wait asks for comes on top of the client's
// timeout. When request_id is empty the client makes a random one for this call and keeps it over all attempts, so that
// claims whose answer gets lost are recovered. The request is not modified. A [Worker] does all that a claim entails.
//
// With a wait, the remaining time of a lease says little about when it ends: the call may have lasted for long after
// the claim or before it. Renew such a lease when in doubt. The error is an [*Error].
func (c *Client) ClaimWork(ctx context.Context, req *joboncev1.ClaimWorkRequest) (*joboncev1.ClaimWorkResponse, error) {
	resp, _, err := c.claimWork(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// claimWork is ClaimWork. sent is when the attempt that was answered began, on the monotonic clock: a duration in the answer
// counts from then on at the latest.
func (c *Client) claimWork(
	ctx context.Context, req *joboncev1.ClaimWorkRequest,
) (resp *joboncev1.ClaimWorkResponse, sent time.Time, err *Error) {
	if req == nil {
		return nil, sent, invalid("", "the request is nil")
	}
	for i, event := range req.GetEvents() {
		if err := checkText(fmt.Sprintf("events[%d]", i), event); err != nil {
			return nil, sent, err
		}
	}
	if err := checkTexts("worker_id", req.GetWorkerId(), "request_id", req.GetRequestId(), "job_id_prefix", req.GetJobIdPrefix()); err != nil {
		return nil, sent, err
	}
	if req.GetRequestId() == "" {
		req = proto.CloneOf(req)
		req.RequestId = rand.Text()
	}
	err = c.retry(ctx, max(0, req.GetWait().AsDuration()), func(ctx context.Context) (err *Error) {
		sent = time.Now()
		if resp, err = attempt(ctx, c.work.ClaimWork, req); err != nil {
			err.RequestID = req.GetRequestId()
		}
		return err
	})
	if got, asked := len(resp.GetJobs()), max(1, int(req.GetMaxJobs())); err == nil && got > asked {
		return nil, sent, unreadable(fmt.Sprintf("%d jobs where %d were asked for", got, asked))
	}
	return resp, sent, err
}

// RenewLease lets a lease run anew from now, and never makes it shorter, and returns it with its new end. The error is an
// [*Error]; it matches [ErrLeaseLost] when the token holds the lease no more, and [ErrJobNotFound] when the job was deleted.
func (c *Client) RenewLease(ctx context.Context, req *joboncev1.RenewLeaseRequest) (*joboncev1.Lease, error) {
	lease, _, err := c.renewLease(ctx, req)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// renewLease is RenewLease. sent is as in claimWork.
func (c *Client) renewLease(
	ctx context.Context, req *joboncev1.RenewLeaseRequest,
) (lease *joboncev1.Lease, sent time.Time, err *Error) {
	if err := checkTexts("job_id", req.GetJobId(), "lease_token", req.GetLeaseToken()); err != nil {
		return nil, sent, err
	}
	change := &joboncev1.LeaseChange{Change: &joboncev1.LeaseChange_Renew{Renew: req}}
	err = c.retry(ctx, 0, func(ctx context.Context) (err *Error) {
		sent = time.Now()
		lease, err = c.renewals.do(ctx, change)
		return err
	})
	return lease, sent, err
}

// CompleteWork says that the work is done and stores its result. Repeated with the same token it succeeds, and the first
// result stays. Errors are those of [Client.RenewLease].
func (c *Client) CompleteWork(ctx context.Context, req *joboncev1.CompleteWorkRequest) error {
	if err := checkTexts("job_id", req.GetJobId(), "lease_token", req.GetLeaseToken(), "result", req.GetResult()); err != nil {
		return err
	}
	return c.settle(ctx, &joboncev1.LeaseChange{Change: &joboncev1.LeaseChange_Complete{Complete: req}})
}

// ReleaseWork gives the work back undone, or with dead gives it up. Repeated with the same token it succeeds and changes
// nothing. Errors are those of [Client.RenewLease].
func (c *Client) ReleaseWork(ctx context.Context, req *joboncev1.ReleaseWorkRequest) error {
	if err := checkTexts("job_id", req.GetJobId(), "lease_token", req.GetLeaseToken(), "error", req.GetError()); err != nil {
		return err
	}
	return c.settle(ctx, &joboncev1.LeaseChange{Change: &joboncev1.LeaseChange_Release{Release: req}})
}

// settle makes attempts of a call that ends work.
func (c *Client) settle(ctx context.Context, change *joboncev1.LeaseChange) error {
	err := c.retry(ctx, 0, func(ctx context.Context) *Error {
		_, err := c.settlings.do(ctx, change)
		return err
	})
	if err != nil {
		return err
	}
	return nil
}

// checkTexts is checkText for pairs of a field's name and its value.
func checkTexts(pairs ...string) *Error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if err := checkText(pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}
