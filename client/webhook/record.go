package webhook

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// What one call takes (BatchRecordDeliveriesRequest), with room for what stands around the bodies.
const (
	maxBatch      = 256
	maxBatchBytes = 7 << 20
)

// record records what was found, and sets the reason to what became of it. Everything is tried until something fails that is
// no fault of one event: the sender delivers all of it again.
func (h *Handler) record(ctx context.Context, header http.Header, out *outcome) {
	items, reqs := h.source.requests(header, out.items)
	if len(reqs) == 1 {
		resp, err := h.jobs.RecordDelivery(ctx, reqs[0])
		h.count(out, items[0], resp, err)
		return
	}
	for len(reqs) > 0 {
		n := fit(reqs)
		results, err := h.jobs.BatchRecordDeliveries(ctx, reqs[:n])
		for i := range reqs[:n] {
			switch {
			case i < len(results):
				h.count(out, items[i], results[i].Response, results[i].Err)
			default:
				h.count(out, items[i], nil, errors.Join(err, errNoResult))
			}
		}
		if items, reqs = items[n:], reqs[n:]; out.Reason == NotRecorded {
			return
		}
	}
}

var errNoResult = errors.New("there is no result for a delivery")

// fit is how many of the requests one call takes.
func fit(reqs []*joboncev1.RecordDeliveryRequest) int {
	size := 0
	for i, req := range reqs {
		if size += proto.Size(req) + 8; i > 0 && (i == maxBatch || size > maxBatchBytes) {
			return i
		}
	}
	return len(reqs)
}

// count adds what became of one event.
func (h *Handler) count(out *outcome, f *found, resp *joboncev1.RecordDeliveryResponse, err error) {
	if err == nil && resp == nil {
		err = errNoResult
	}
	if err == nil {
		if f.err != nil {
			return // The body that is kept because it is unreadable.
		}
		out.Recorded++
		if resp.GetFirstDelivery() {
			out.First++
		}
		return
	}
	reason := NotRecorded
	switch {
	case errors.Is(err, client.ErrInvalidField):
		reason = Invalid
	case errors.Is(err, client.ErrPayloadTooLarge):
		reason = TooLarge
	}
	// What can be mended by delivering again comes first, then that something is unreadable.
	if rank(reason) > rank(out.Reason) {
		out.Reason, out.Err = reason, err
	}
	if failed := (*client.Error)(nil); errors.As(err, &failed) && failed.RetryDelay > out.retryAfter {
		out.retryAfter = failed.RetryDelay
	}
}

func rank(reason Reason) int {
	switch reason {
	case NotRecorded:
		return 4
	case Unreadable:
		return 3
	case TooLarge:
		return 2
	case Invalid:
		return 1
	}
	return 0
}
