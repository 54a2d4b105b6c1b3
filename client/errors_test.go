package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// sentinels holds, for every reason, its sentinel, a code it comes with, and whether it leaves open what was written.
var sentinels = map[joboncev1.ErrorReason]struct {
	err     error
	code    codes.Code
	unknown bool
}{
	joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD:         {client.ErrInvalidField, codes.InvalidArgument, false},
	joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE:     {client.ErrPayloadTooLarge, codes.InvalidArgument, false},
	joboncev1.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:         {client.ErrJobNotFound, codes.NotFound, false},
	joboncev1.ErrorReason_ERROR_REASON_EXPECTATION_NOT_FOUND: {client.ErrExpectationNotFound, codes.NotFound, false},
	joboncev1.ErrorReason_ERROR_REASON_LEASE_LOST:            {client.ErrLeaseLost, codes.Aborted, false},
	joboncev1.ErrorReason_ERROR_REASON_WRONG_STATE:           {client.ErrWrongState, codes.FailedPrecondition, false},
	joboncev1.ErrorReason_ERROR_REASON_OVERLOADED:            {client.ErrOverloaded, codes.ResourceExhausted, false},
	joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED:          {client.ErrRateLimited, codes.ResourceExhausted, false},
	joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:     {client.ErrStoreUnavailable, codes.Unavailable, false},
	joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:       {client.ErrOutcomeUnknown, codes.Unavailable, true},
	joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED:       {client.ErrUnauthenticated, codes.Unauthenticated, false},
	joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED:     {client.ErrPermissionDenied, codes.PermissionDenied, false},
	joboncev1.ErrorReason_ERROR_REASON_INTERNAL:              {client.ErrInternal, codes.Internal, true},
	joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED:         {client.ErrUnimplemented, codes.Unimplemented, false},
	joboncev1.ErrorReason_ERROR_REASON_RECORD_UNUSABLE:       {client.ErrRecordUnusable, codes.FailedPrecondition, false},
}

func asError(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want a *client.Error", err, err)
	}
	return e
}

// Every reason gives the same error from a single call and from an item of a batch.
func TestEveryReason(t *testing.T) {
	for number, name := range joboncev1.ErrorReason_name {
		reason := joboncev1.ErrorReason(number)
		if reason == joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
			continue
		}
		t.Run(name, func(t *testing.T) {
			want, found := sentinels[reason]
			if !found {
				t.Fatal("no sentinel")
			}
			synctest.Test(t, func(t *testing.T) {
				f := &fake{
					record: func(context.Context, *request) (*response, error) {
						return nil, failure(want.code, reasonName(reason), "no", "event", time.Second)
					},
					batch: func(context.Context, *batchRequest) (*batchResponse, error) {
						return &batchResponse{Results: []*result{
							{Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Error{Error: &joboncev1.ItemError{
								Code: int32(want.code), Reason: reason, Message: "no", Field: "event", RetryDelay: durationpb.New(time.Second),
							}}},
						}}, nil
					},
				}
				c, _ := start(t, f, client.WithoutRetry())
				req := &request{JobId: "j", RequestId: "r"}
				_, err := c.RecordDelivery(t.Context(), req)
				results, batchErr := c.BatchRecordDeliveries(t.Context(), []*request{req})
				if batchErr != nil {
					t.Fatal(batchErr)
				}
				single, item := asError(t, err), asError(t, results[0].Err)
				if *single != *item {
					t.Errorf("single: %+v\nitem:   %+v", single, item)
				}
				expected := client.Error{
					Code: want.code, Reason: reason, ReasonText: reasonName(reason), Message: "no", Field: "event", RequestID: "r",
					RetryDelay: time.Second, OutcomeUnknown: want.unknown,
				}
				if *single != expected {
					t.Errorf("got %+v, want %+v", single, expected)
				}
				for _, other := range sentinels {
					matches := other.err == want.err || other.err == client.ErrOutcomeUnknown && want.unknown
					if errors.Is(err, other.err) != matches {
						t.Errorf("errors.Is(%v, %v) is %v", err, other.err, !matches)
					}
				}
				text := code.Code(want.code).String()
				if text != reasonName(reason) { // Nothing is said twice.
					text += " " + reasonName(reason)
				}
				if status.Code(err) != want.code || err.Error() != text+": no" {
					t.Errorf("got %q with code %v, want %q", err, status.Code(err), text)
				}
			})
		})
	}
}

// A client that is older than the service does not know every reason.
func TestUnknownReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			record: func(context.Context, *request) (*response, error) {
				return nil, failure(codes.FailedPrecondition, "REASON_OF_2040", "no", "", 0)
			},
			batch: func(context.Context, *batchRequest) (*batchResponse, error) {
				return &batchResponse{Results: []*result{itemError(codes.FailedPrecondition, 2040, 0)}}, nil
			},
		}
		c, _ := start(t, f)
		_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
		if e := asError(t, err); e.Reason != 0 || e.ReasonText != "REASON_OF_2040" || !e.OutcomeUnknown {
			t.Errorf("got %+v", e)
		}
		if want := "FAILED_PRECONDITION REASON_OF_2040: no"; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		results, _ := c.BatchRecordDeliveries(t.Context(), deliveries("j"))
		if e := asError(t, results[0].Err); e.Reason != 0 || e.ReasonText != "2040" || !e.OutcomeUnknown {
			t.Errorf("the item got %+v", e)
		}
	})
}

// Errors without our ErrorInfo come from gRPC itself and from proxies.
func TestErrorsOfOthers(t *testing.T) {
	foreign, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Domain: "elsewhere", Reason: "WRONG_STATE"})
	testenv.Must(t, err)
	for _, test := range []struct {
		err  error
		want client.Error
	}{
		{foreign.Err(), client.Error{Code: codes.FailedPrecondition, Message: "no", OutcomeUnknown: true}},
		{
			status.Error(codes.Unauthenticated, "401"),
			client.Error{Code: codes.Unauthenticated, Reason: joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, Message: "401"},
		},
		{
			status.Error(codes.Unimplemented, "no such method"),
			client.Error{Code: codes.Unimplemented, Reason: joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED, Message: "no such method"},
		},
		{status.Error(codes.ResourceExhausted, "too large"), client.Error{Code: codes.ResourceExhausted, Message: "too large", OutcomeUnknown: true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := start(t, &fake{record: func(context.Context, *request) (*response, error) { return nil, test.err }})
			_, err := c.RecordDelivery(t.Context(), &request{JobId: "j", RequestId: "r"})
			test.want.RequestID = "r"
			if e := asError(t, err); *e != test.want {
				t.Errorf("got %+v, want %+v", e, test.want)
			}
		})
	}
}

// A frontend that is a gRPC service itself can hand the error on with its details.
func TestGRPCStatus(t *testing.T) {
	e := &client.Error{
		Code: codes.InvalidArgument, Reason: joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD, ReasonText: "INVALID_FIELD",
		Message: "event is too long", Field: "event", RequestID: "r", RetryDelay: time.Second,
	}
	st := status.Convert(e)
	if st.Code() != codes.InvalidArgument || st.Message() != "event is too long" {
		t.Errorf("got %v", st)
	}
	want := []proto.Message{
		&errdetails.ErrorInfo{Domain: "jobonce", Reason: "INVALID_FIELD", Metadata: map[string]string{"request_id": "r"}},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "event", Description: "event is too long"}}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)},
	}
	got := st.Details()
	if len(got) != len(want) {
		t.Fatalf("got the details %v", got)
	}
	for i := range want {
		if m, ok := got[i].(proto.Message); !ok || !proto.Equal(m, want[i]) {
			t.Errorf("detail %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// A read writes nothing, however it ends.
func TestGetJobErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := failure(codes.NotFound, "JOB_NOT_FOUND", "no", "", 0)
		c, _ := start(t, &fake{get: func(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			return nil, answer
		}}, client.WithoutRetry())
		if _, err := c.GetJob(t.Context(), "j", 0); !errors.Is(err, client.ErrJobNotFound) {
			t.Errorf("got %v", err)
		}
		answer = status.Error(codes.Unavailable, "reset")
		if _, err := c.GetJob(t.Context(), "j", 0); asError(t, err).OutcomeUnknown {
			t.Errorf("got %+v", err)
		}
	})
}

func TestInvalidUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, &fake{}) // The fake answers UNIMPLEMENTED.
		fields := (&request{}).ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if fields.Get(i).Kind() != protoreflect.StringKind {
				continue
			}
			field := string(fields.Get(i).Name())
			req := &request{}
			req.ProtoReflect().Set(fields.Get(i), protoreflect.ValueOfString("\xff"))
			_, err := c.RecordDelivery(t.Context(), req)
			e := asError(t, err)
			if e.Code != codes.InvalidArgument || !errors.Is(err, client.ErrInvalidField) || e.Field != field {
				t.Errorf("%s: got %+v", field, e)
			}
			if field == "payload" && !strings.Contains(e.Message, "payload_bytes") {
				t.Errorf("no hint at payload_bytes: %q", e.Message)
			}
		}
		if _, err := c.GetJob(t.Context(), "\xff", 0); asError(t, err).Field != "job_id" {
			t.Errorf("GetJob: got %v", err)
		}
		if _, err := c.RecordDelivery(t.Context(), nil); !errors.Is(err, client.ErrInvalidField) {
			t.Errorf("nil: got %v", err)
		}
		bytes := &request{JobId: "j", Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("\xff")}}
		if _, err := c.RecordDelivery(t.Context(), bytes); !errors.Is(err, client.ErrUnimplemented) {
			t.Errorf("payload_bytes were not sent: %v", err)
		}
	})
}
