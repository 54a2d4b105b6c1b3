package client

import (
	"context"

	"google.golang.org/grpc/codes"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// deliveries makes attempts of RecordDelivery, each in a call of its own or with others.
type deliveries struct {
	service joboncev1.IdempotencyServiceClient
	calls   *coalescer[*joboncev1.RecordDeliveryRequest, recorded]
}

// recorded is the answer to a delivery.
type recorded struct {
	*joboncev1.RecordDeliveryResponse
	// together: it came in a batch. lacks: and without what a single call would have been told.
	together, lacks bool
}

func newDeliveries(service joboncev1.IdempotencyServiceClient, token *bearer, shared bool) deliveries {
	d := deliveries{service: service}
	d.calls = newCoalescer(d.one, d.several, token, shared)
	return d
}

// record makes one attempt of a RecordDelivery call.
func (d deliveries) record(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, *Error) {
	got, err := d.calls.do(ctx, req)
	resp := got.RecordDeliveryResponse
	switch {
	case err != nil:
		return nil, err
	case got.lacks:
		return d.completed(ctx, req, resp)
	}
	// A batch says it once, a single call twice.
	if work := resp.GetJob().GetWork(); got.together && work != nil && resp.GetResult() != "" {
		work.Result = resp.GetResult()
	}
	return resp, nil
}

// one makes a call of its own.
func (d deliveries) one(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (recorded, *Error) {
	resp, err := attempt(ctx, d.service.RecordDelivery, req)
	return recorded{RecordDeliveryResponse: resp}, err
}

// several makes one call of several.
func (d deliveries) several(ctx context.Context, reqs []*joboncev1.RecordDeliveryRequest) ([]answer[recorded], *Error) {
	resp, err := attempt(ctx, d.service.BatchRecordDeliveries, &joboncev1.BatchRecordDeliveriesRequest{Deliveries: reqs})
	answers := make([]answer[recorded], len(resp.GetResults()))
	for i, result := range resp.GetResults() {
		resp, err := readResult(result)
		answers[i] = answer[recorded]{recorded{resp, true, lacking(resp)}, err}
	}
	return answers, err
}

// lacking tells whether a batch's answer lacks the result of completed work, or the body of a job to work on.
func lacking(resp *joboncev1.RecordDeliveryResponse) bool {
	switch resp.GetDisposition() {
	case joboncev1.Disposition_DISPOSITION_COMPLETED:
		return resp.GetResultOmitted()
	case joboncev1.Disposition_DISPOSITION_RECLAIMED:
		return resp.GetJob().GetBody() == nil
	}
	return false
}

// completed reads what an answer lacks. A caller that may not read jobs sends the delivery again by itself, which is told all.
func (d deliveries) completed(
	ctx context.Context, sent *joboncev1.RecordDeliveryRequest, resp *joboncev1.RecordDeliveryResponse,
) (*joboncev1.RecordDeliveryResponse, *Error) {
	req := &joboncev1.GetJobRequest{JobId: resp.GetJob().GetJobId(), View: joboncev1.JobView_JOB_VIEW_FULL}
	if resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_COMPLETED {
		req.View = joboncev1.JobView_JOB_VIEW_BASIC
	}
	got, err := attempt(ctx, d.service.GetJob, req)
	switch {
	case err != nil && err.Code == codes.NotFound:
		return resp, nil // deleted meanwhile: there is nothing to add
	case err != nil && err.Code == codes.PermissionDenied:
		if resp, err = attempt(ctx, d.service.RecordDelivery, sent); err != nil {
			err.OutcomeUnknown = true // as below
		}
		return resp, err
	case err != nil:
		err.OutcomeUnknown = true // The read wrote nothing, but the delivery before it is recorded.
		return nil, err
	}
	if req.GetView() == joboncev1.JobView_JOB_VIEW_FULL {
		resp.Job.Body = got.GetJob().GetBody()
	} else {
		resp.Result, resp.ResultOmitted = got.GetJob().GetWork().GetResult(), false
		resp.Job.Work.Result = resp.GetResult()
	}
	return resp, nil
}
