package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// RecordDelivery records one delivery and says whether the caller is to start the work: branch on start_work. When
// request_id is empty the client makes a random one for this call and keeps it over all attempts, so that an answer
// that gets lost is recovered. The request is not modified.
//
// The time that wait asks for comes on top of the client's timeout. With a wait, the remaining time of a lease says little about
// when it ends; see [Client.ClaimWork].
//
// The error is an [*Error]. On one that matches [ErrOutcomeUnknown] the delivery may be recorded: either let the
// provider deliver again, or call again with [Error.RequestID].
func (c *Client) RecordDelivery(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest,
) (*joboncev1.RecordDeliveryResponse, error) {
	resp, _, err := c.record(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// record is RecordDelivery. sent is as in claimWork.
func (c *Client) record(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest,
) (resp *joboncev1.RecordDeliveryResponse, sent time.Time, err *Error) {
	if err := check(req); err != nil {
		return nil, time.Time{}, err
	}
	req = withRequestID(req)
	wait := max(0, req.GetWait().AsDuration())
	err = c.retry(ctx, wait, func(ctx context.Context) *Error {
		sent = time.Now()
		var err *Error
		if req.GetWait() != nil { // It holds up nobody else, and has no place in a batch, not even one of 0.
			resp, err = attempt(ctx, c.service.RecordDelivery, req)
		} else {
			resp, err = c.deliveries.record(ctx, req)
		}
		if err != nil {
			err.RequestID = req.GetRequestId()
		}
		return err
	})
	return resp, sent, err
}

// BatchResult is what became of one delivery of a batch: exactly one of the two is set.
type BatchResult struct {
	// Response is the answer. A result that did not fit is left out (result_omitted), and so is the payload of a RECLAIMED
	// job: read them with GetJob.
	Response *joboncev1.RecordDeliveryResponse
	// Err is an [*Error], equal to that of a single call.
	Err error
}

// BatchRecordDeliveries records many deliveries in one call: at most 256, of at most 8 MiB together. There is one result
// for each, in the order of reqs, also when the call fails; one that fails spoils no other. Deliveries without a
// request_id each get one, kept over all attempts; only those that failed and may succeed later are sent again. The
// requests are not modified.
//
// The error is set when the service answered for none of them: then each result has it too, with its own
// [Error.RequestID].
func (c *Client) BatchRecordDeliveries(
	ctx context.Context, reqs []*joboncev1.RecordDeliveryRequest,
) ([]BatchResult, error) {
	b := newBatch(reqs)
	if len(b.pending) > 0 {
		failure := c.retry(ctx, 0, func(ctx context.Context) *Error { return b.attempt(ctx, c.service) })
		if failure != nil && failure.cause != nil {
			for _, i := range b.pending {
				b.errs[i] = b.errs[i].because(failure.cause)
			}
		}
		if failure != nil && !b.answered {
			return b.results(), failure
		}
	}
	return b.results(), nil
}

// batch is a batch under way.
type batch struct {
	reqs      []*joboncev1.RecordDeliveryRequest
	responses []*joboncev1.RecordDeliveryResponse
	errs      []*Error // What each delivery failed with so far.
	pending   []int    // The deliveries that are to be sent, or sent again, in order.
	answered  bool     // The service answered for some.
}

func newBatch(reqs []*joboncev1.RecordDeliveryRequest) *batch {
	b := &batch{
		reqs:      make([]*joboncev1.RecordDeliveryRequest, len(reqs)),
		responses: make([]*joboncev1.RecordDeliveryResponse, len(reqs)),
		errs:      make([]*Error, len(reqs)),
	}
	for i, req := range reqs {
		if b.errs[i] = check(req); b.errs[i] == nil {
			b.reqs[i] = withRequestID(req)
			b.pending = append(b.pending, i)
		}
	}
	return b
}

// attempt sends what is pending. It returns nil when all is settled, otherwise the error to retry after: the whole
// call's, or the item's that asks for the longest delay.
func (b *batch) attempt(ctx context.Context, service joboncev1.IdempotencyServiceClient) *Error {
	req := &joboncev1.BatchRecordDeliveriesRequest{}
	for _, i := range b.pending {
		req.Deliveries = append(req.Deliveries, b.reqs[i])
	}
	resp, err := attempt(ctx, service.BatchRecordDeliveries, req)
	if got := len(resp.GetResults()); err == nil && got != len(b.pending) {
		err = unreadable(fmt.Sprintf("%d results for %d deliveries", got, len(b.pending)))
	}
	if err != nil {
		for _, i := range b.pending {
			b.fail(i, err)
		}
		return err
	}
	b.answered = true
	var longest *Error
	var again []int
	for n, result := range resp.GetResults() {
		i := b.pending[n]
		resp, err := readResult(result)
		if err == nil {
			b.responses[i], b.errs[i] = resp, nil
			continue
		}
		b.fail(i, err)
		if err.retryable() {
			again = append(again, i)
			if longest == nil || err.RetryDelay > longest.RetryDelay {
				longest = err
			}
		}
	}
	b.pending = again
	return longest
}

// readResult reads one result of a batch.
func readResult(result *joboncev1.BatchRecordDeliveriesResponse_Result) (*joboncev1.RecordDeliveryResponse, *Error) {
	switch outcome := result.GetOutcome().(type) {
	case *joboncev1.BatchRecordDeliveriesResponse_Result_Response:
		return outcome.Response, nil
	case *joboncev1.BatchRecordDeliveriesResponse_Result_Error:
		return nil, fromItem(outcome.Error)
	}
	return nil, unreadable("a result that is neither an answer nor an error")
}

// fail notes what delivery i failed with this time.
func (b *batch) fail(i int, err *Error) {
	own := *err
	own.RequestID = b.reqs[i].GetRequestId()
	b.errs[i] = own.after(b.errs[i])
}

func (b *batch) results() []BatchResult {
	results := make([]BatchResult, len(b.reqs))
	for i := range results {
		if b.errs[i] != nil {
			results[i].Err = b.errs[i]
		} else {
			results[i].Response = b.responses[i]
		}
	}
	return results
}

// withRequestID returns req if it has a request_id, and otherwise a copy with a random one.
func withRequestID(req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryRequest {
	if req.GetRequestId() != "" {
		return req
	}
	copied := shallowCopy(req)
	copied.RequestId = rand.Text()
	return copied
}

// shallowCopy returns a copy that shares its fields with req: a payload can be large.
func shallowCopy(req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryRequest {
	copied := &joboncev1.RecordDeliveryRequest{}
	from, to := req.ProtoReflect(), copied.ProtoReflect()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	to.SetUnknown(from.GetUnknown())
	return copied
}

// What no service takes, whatever its operator allows: what is far over it gRPC refuses without our reason.
const (
	maxBodyBytes    = 3 << 20
	maxRequestBytes = 8 << 20
)

// check finds what cannot be sent at all: gRPC's own error for it would be INTERNAL and name no field. Everything else
// is the service's to judge.
func check(req *joboncev1.RecordDeliveryRequest) *Error {
	if req == nil {
		return invalid("", "the delivery is nil")
	}
	size := len(req.GetPayloadBytes())
	for _, f := range []struct{ name, value string }{
		{"job_id", req.GetJobId()},
		{"event", req.GetEvent()},
		{"status", req.GetStatus()},
		{"payload", req.GetPayload()},
		{"request_id", req.GetRequestId()},
		{"source", req.GetSource()},
		{"content_type", req.GetContentType()},
		{"traceparent", req.GetTraceparent()},
	} {
		if err := checkText(f.name, f.value); err != nil {
			return err
		}
		size += len(f.value)
	}
	if size > maxRequestBytes || len(req.GetPayload())+len(req.GetPayloadBytes()) > maxBodyBytes {
		return tooLarge(size)
	}
	return nil
}

func checkText(field, value string) *Error {
	switch {
	case utf8.ValidString(value):
		return nil
	case field == "payload":
		return invalid(field, "payload is not valid UTF-8; send it as payload_bytes")
	default:
		return invalid(field, field+" is not valid UTF-8")
	}
}
