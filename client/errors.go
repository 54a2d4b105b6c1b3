package client

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The reasons why a call can fail, for [errors.Is]. Where the comment does not say otherwise, an attempt that fails with it
// wrote nothing; an earlier attempt of the same call may have, see [ErrOutcomeUnknown].
var (
	// ErrInvalidField matches when a field is malformed; [Error.Field] names it.
	ErrInvalidField error = reason(joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD)
	// ErrPayloadTooLarge matches when the payload is over the service's limit.
	ErrPayloadTooLarge error = reason(joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE)
	// ErrJobNotFound matches when there is no such job.
	ErrJobNotFound error = reason(joboncev1.ErrorReason_ERROR_REASON_JOB_NOT_FOUND)
	// ErrExpectationNotFound matches when there is no such expectation.
	ErrExpectationNotFound error = reason(joboncev1.ErrorReason_ERROR_REASON_EXPECTATION_NOT_FOUND)
	// ErrLeaseLost matches when the lease is somebody else's by now, or gone. Stop the work.
	ErrLeaseLost error = reason(joboncev1.ErrorReason_ERROR_REASON_LEASE_LOST)
	// ErrWrongState matches when the job's state forbids the operation.
	ErrWrongState error = reason(joboncev1.ErrorReason_ERROR_REASON_WRONG_STATE)
	// ErrOverloaded matches when too much waits at the service already.
	ErrOverloaded error = reason(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED)
	// ErrRateLimited matches when the caller is over its rate limit.
	ErrRateLimited error = reason(joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED)
	// ErrStoreUnavailable matches when the service cannot reach its store.
	ErrStoreUnavailable error = reason(joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)
	// ErrOutcomeUnknown matches when an attempt of the call may have been written, whatever the last one failed with:
	// see [Error.OutcomeUnknown].
	ErrOutcomeUnknown error = reason(joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN)
	// ErrUnauthenticated matches when the credentials are missing or wrong.
	ErrUnauthenticated error = reason(joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED)
	// ErrPermissionDenied matches when the credentials do not allow the call.
	ErrPermissionDenied error = reason(joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED)
	// ErrInternal matches a fault of the service; its log has the cause. Whether something was written is not known.
	ErrInternal error = reason(joboncev1.ErrorReason_ERROR_REASON_INTERNAL)
	// ErrUnimplemented matches when the service is of a version that does not do this.
	ErrUnimplemented error = reason(joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED)
	// ErrRecordUnusable matches when what is stored under the job's id cannot be used; the service's log says why.
	ErrRecordUnusable error = reason(joboncev1.ErrorReason_ERROR_REASON_RECORD_UNUSABLE)
)

// reason is the sentinel of a reason.
type reason joboncev1.ErrorReason

func (r reason) Error() string { return "jobonce: " + reasonName(joboncev1.ErrorReason(r)) }

// The service's errors carry a google.rpc.ErrorInfo of this domain, with the name of a reason without this prefix.
const (
	errorDomain  = "jobonce"
	reasonPrefix = "ERROR_REASON_"
)

func reasonName(r joboncev1.ErrorReason) string { return strings.TrimPrefix(r.String(), reasonPrefix) }

// Error is why a call failed, the same for a single call and for an item of a batch. Get it with [errors.As]; match its
// reason with [errors.Is] and a sentinel such as [ErrJobNotFound]. When the context or [Client.Close] ended the call,
// [errors.Is] matches [context.DeadlineExceeded], [context.Canceled] or [ErrClosed] as well.
type Error struct {
	// Code is the gRPC status code, of the last attempt that failed for a reason of its own.
	Code codes.Code
	// Reason is the service's reason, or the one that the code stands for. UNSPECIFIED when the error is not the
	// service's (such as a connection that failed) or its reason is not known to this version of the client.
	Reason joboncev1.ErrorReason
	// ReasonText is the reason as the service wrote it, such as "JOB_NOT_FOUND". Empty when the error is not the
	// service's.
	ReasonText string
	// Message is for people.
	Message string
	// Field is the request's field at fault, as named in a single request. Empty when it is none's.
	Field string
	// RequestID is the request_id of a delivery or a claim that failed, the one that the client made included. Whoever
	// tries the call again sets it, and gets the answer that was lost if there was one.
	RequestID string
	// RetryDelay is how long the service asks to wait before a retry. 0 when it says nothing.
	RetryDelay time.Duration
	// OutcomeUnknown is true when an attempt of the call may have been written. When false, none was.
	OutcomeUnknown bool

	contextOver bool  // The call's own context ended the attempt.
	final       bool  // Not to be repeated, whatever it says.
	cause       error // What ended the call early, if anything did.
}

// Error returns "CODE REASON: message", without REASON when it is not known, or is called as the code is.
func (e *Error) Error() string {
	var b strings.Builder
	name, reason := code.Code(e.Code).String(), e.ReasonText
	if reason == "" && e.Reason != joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		reason = reasonName(e.Reason)
	}
	b.WriteString(name)
	if reason != "" && reason != name {
		b.WriteString(" " + reason)
	}
	b.WriteString(": " + e.Message)
	if e.cause != nil && !e.contextOver {
		fmt.Fprintf(&b, " (given up: %v)", e.cause)
	}
	return b.String()
}

// Unwrap returns what ended the call early: the context's error or [ErrClosed]. Nil when the service's answer did.
func (e *Error) Unwrap() error { return e.cause }

// Is makes [errors.Is] match the sentinel of the error's reason.
func (e *Error) Is(target error) bool {
	r, ok := target.(reason)
	return ok && (joboncev1.ErrorReason(r) == e.Reason || target == ErrOutcomeUnknown && e.OutcomeUnknown)
}

// GRPCStatus returns the error as a status with its details, so that [status.FromError] and [status.Code] work on it.
func (e *Error) GRPCStatus() *status.Status {
	var details []protoadapt.MessageV1
	if e.ReasonText != "" {
		info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: e.ReasonText}
		if e.RequestID != "" {
			info.Metadata = map[string]string{"request_id": e.RequestID}
		}
		details = append(details, info)
	}
	if e.Field != "" {
		violation := &errdetails.BadRequest_FieldViolation{Field: e.Field, Description: e.Message}
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{violation}})
	}
	if e.RetryDelay > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryDelay)})
	}
	plain := status.New(e.Code, e.Message)
	if detailed, err := plain.WithDetails(details...); err == nil {
		return detailed
	}
	return plain
}

// fromStatus reads the error of a call.
func fromStatus(st *status.Status) *Error {
	e := &Error{Code: st.Code(), Message: st.Message()}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.ReasonText = d.GetReason()
				e.Reason = joboncev1.ErrorReason(joboncev1.ErrorReason_value[reasonPrefix+e.ReasonText])
			}
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				e.Field = v[0].GetField()
			}
		case *errdetails.RetryInfo:
			e.RetryDelay = retryDelay(d.GetRetryDelay())
		}
	}
	if e.ReasonText == "" {
		e.Reason = impliedReason[e.Code]
	}
	return e
}

// longestWait is the longest wait that a service is believed. Delays are added to, and must not overflow.
const longestWait = time.Hour

func retryDelay(d *durationpb.Duration) time.Duration {
	return min(max(0, d.AsDuration()), longestWait)
}

// impliedReason is for answers of gRPC itself and of proxies. Other codes have several reasons or none.
var impliedReason = map[codes.Code]joboncev1.ErrorReason{
	codes.Unauthenticated:  joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
	codes.PermissionDenied: joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
	codes.Unimplemented:    joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED,
}

// fromItem reads the error of an item of a batch.
func fromItem(item *joboncev1.ItemError) *Error {
	e := &Error{
		Code:       codes.Code(item.GetCode()),
		Reason:     item.GetReason(),
		ReasonText: reasonName(item.GetReason()),
		Message:    item.GetMessage(),
		Field:      item.GetField(),
		RetryDelay: retryDelay(item.GetRetryDelay()),
	}
	if e.Code == codes.OK {
		e.Code = codes.Unknown
	}
	if _, known := joboncev1.ErrorReason_name[int32(e.Reason)]; !known {
		e.Reason = joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	e.OutcomeUnknown = !e.refused()
	return e
}

// invalid is the service's answer to a field that cannot even be sent.
func invalid(field, message string) *Error {
	return &Error{
		Code:       codes.InvalidArgument,
		Reason:     joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD,
		ReasonText: reasonName(joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD),
		Message:    message,
		Field:      field,
	}
}

// tooLarge is the error of a delivery that no service takes.
func tooLarge(size int) *Error {
	e := invalid("payload", fmt.Sprintf("the delivery is %d bytes; a service takes payloads of at most %d", size, maxBodyBytes))
	e.Reason = joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE
	e.ReasonText = reasonName(e.Reason)
	return e
}

// unreadable is a reply that breaks the service's contract.
func unreadable(message string) *Error {
	return &Error{Code: codes.Internal, Message: message, OutcomeUnknown: true}
}
