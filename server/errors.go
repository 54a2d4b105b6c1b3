package server

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

const (
	// errorDomain is the domain of every ErrorInfo.
	errorDomain = "jobonce"
	// adminMethods and expectationMethods are what the names of the methods of those services begin with.
	adminMethods       = "/jobonce.v1.AdminService/"
	expectationMethods = "/jobonce.v1.ExpectationService/"
	// pushbackTrailer tells gRPC's own retry policy how long to wait, in milliseconds.
	pushbackTrailer = "grpc-retry-pushback-ms"
)

// reasons says for each reason with which code it is sent, unless a place says otherwise, and how long a client does
// well to wait before it retries: 0 where a retry is no use.
var reasons = map[joboncev1.ErrorReason]struct {
	code  codes.Code
	retry time.Duration
}{
	joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD:         {codes.InvalidArgument, 0},
	joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE:     {codes.InvalidArgument, 0},
	joboncev1.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:         {codes.NotFound, 0},
	joboncev1.ErrorReason_ERROR_REASON_EXPECTATION_NOT_FOUND: {codes.NotFound, 0},
	joboncev1.ErrorReason_ERROR_REASON_LEASE_LOST:            {codes.Aborted, 0},
	joboncev1.ErrorReason_ERROR_REASON_WRONG_STATE:           {codes.FailedPrecondition, 0},
	joboncev1.ErrorReason_ERROR_REASON_OVERLOADED:            {codes.ResourceExhausted, job.RetryOverloaded},
	joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED:          {codes.ResourceExhausted, time.Second},
	joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:     {codes.Unavailable, job.RetryUnavailable},
	joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:       {codes.Unavailable, job.RetryUnknown},
	joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED:       {codes.Unauthenticated, 0},
	joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED:     {codes.PermissionDenied, 0},
	joboncev1.ErrorReason_ERROR_REASON_INTERNAL:              {codes.Internal, 0},
	joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED:         {codes.Unimplemented, 0},
	joboncev1.ErrorReason_ERROR_REASON_RECORD_UNUSABLE:       {codes.FailedPrecondition, 0},
}

// reads are the methods that change nothing.
var reads = map[string]bool{
	joboncev1.IdempotencyService_GetJob_FullMethodName:     true,
	joboncev1.AdminService_ListJobs_FullMethodName:         true,
	joboncev1.AdminService_CountJobs_FullMethodName:        true,
	joboncev1.AdminService_ListExpectations_FullMethodName: true,
	joboncev1.AdminService_ListClaimPauses_FullMethodName:  true,
}

// problem is an error as a client is told of it.
type problem struct {
	code    codes.Code
	reason  joboncev1.ErrorReason
	message string
	// unwritten is true when nothing was written by a call that was to write.
	unwritten bool
	// field is the request's field at fault, or empty.
	field string
	// retry is how long to wait before a retry, 0 when there is nothing to say about it.
	retry time.Duration
	// requestID is the one to retry with, for an unknown outcome of a write.
	requestID string
	// cause is for the log only.
	cause error
}

func newProblem(reason joboncev1.ErrorReason, message string) *problem {
	r := reasons[reason]
	p := &problem{code: r.code, reason: reason, message: clip(message, maxMessageBytes), retry: r.retry}
	switch reason {
	case joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:
		p.unwritten = true
	}
	return p
}

// of words the problem for the call that ctx belongs to: a read does not say that nothing was written.
func (p *problem) of(ctx context.Context) *problem {
	if method, _ := grpc.Method(ctx); !p.unwritten || !reads[method] {
		return p
	}
	read := *p
	read.unwritten = false
	return &read
}

// text is what people read.
func (p *problem) text() string {
	if p.unwritten {
		return p.message + "; nothing was written"
	}
	return p.message
}

// explain turns any error into the problem that a client is told. No other place decides that. ctx is the call's,
// requestID that of the write that failed; empty for a read.
func explain(ctx context.Context, err error, requestID string) *problem {
	var p *problem
	var invalid *job.InvalidError
	var state *job.StateError
	unavailable, unknown := errors.Is(err, job.ErrUnavailable), errors.Is(err, job.ErrOutcomeUnknown)
	late, cancelled := errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled)
	if ctx.Err() == nil && (unavailable || unknown) {
		// The call goes on: it was a time limit of the store's own.
		late, cancelled = false, false
	}
	switch {
	case errors.As(err, &p):
		return p.of(ctx)
	case errors.As(err, &invalid):
		reason := joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD
		if invalid.TooLarge {
			reason = joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE
		}
		p = newProblem(reason, invalid.Error())
		p.field = invalid.Field
	case errors.Is(err, job.ErrNotFound):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, "nothing is recorded under this job_id")
	case errors.Is(err, job.ErrRecordUnusable):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_RECORD_UNUSABLE,
			"what is stored under this job_id cannot be used; the server's log says what is wrong")
	case errors.Is(err, job.ErrNoExpectation):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_EXPECTATION_NOT_FOUND, "nothing is expected of this job_id")
	case errors.As(err, &state):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_WRONG_STATE, state.Problem)
	case errors.Is(err, job.ErrLeaseLost):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_LEASE_LOST, "the lease is somebody else's by now, or the work is settled")
	case cancelled:
		p = unknownOutcome(ctx, "the call was cancelled", requestID)
		p.code, p.retry = codes.Canceled, 0
	case errors.Is(err, job.ErrOverloaded):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "too many calls wait already")
	case errors.Is(err, job.ErrUnready):
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, "the store is not ready; the server's log says what it waits for")
	case unavailable:
		// Also when the deadline passed: that nothing was written is worth more to the caller.
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, "the store is not available at the moment")
	case late:
		p = unknownOutcome(ctx, "the deadline passed", requestID)
		p.code, p.retry = codes.DeadlineExceeded, 0
	case unknown:
		p = unknownOutcome(ctx, "the store did not answer", requestID)
	default:
		p = newProblem(joboncev1.ErrorReason_ERROR_REASON_INTERNAL, "internal error; the server's log has the cause")
	}
	p.cause = err
	return p.of(ctx)
}

// unknownOutcome is the problem of a write that may have been applied, or of a read that came to no end.
func unknownOutcome(ctx context.Context, why, requestID string) *problem {
	message := why
	method, _ := grpc.Method(ctx)
	switch {
	case reads[method]:
	case method == joboncev1.AdminService_RequeueJobs_FullMethodName:
		message += "; it may have been written or not: the same call would requeue others, dry_run says what is left"
	case strings.HasPrefix(method, adminMethods), strings.HasPrefix(method, expectationMethods):
		message += "; it may have been written or not: repeat the call as it is"
	case method == joboncev1.WorkService_RenewLease_FullMethodName, method == joboncev1.WorkService_CompleteWork_FullMethodName,
		method == joboncev1.WorkService_ReleaseWork_FullMethodName:
		message += "; it may have been written or not: repeat the call with the same lease_token"
	default:
		if requestID != "" {
			message += "; it may have been written or not: retry with the same request_id"
		}
	}
	p := newProblem(joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, message)
	if p.requestID = requestID; method == joboncev1.AdminService_RequeueJobs_FullMethodName {
		p.retry = 0 // a delay would have clients repeat it
	}
	return p
}

// fail explains err and sends the trailer that goes with it.
func fail(ctx context.Context, err error, requestID string) *problem {
	p := explain(ctx, err, requestID)
	if p.retry > 0 {
		// It fails only outside of a call, and then there is nobody to tell.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushbackTrailer, strconv.FormatInt(p.retry.Milliseconds(), 10)))
	}
	return p
}

// Error is for logs: it has no cause, which is logged on its own.
func (p *problem) Error() string { return p.text() }

func (p *problem) Unwrap() error { return p.cause }

// GRPCStatus is how grpc-go asks an error for its status.
func (p *problem) GRPCStatus() *status.Status {
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: reasonName(p.reason)}
	if p.requestID != "" {
		info.Metadata = map[string]string{"request_id": p.requestID}
	}
	details := []protoadapt.MessageV1{info}
	if p.field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: p.field, Description: p.text()},
		}})
	}
	if p.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(p.retry)})
	}
	st := status.New(p.code, p.text())
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	return st
}

// item is the problem as one item of a batch is told of it.
func (p *problem) item() *joboncev1.ItemError {
	e := &joboncev1.ItemError{
		Code: int32(p.code), Reason: p.reason, Message: p.text(), Field: p.field, RequestId: p.requestID,
	}
	if p.retry > 0 {
		e.RetryDelay = durationpb.New(p.retry)
	}
	return e
}

// ours tells whether somebody who runs the server should hear of the problem's cause.
func (p *problem) ours() bool {
	switch p.reason {
	case joboncev1.ErrorReason_ERROR_REASON_RECORD_UNUSABLE:
		return true
	case joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE:
		return p.code == codes.FailedPrecondition // what is stored is too large, not what was sent
	}
	return serverFault(p.code)
}

// serverFault tells whether somebody who runs the server should hear of errors with this code.
func serverFault(c codes.Code) bool {
	switch c {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

func reasonName(r joboncev1.ErrorReason) string {
	return strings.TrimPrefix(r.String(), "ERROR_REASON_")
}

// logFaults logs the first fault among the items of a batch that is ours: the call itself succeeds, so nobody else would.
func logFaults(ctx context.Context, log *slog.Logger, errs []error) {
	var first *problem
	faults := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if p := explain(ctx, err, ""); p.ours() {
			if first == nil {
				first = p
			}
			faults++
		}
	}
	if first != nil {
		log.LogAttrs(ctx, max(levelOf(first.code), slog.LevelWarn), "items of a batch failed", slog.Int("failed", faults),
			slog.Int("of", len(errs)), slog.String("reason", reasonName(first.reason)), slog.Any("cause", first.cause))
	}
}
