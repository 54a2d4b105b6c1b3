package httpdoor

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

const (
	reasonInvalid     = joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD
	reasonDenied      = joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	reasonUnknown     = joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN
	reasonTooLarge    = joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE
	reasonOverloaded  = joboncev1.ErrorReason_ERROR_REASON_OVERLOADED
	reasonUnavailable = joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE
)

// retries says for each reason how long a client does well to wait before it retries.
var retries = map[joboncev1.ErrorReason]time.Duration{
	reasonOverloaded: job.RetryOverloaded, reasonUnavailable: job.RetryUnavailable, reasonUnknown: job.RetryUnknown,
}

// codeOf are the codes of the reasons that are given here.
var codeOf = map[joboncev1.ErrorReason]codes.Code{
	reasonInvalid: codes.InvalidArgument, reasonDenied: codes.PermissionDenied, reasonTooLarge: codes.InvalidArgument,
	reasonOverloaded: codes.ResourceExhausted, reasonUnavailable: codes.Unavailable,
	joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED: codes.Unimplemented,
}

// refusal is why a request does not become a call.
type refusal struct {
	status int
	reason joboncev1.ErrorReason
	// field is the one at fault, or empty.
	field, message string
	// detail goes on from the message, for the caller alone: it repeats what was sent, which is nothing for the log.
	detail string
}

// invalid is the refusal of a request that is wrong.
func invalid(status int, field, message string) *refusal {
	return &refusal{status: status, reason: reasonInvalid, field: field, message: message}
}

// refuse answers a request that does not become a call.
func (d *Door) refuse(w http.ResponseWriter, r *http.Request, bad refusal) {
	details := about(bad.reason)
	if bad.field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: bad.field, Description: bad.message},
		}})
	}
	reason := strings.TrimPrefix(bad.reason.String(), "ERROR_REASON_")
	if d.cfg.Refused != nil {
		d.cfg.Refused(reason)
	}
	if d.few.Allow() {
		d.cfg.Logger.LogAttrs(r.Context(), slog.LevelInfo, "HTTP request refused", slog.String("method", clip(r.Method)), slog.String("path", clip(r.URL.Path)),
			slog.Int("status", bad.status), slog.String("reason", reason), slog.String("error", bad.message), slog.String("from", r.RemoteAddr))
	}
	peerOf(r.Context()).ended(codeOf[bad.reason])
	answer(w, bad.status, detailed(status.New(codeOf[bad.reason], bad.message+bad.detail), details...))
}

// failed answers a call that failed.
func (d *Door) failed(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	if reasonOf(st) == "" {
		// Not the service's error but the gateway's, or the connection's, and then nobody knows what became of the call.
		if st.Code() == codes.InvalidArgument {
			bad := invalid(http.StatusBadRequest, "", "the request is not what the API takes")
			bad.detail = ": " + clip(st.Message())
			if b, ok := r.Body.(*body); ok && b.fault != nil {
				bad.field, bad.message, bad.detail = b.fault.field, b.fault.field+" "+b.fault.problem, ""
				if b.fault.unknown {
					bad.message, bad.detail = "the request has a field that is not known here", ": "+b.fault.field
				}
			}
			d.refuse(w, r, *bad)
			return
		}
		message := map[codes.Code]string{
			codes.DeadlineExceeded: "the deadline passed", codes.Canceled: "the call was cancelled", codes.Unavailable: "the service is stopping, or did not answer",
		}[st.Code()]
		code := st.Code()
		if message == "" {
			d.cfg.Logger.Error("a call over HTTP failed", "method", clip(r.Method), "path", clip(r.URL.Path), "error", err)
			code, message = codes.Unavailable, "the call failed"
		}
		details := about(reasonUnknown)
		if code != codes.Unavailable {
			details = details[:1] // Nobody knows when.
		}
		message += "; it may have been written or not: retry with the same request_id, or lease_token"
		st = detailed(status.New(code, message), details...)
	}
	code := runtime.HTTPStatusFromCode(st.Code())
	if reasonOf(st) == "PAYLOAD_TOO_LARGE" && st.Code() != codes.FailedPrecondition {
		code = http.StatusRequestEntityTooLarge
	}
	answer(w, code, st)
}

// unrouted answers a request that no rule fits.
func (d *Door) unrouted(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	message := "there is nothing at this path"
	if code != http.StatusMethodNotAllowed {
		code = http.StatusNotFound // It says 400 of what is no path, such as *.
	} else {
		allow := http.MethodPost
		if r.URL.Path == "/v1/jobs" { // The one path that is not a POST's.
			allow = http.MethodGet
		}
		w.Header().Set("Allow", allow)
		message = "this path is for " + allow
	}
	d.refuse(w, r, refusal{status: code, reason: joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED, message: message})
}

// answer writes an error.
func answer(w http.ResponseWriter, code int, st *status.Status) {
	h := w.Header()
	if code == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			// Whole seconds; the details have it exactly.
			wait := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
			h.Set("Retry-After", strconv.FormatInt(int64(wait), 10))
		}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(st.Proto())
	if err != nil { // A detail of a type that is not known here.
		text = []byte(`{"code":13,"message":"the error cannot be written"}`)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // The peer has gone when it fails.
}

// about are the details of an error with the reason.
func about(reason joboncev1.ErrorReason) []protoadapt.MessageV1 {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: "jobonce", Reason: strings.TrimPrefix(reason.String(), "ERROR_REASON_")}}
	if wait := retries[reason]; wait > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	return details
}

// problem is the error of a call that is not made, or was made in vain.
func problem(reason joboncev1.ErrorReason, message string) error {
	return detailed(status.New(codeOf[reason], message), about(reason)...).Err()
}

func detailed(st *status.Status, details ...protoadapt.MessageV1) *status.Status {
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	return st
}

// reasonOf is the reason of an error of the service; empty for any other.
func reasonOf(st *status.Status) string {
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok && i.GetDomain() == "jobonce" {
			return i.GetReason()
		}
	}
	return ""
}
