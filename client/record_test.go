package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The service gets all of the request, and the caller's own stays as it was.
func TestRequestIsNotModified(t *testing.T) {
	full := &request{
		JobId: "j", Event: "job.completed", Status: "OK", OpaquePayload: true, Source: "webhook",
		Body:     &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("\xff")},
		WorkMode: joboncev1.WorkMode_WORK_MODE_LEASED, LeaseDuration: durationpb.New(time.Minute),
	}
	full.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 0x01}) // Field 1023, of a newer version.
	text := &request{Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: `{"job_id":"j"}`}}
	own := &request{JobId: "j", RequestId: "mine"}
	for _, req := range []*request{full, text, own, {}} {
		synctest.Test(t, func(t *testing.T) {
			var single, item *request
			f := &fake{
				record: func(_ context.Context, req *request) (*response, error) {
					single = req
					return &response{}, nil
				},
				batch: func(_ context.Context, req *batchRequest) (*batchResponse, error) {
					item = req.GetDeliveries()[0]
					return &batchResponse{Results: []*result{itemAnswer("j")}}, nil
				},
			}
			c, _ := start(t, f)
			before := proto.CloneOf(req)
			if _, err := c.RecordDelivery(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if _, err := c.BatchRecordDeliveries(t.Context(), []*request{req}); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(req, before) {
				t.Errorf("the request became %v, was %v", req, before)
			}
			for _, got := range []*request{single, item} {
				if got.GetRequestId() == "" || req.GetRequestId() != "" && got.GetRequestId() != req.GetRequestId() {
					t.Errorf("sent the request id %q", got.GetRequestId())
				}
				got.RequestId = req.GetRequestId()
				if !proto.Equal(got, req) {
					t.Errorf("sent %v, want %v", got, req)
				}
			}
		})
	}
}

// TestTooLargeIsNotSent: what no service takes is refused with its reason, alone and among others. gRPC would refuse it without.
func TestTooLargeIsNotSent(t *testing.T) {
	large := strings.Repeat("x", 3<<20+1)
	for name, req := range map[string]*request{
		"text":  {JobId: "j", Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: large}},
		"bytes": {JobId: "j", Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte(large)}},
		"event": {JobId: "j", Event: strings.Repeat(large, 3)},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			f := &fake{record: func(context.Context, *request) (*response, error) {
				sent++
				return &response{}, nil
			}}
			c, _ := start(t, f)
			if _, err := c.RecordDelivery(t.Context(), req); !errors.Is(err, client.ErrPayloadTooLarge) || sent > 0 {
				t.Errorf("%s: %v, sent %d times", name, err, sent)
			}
			fits := &request{JobId: "j", Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: large[1:]}}
			if _, err := c.RecordDelivery(t.Context(), fits); err != nil || sent != 1 {
				t.Errorf("3 MiB: %v, sent %d times", err, sent)
			}
		})
	}
}

// TestTooMuchMetadataIsNotSent, wherever it comes from: the service would refuse it, or the connection end with all its calls.
func TestTooMuchMetadataIsNotSent(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	adding := func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		return invoke(metadata.AppendToOutgoingContext(ctx, "long", long), method, req, reply, cc, opts...)
	}
	many := metadata.MD{}
	for range 3000 {
		many.Append("many", "x")
	}
	fits := metadata.Pairs("fits", strings.Repeat("x", 60<<10))
	for name, test := range map[string]struct {
		md   metadata.MD
		opts []client.Option
		want error
	}{
		"fits":           {md: fits},
		"long":           {md: metadata.Pairs("long", long), want: client.ErrInvalidField},
		"huge":           {md: metadata.Pairs("long", strings.Repeat(long, 8)), want: client.ErrInvalidField},
		"many":           {md: many, want: client.ErrInvalidField},
		"by a token":     {opts: []client.Option{client.WithTokenSource(func(context.Context) (string, error) { return long, nil })}, want: client.ErrUnauthenticated},
		"by interceptor": {opts: []client.Option{client.WithDialOptions(grpc.WithUnaryInterceptor(adding))}, want: client.ErrInvalidField},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				c, _ := start(t, &fake{record: s.record}, append(test.opts, client.WithTokenOverPlaintext())...)
				_, err := c.RecordDelivery(metadata.NewOutgoingContext(t.Context(), test.md), &request{JobId: "j"})
				if !errors.Is(err, test.want) || errors.Is(err, client.ErrOutcomeUnknown) || (len(s.ids) == 0) != (test.want != nil) {
					t.Errorf("got %v after %d calls", err, len(s.ids))
				}
				if err != nil && (!strings.Contains(err.Error(), " bytes; the limit is ") || len(err.Error()) > 200) {
					t.Errorf("the error says %.300s", err)
				}
			})
		})
	}
	if _, err := client.New("localhost:50051", client.WithToken(long)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a token of %d bytes: %.300v", len(long), err)
	}
}
