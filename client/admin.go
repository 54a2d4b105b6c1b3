package client

import (
	"context"

	"google.golang.org/grpc"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// repeat makes attempts of a call that may be repeated as it is. reads is set for one that writes nothing.
func repeat[Req, Resp any](
	ctx context.Context, c *Client, reads bool, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req, texts ...string,
) (resp Resp, err error) {
	if err := checkTexts(texts...); err != nil {
		return resp, err
	}
	failure := c.retry(ctx, 0, func(ctx context.Context) (err *Error) {
		if resp, err = attempt(ctx, call, req); err != nil && reads {
			err.OutcomeUnknown = false
		}
		return err
	})
	if failure != nil {
		var none Resp
		return none, failure
	}
	return resp, nil
}

// filterTexts are the texts of a filter, to be checked.
func filterTexts(f *joboncev1.JobFilter) []string {
	return []string{"filter.job_id_prefix", f.GetJobIdPrefix()}
}

// ListJobs returns a page of jobs. Set page_token to the next_page_token of the page before until there is none. The error
// is an [*Error].
func (c *Client) ListJobs(ctx context.Context, req *joboncev1.ListJobsRequest) (*joboncev1.ListJobsResponse, error) {
	return repeat(ctx, c, true, c.admin.ListJobs, req, filterTexts(req.GetFilter())...)
}

// CountJobs counts the jobs of each state. The error is an [*Error].
func (c *Client) CountJobs(ctx context.Context) (*joboncev1.CountJobsResponse, error) {
	return repeat(ctx, c, true, c.admin.CountJobs, &joboncev1.CountJobsRequest{})
}

// RequeueWork starts the work of a job anew. Name the job's generation, first_seen_time and state as they were read: then the call may
// be repeated, and does nothing to a job that has moved on. The error is an [*Error]; it matches [ErrJobNotFound], and [ErrWrongState]
// where the job's state forbids it.
func (c *Client) RequeueWork(ctx context.Context, req *joboncev1.RequeueWorkRequest) (*joboncev1.RequeueWorkResponse, error) {
	return repeat(ctx, c, false, c.admin.RequeueWork, req, "job_id", req.GetJobId())
}

// DeleteJob removes a job, or with payload_only what may be somebody's data in it. Name the job as it was read, as for
// [Client.RequeueWork]. One that is gone already is no error. The error is an [*Error]; it matches [ErrWrongState] where the job's state
// forbids it.
func (c *Client) DeleteJob(ctx context.Context, req *joboncev1.DeleteJobRequest) (*joboncev1.DeleteJobResponse, error) {
	return repeat(ctx, c, false, c.admin.DeleteJob, req, "job_id", req.GetJobId())
}

// RequeueJobs starts the work of many jobs anew, a part of them with each call. When the answer is lost, the call is not repeated: it
// would requeue other jobs than those that it may have requeued. The error is an [*Error], which then says OutcomeUnknown.
func (c *Client) RequeueJobs(ctx context.Context, req *joboncev1.RequeueJobsRequest) (*joboncev1.RequeueJobsResponse, error) {
	if req.GetDryRun() {
		return repeat(ctx, c, true, c.admin.RequeueJobs, req, filterTexts(req.GetFilter())...)
	}
	if err := checkTexts(filterTexts(req.GetFilter())...); err != nil {
		return nil, err
	}
	var resp *joboncev1.RequeueJobsResponse
	failure := c.retry(ctx, 0, func(ctx context.Context) (err *Error) {
		if resp, err = attempt(ctx, c.admin.RequeueJobs, req); err != nil {
			err.final = err.OutcomeUnknown
		}
		return err
	})
	if failure != nil {
		return nil, failure
	}
	return resp, nil
}

// ListExpectations returns a page of webhooks that are to come. The error is an [*Error].
func (c *Client) ListExpectations(ctx context.Context, req *joboncev1.ListExpectationsRequest) (*joboncev1.ListExpectationsResponse, error) {
	return repeat(ctx, c, true, c.admin.ListExpectations, req)
}

// PauseClaims keeps the work of jobs from being started whose ids begin with a prefix; see the service's own description. The error is
// an [*Error].
func (c *Client) PauseClaims(ctx context.Context, req *joboncev1.PauseClaimsRequest) (*joboncev1.PauseClaimsResponse, error) {
	return repeat(ctx, c, false, c.admin.PauseClaims, req, "job_id_prefix", req.GetJobIdPrefix(), "reason", req.GetReason())
}

// ResumeClaims ends a pause. The error is an [*Error].
func (c *Client) ResumeClaims(ctx context.Context, req *joboncev1.ResumeClaimsRequest) (*joboncev1.ResumeClaimsResponse, error) {
	return repeat(ctx, c, false, c.admin.ResumeClaims, req, "job_id_prefix", req.GetJobIdPrefix())
}

// ListClaimPauses returns all pauses. The error is an [*Error].
func (c *Client) ListClaimPauses(ctx context.Context) (*joboncev1.ListClaimPausesResponse, error) {
	return repeat(ctx, c, true, c.admin.ListClaimPauses, &joboncev1.ListClaimPausesRequest{})
}

// ExpectJob says that a webhook of the job is to come. Repeated, it keeps the first values. The error is an [*Error].
func (c *Client) ExpectJob(ctx context.Context, req *joboncev1.ExpectJobRequest) (*joboncev1.ExpectJobResponse, error) {
	return repeat(ctx, c, false, c.expectations.ExpectJob, req, "job_id", req.GetJobId(), "status_url", req.GetStatusUrl())
}

// ClaimOverdueJobs leases jobs whose webhook is overdue, to be polled. Those of an answer that gets lost come again once their leases
// have ended. A [Poller] does all that a claim entails. The error is an [*Error].
func (c *Client) ClaimOverdueJobs(ctx context.Context, req *joboncev1.ClaimOverdueJobsRequest) (*joboncev1.ClaimOverdueJobsResponse, error) {
	return repeat(ctx, c, false, c.expectations.ClaimOverdueJobs, req)
}

// ReportPoll gives a job back that was polled. The error is an [*Error]; it matches [ErrLeaseLost], and [ErrExpectationNotFound] when
// nothing is expected of the job any more.
func (c *Client) ReportPoll(ctx context.Context, req *joboncev1.ReportPollRequest) (*joboncev1.ReportPollResponse, error) {
	return repeat(ctx, c, false, c.expectations.ReportPoll, req, "job_id", req.GetJobId(), "lease_token", req.GetLeaseToken(), "error", req.GetError())
}

// CancelExpectation removes an expectation. The error is an [*Error]; it matches [ErrExpectationNotFound] when there is none, also when an
// attempt whose answer was lost has removed it.
func (c *Client) CancelExpectation(ctx context.Context, jobID string) error {
	_, err := repeat(ctx, c, false, c.expectations.CancelExpectation, &joboncev1.CancelExpectationRequest{JobId: jobID}, "job_id", jobID)
	return err
}
