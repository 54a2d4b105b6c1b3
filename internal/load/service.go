package load

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// Service is a JobOnce service as a target.
type Service struct {
	// Client calls it. One that retries hides errors and adds their repetitions to the times.
	Client *client.Client
	// Mode is the work mode of the deliveries.
	Mode joboncev1.WorkMode
	// Lease is how long leases run; for WORK_MODE_LEASED only.
	Lease time.Duration
}

// Record implements [Target]. The job's id stands in the body, as with webhooks.
func (s Service) Record(ctx context.Context, _, body string) (bool, error) {
	req := &joboncev1.RecordDeliveryRequest{
		Body:     &joboncev1.RecordDeliveryRequest_Payload{Payload: body},
		WorkMode: s.Mode,
	}
	if s.Mode == joboncev1.WorkMode_WORK_MODE_LEASED {
		req.LeaseDuration = durationpb.New(s.Lease)
	}
	resp, err := s.Client.RecordDelivery(ctx, req)
	return resp.GetFirstDelivery(), err
}

// Reason is the class of a service's error for [New]: its reason, such as OVERLOADED, or its gRPC code when it has none.
func Reason(err error) string {
	failed := (*client.Error)(nil)
	switch {
	case !errors.As(err, &failed):
		return code.Code_UNKNOWN.String()
	case failed.ReasonText != "":
		return failed.ReasonText
	default:
		return code.Code(failed.Code).String()
	}
}
