package server

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"google.golang.org/grpc/metadata"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

const (
	// The bounds of one BatchRecordDeliveries call.
	maxBatchItems = 256
	maxBatchBytes = 8 << 20

	// attemptsHeader is what gRPC's own retries carry: how many attempts went before.
	attemptsHeader = "grpc-previous-rpc-attempts"
)

// idempotencyService implements IdempotencyService.
type idempotencyService struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	jobs     Recorder
	maxBody  int
	log      *slog.Logger
	observer Observer
	bell     *bell
	waits    *waits
	traced   bool // Calls may have spans.
}

// RecordDelivery records one delivery.
func (s *idempotencyService) RecordDelivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	wait, err := waitAsked(req.GetWait())
	var d job.Delivery
	if err == nil {
		d, err = s.delivery(ctx, req)
	}
	if err != nil {
		return nil, s.observed(fail(ctx, err, ""))
	}
	o := s.jobs.RecordOne(ctx, d)
	if wait > 0 && unsettled(&o) {
		o = s.waits.await(ctx, &d, o, wait)
	}
	if o.Err == nil {
		o.Err = tooLong(&o.Record)
	}
	if o.Err != nil {
		return nil, s.observed(fail(ctx, o.Err, d.RequestID))
	}
	s.recorded(&o)
	return toResponse(&o), nil
}

// BatchRecordDeliveries records the valid ones of many deliveries in one call of the store.
func (s *idempotencyService) BatchRecordDeliveries(ctx context.Context, req *joboncev1.BatchRecordDeliveriesRequest) (*joboncev1.BatchRecordDeliveriesResponse, error) {
	if err := checkBatch(req.GetDeliveries()); err != nil {
		return nil, fail(ctx, err, "")
	}
	results := make([]*joboncev1.BatchRecordDeliveriesResponse_Result, len(req.GetDeliveries()))
	valid := make([]job.Delivery, 0, len(results))
	at := make([]int, 0, len(results)) // where the valid ones stand in the request
	for i, r := range req.GetDeliveries() {
		d, err := s.delivery(ctx, r)
		if err == nil && r.GetWait().AsDuration() != 0 {
			err = &job.InvalidError{Field: "wait", Problem: "is for a delivery in a call of its own"}
		}
		if err != nil {
			results[i] = itemError(s.observed(explain(ctx, err, "")))
			continue
		}
		valid, at = append(valid, d), append(at, i)
	}
	if len(valid) > 0 {
		outcomes := s.jobs.Record(ctx, valid)
		errs := make([]error, len(outcomes))
		for i := range outcomes {
			if outcomes[i].Err == nil {
				outcomes[i].Err = tooLong(&outcomes[i].Record)
			}
			errs[i] = outcomes[i].Err
			results[at[i]] = s.itemResult(ctx, &outcomes[i], valid[i].RequestID)
		}
		logFaults(ctx, s.log, errs)
	}
	resp := &joboncev1.BatchRecordDeliveriesResponse{Results: results}
	fit(resp)
	return resp, nil
}

// GetJob reads one job.
func (s *idempotencyService) GetJob(ctx context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
	if err := job.CheckJobID(req.GetJobId()); err != nil {
		return nil, fail(ctx, err, "")
	}
	if err := mayTouch(ctx, req.GetJobId()); err != nil {
		return nil, fail(ctx, err, "")
	}
	var full bool
	switch req.GetView() {
	case joboncev1.JobView_JOB_VIEW_UNSPECIFIED, joboncev1.JobView_JOB_VIEW_BASIC:
	case joboncev1.JobView_JOB_VIEW_FULL:
		if err := mayReadBody(ctx); err != nil {
			return nil, fail(ctx, err, "")
		}
		full = true
	default:
		return nil, fail(ctx, &job.InvalidError{Field: "view", Problem: fmt.Sprintf("%d is not known", req.GetView())}, "")
	}
	r, err := s.jobs.Get(ctx, req.GetJobId(), full)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	if err := tooLong(&r); err != nil {
		return nil, fail(ctx, err, "")
	}
	return &joboncev1.GetJobResponse{Job: toJob(&r)}, nil
}

// delivery checks one request.
func (s *idempotencyService) delivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (job.Delivery, error) {
	in, err := fromRequest(req)
	if err != nil {
		return job.Delivery{}, err
	}
	if in.Traceparent == "" {
		in.Traceparent = traceOf(ctx)
	} else if s.traced {
		linkTrace(ctx, in.Traceparent)
	}
	if in.RequestID == "" && isTransportRetry(ctx) {
		return job.Delivery{}, errRetryWithoutID()
	}
	if caller := auth.CallerOf(ctx); caller != nil {
		in.Caller = caller.Name
	}
	d, err := in.Delivery(s.maxBody)
	if err == nil {
		err = mayRecord(ctx, &d)
	}
	if err != nil {
		return d, err
	}
	if d.EventUnread == job.UnreadValue {
		s.observer.Unread("event")
	}
	if d.StatusUnread == job.UnreadValue {
		s.observer.Unread("status")
	}
	if d.TraceparentUnread {
		s.observer.Unread("traceparent")
	}
	return d, nil
}

// isTransportRetry tells whether gRPC itself repeats the call.
func isTransportRetry(ctx context.Context) bool {
	for _, v := range metadata.ValueFromIncomingContext(ctx, attemptsHeader) {
		if n, err := strconv.Atoi(v); err == nil && n > 0 {
			return true
		}
	}
	return false
}

// errRetryWithoutID is the error of a call that gRPC repeats without a request id.
func errRetryWithoutID() error {
	return &job.InvalidError{Field: "request_id", Problem: "is required in a call that gRPC retries: " +
		"without it the retry cannot be told from another call"}
}

// checkBatch checks what concerns a batch as a whole.
func checkBatch(deliveries []*joboncev1.RecordDeliveryRequest) error {
	if err := listTooLong("deliveries", len(deliveries), maxBatchItems); err != nil {
		return err
	}
	var bytes int
	for _, d := range deliveries {
		bytes += len(d.GetPayload()) + len(d.GetPayloadBytes())
	}
	if bytes > maxBatchBytes {
		return &job.InvalidError{
			Field: "deliveries", Problem: fmt.Sprintf("has payloads of %d bytes; the limit is %d", bytes, maxBatchBytes), TooLarge: true,
		}
	}
	return nil
}

// itemResult is what one delivery of a batch is told.
func (s *idempotencyService) itemResult(ctx context.Context, o *job.Outcome, requestID string) *joboncev1.BatchRecordDeliveriesResponse_Result {
	if o.Err != nil {
		return itemError(s.observed(explain(ctx, o.Err, requestID)))
	}
	s.recorded(o)
	answer := toResponse(o)
	answer.Job.Work.Result = "" // it stands in the answer already
	return &joboncev1.BatchRecordDeliveriesResponse_Result{
		Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Response{Response: answer},
	}
}

// recorded tells the observer of a verdict. When a job was queued it also rings for those who wait for work.
func (s *idempotencyService) recorded(o *job.Outcome) {
	s.observer.Recorded(o.Verdict)
	if o.Verdict.FirstDelivery && o.Record.Work.State == job.StateQueued {
		s.bell.ring(o.Record.JobID, o.Record.Event)
	}
}

// observed tells the observer of what a delivery got instead of a verdict, and returns it.
func (s *idempotencyService) observed(p *problem) *problem {
	s.observer.Failed(reasonName(p.reason))
	return p
}

func itemError(p *problem) *joboncev1.BatchRecordDeliveriesResponse_Result {
	return &joboncev1.BatchRecordDeliveriesResponse_Result{
		Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Error{Error: p.item()},
	}
}
