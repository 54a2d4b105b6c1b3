package client

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// FuzzErrors has a server, or what stands before it, send any error.
func FuzzErrors(f *testing.F) {
	overloaded, err := status.New(codes.ResourceExhausted, "full").WithDetails(
		&errdetails.ErrorInfo{Domain: errorDomain, Reason: "OVERLOADED"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	if err != nil {
		f.Fatal(err)
	}
	endless, err := status.New(codes.Unavailable, "later").WithDetails(
		&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: 1 << 62}}, &errdetails.BadRequest{})
	if err != nil {
		f.Fatal(err)
	}
	item := &joboncev1.ItemError{Code: 99, Reason: 99, RetryDelay: &durationpb.Duration{Seconds: 1 << 62, Nanos: -5}}
	for _, m := range []proto.Message{overloaded.Proto(), endless.Proto(), item} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var errs []*Error
		var st spb.Status
		if proto.Unmarshal(wire, &st) == nil {
			errs = append(errs, fromStatus(status.FromProto(&st)))
		}
		var item joboncev1.ItemError
		if proto.Unmarshal(wire, &item) == nil {
			errs = append(errs, fromItem(&item))
		}
		for _, e := range errs {
			if e.Error() == "" {
				t.Error("it says nothing")
			}
			// Delays are added to, so none may come near the largest there is.
			if e.RetryDelay < 0 || e.RetryDelay > longestWait {
				t.Errorf("a wait of %v", e.RetryDelay)
			}
			if e.retryable() && e.Reason == joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD {
				t.Errorf("%v would be repeated", e)
			}
		}
	})
}
