package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// doer is what a handler needs beside [Jobs] to do the work itself. A [*client.Client] has it.
type doer interface {
	Do(context.Context, *joboncev1.RecordDeliveryRequest, client.WorkFunc, ...client.DoOption) (client.Result, error)
}

// retriedFor is how many times the length of the lease a sender has to deliver again: a crash costs a lease, and there may be
// several.
const retriedFor = 10

// WithWork has the handler do the work itself, under leases of that length (a whole second at least), instead of leaving it to
// workers. What is not done when the answer is due goes on, and the sender is told 503, so that a later delivery hears that
// it is done, or starts it again after a crash. So it is refused for senders that do not deliver again for at least ten times
// the length of the lease, and for those that disable an endpoint that fails; [Source.RetriedFor] says it for senders without
// a preset. End the work with [Handler.Shutdown].
func WithWork(lease time.Duration, fn client.WorkFunc) Option {
	return func(o *options) { o.lease, o.work = lease, fn }
}

// works is the work under way.
type works struct {
	sync.WaitGroup
	ctx  context.Context
	stop context.CancelFunc
}

// checkWork refuses work that a sender's rules would lose.
func (h *Handler) checkWork() error {
	h.works.ctx, h.works.stop = context.WithCancel(context.Background())
	if h.work == nil {
		return nil
	}
	c := h.source
	_, does := h.jobs.(doer)
	switch {
	case !does:
		return errors.New("the jobs cannot do work: give a *client.Client")
	case h.lease < time.Second:
		return errors.New("the lease is shorter than a second")
	case c.RecordOnly:
		return errors.New("RecordOnly leaves nothing to be done")
	case c.Items != nil:
		return errors.New("a delivery may hold several events: leave them to workers")
	case c.preset != nil && c.preset.Punishes != "":
		return fmt.Errorf("failures cost more than a retry with %s: %s; leave the work to workers", c.preset.Title, c.preset.Punishes)
	case c.RetriedFor < retriedFor*h.lease:
		return fmt.Errorf("the sender delivers again for %v, and %v are needed for this lease; leave the work to workers",
			c.RetriedFor, retriedFor*h.lease)
	}
	return nil
}

// doWork records what was found and does its work, for as long as the answer may take.
func (h *Handler) doWork(ctx context.Context, header http.Header, out *outcome) {
	items, reqs := h.source.requests(header, out.items)
	if len(reqs) == 0 {
		return
	}
	req := reqs[0]
	req.WorkMode, req.LeaseDuration = joboncev1.WorkMode_WORK_MODE_LEASED, durationpb.New(h.lease)
	type done struct {
		result client.Result
		err    error
	}
	over := make(chan done, 1)
	h.works.Go(func() {
		result, err := h.jobs.(doer).Do(h.works.ctx, req, h.work)
		over <- done{result, err}
	})
	select {
	case d := <-over:
		switch resp := d.result.Response; {
		case resp == nil:
			h.count(out, items[0], nil, errors.Join(d.err, missing(d.err)))
		case d.result.Settled:
			h.count(out, items[0], resp, nil)
		default:
			h.count(out, items[0], resp, nil)
			out.Reason, out.Err, out.retryAfter = WorkPending, errors.Join(d.err, errNotDone), d.result.RetryAfter
		}
	case <-ctx.Done():
		out.Reason, out.Err, out.retryAfter = WorkPending, errNotDone, h.lease
	}
}

var errNotDone = errors.New("the work is not done yet")

// missing is the error of a call that gave neither an answer nor an error.
func missing(err error) error {
	if err == nil {
		return errNoResult
	}
	return nil
}

// Shutdown waits for the work under way, and when ctx ends gives it back and returns ctx's error. Call it after the HTTP
// server has shut down. Without [WithWork] there is nothing to wait for.
func (h *Handler) Shutdown(ctx context.Context) error {
	defer h.works.stop()
	over := make(chan struct{})
	go func() {
		h.works.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		h.works.stop()
		<-over
		return ctx.Err()
	}
}
