package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// maxUnderWay is how many calls go out on their own. What comes while so many are under way goes out together, as
	// soon as one of them is back.
	maxUnderWay = 4
	// maxHeld is how long a call keeps its place among them: one that takes longer goes on, but holds up no others. An
	// instance that hangs would have all places in no time.
	maxHeld = 200 * time.Millisecond
	// maxTogether and maxTogetherBytes bound one batch, well under the service's limits.
	maxTogether      = 256
	maxTogetherBytes = 4 << 20
)

// coalescer sends deliveries of concurrent callers together. A lone call goes out at once, as it would without: there is
// no timer, only what piles up while calls are under way shares the next one.
type coalescer struct {
	service joboncev1.IdempotencyServiceClient
	// token asks for each caller's token. Nil when all have the same, or none.
	token *bearer

	mu     sync.Mutex
	queues map[string]*queue // by token; those that are in use
}

// queue is the deliveries of one token.
type queue struct {
	token    string
	underWay int
	waiting  []*waiter
}

func newCoalescer(service joboncev1.IdempotencyServiceClient, token *bearer) *coalescer {
	return &coalescer{service: service, token: token, queues: make(map[string]*queue)}
}

// waiter is a call that goes out with others.
type waiter struct {
	ctx  context.Context
	req  *joboncev1.RecordDeliveryRequest
	sent bool // guarded by the coalescer's lock
	resp *joboncev1.RecordDeliveryResponse
	// lacks: the answer came without what a single call would have been told.
	lacks bool
	err   *Error
	done  chan struct{}
}

// record makes one attempt of a RecordDelivery call.
func (c *coalescer) record(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, *Error) {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md) > 0 {
		return attempt(ctx, c.service.RecordDelivery, req) // what its caller sends beside it, a batch cannot carry
	}
	token := ""
	if c.token != nil {
		var err error
		if ctx, token, err = c.token.ask(ctx); err != nil {
			return attempt(ctx, c.service.RecordDelivery, req) // gRPC makes the call's error of it
		}
	}
	c.mu.Lock()
	q := c.queues[token]
	if q == nil {
		q = &queue{token: token}
		c.queues[token] = q
	}
	if q.underWay < maxUnderWay {
		q.underWay++
		c.mu.Unlock()
		defer c.hold(q)()
		return attempt(ctx, c.service.RecordDelivery, req)
	}
	// A copy: the caller may leave, and use its request again, while the batch is being sent.
	w := &waiter{ctx: ctx, req: proto.CloneOf(req), done: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	c.mu.Unlock()

	select {
	case <-w.done:
	case <-ctx.Done():
		return nil, c.abandon(q, w)
	}
	switch {
	case w.err != nil:
		return nil, w.err
	case w.lacks:
		return c.completed(ctx, w.resp)
	}
	// A batch says it once, a single call twice.
	if work := w.resp.GetJob().GetWork(); work != nil && w.resp.GetResult() != "" {
		work.Result = w.resp.GetResult()
	}
	return w.resp, nil
}

// abandon takes a call whose caller has left out of the queue, if it is still there, and gives its error.
func (c *coalescer) abandon(q *queue, w *waiter) *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.sent {
		q.waiting = slices.DeleteFunc(q.waiting, func(other *waiter) bool { return other == w })
	}
	e := fromStatus(status.FromContextError(w.ctx.Err()))
	e.contextOver, e.OutcomeUnknown = true, w.sent
	return e
}

// hold keeps a place that was taken until free is called, or its time is over.
func (c *coalescer) hold(q *queue) (free func()) {
	leave := sync.OnceFunc(func() { c.next(q) })
	timer := time.AfterFunc(maxHeld, leave)
	return func() {
		timer.Stop()
		leave()
	}
}

// next has what has piled up take over a place, or gives it up.
func (c *coalescer) next(q *queue) {
	c.mu.Lock()
	together := q.take()
	if len(together) == 0 {
		if q.underWay--; q.underWay == 0 {
			delete(c.queues, q.token)
		}
	}
	c.mu.Unlock()
	if len(together) > 0 {
		go c.send(q, together)
	}
}

// take takes the oldest that wait, as many as go together.
func (q *queue) take() []*waiter {
	n, bytes := 0, 0
	for _, w := range q.waiting {
		bytes += proto.Size(w.req) // Whatever field they are in: the service bounds the request as a whole.
		if n == maxTogether || n > 0 && bytes > maxTogetherBytes {
			break
		}
		w.sent = true
		n++
	}
	together := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	return together
}

// send makes one call of them all, under a context of its own: it lasts as long as the most patient caller, and ends when
// all have left. All that it has of theirs is the token. It holds a place until the first of them leaves at most.
func (c *coalescer) send(q *queue, together []*waiter) {
	free := c.hold(q)
	defer free()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if c.token != nil {
		ctx = c.token.with(ctx, q.token)
	}
	latest, bounded := time.Time{}, true
	var left atomic.Int64
	left.Store(int64(len(together)))
	req := &joboncev1.BatchRecordDeliveriesRequest{Deliveries: make([]*joboncev1.RecordDeliveryRequest, len(together))}
	stops := make([]func() bool, len(together))
	for i, w := range together {
		req.Deliveries[i] = w.req
		deadline, ok := w.ctx.Deadline()
		bounded = bounded && ok
		if deadline.After(latest) {
			latest = deadline
		}
		stops[i] = context.AfterFunc(w.ctx, func() {
			free()
			if left.Add(-1) == 0 {
				cancel()
			}
		})
	}
	if bounded {
		var cancelLatest context.CancelFunc
		ctx, cancelLatest = context.WithDeadline(ctx, latest)
		defer cancelLatest()
	}
	if len(together) == 1 {
		w := together[0]
		w.resp, w.err = attempt(ctx, c.service.RecordDelivery, w.req)
	} else {
		c.sendBatch(ctx, req, together)
	}
	for i, w := range together {
		stops[i]() // Before its caller goes on and leaves its context.
		close(w.done)
	}
}

// sendBatch makes one call of several.
func (c *coalescer) sendBatch(ctx context.Context, req *joboncev1.BatchRecordDeliveriesRequest, together []*waiter) {
	resp, err := attempt(ctx, c.service.BatchRecordDeliveries, req)
	if got := len(resp.GetResults()); err == nil && got != len(together) {
		err = unreadable(fmt.Sprintf("%d results for %d deliveries", got, len(together)))
	}
	// A service of before result_omitted leaves all results out and does not say so. It shows in no single answer.
	carried := slices.ContainsFunc(resp.GetResults(), func(r *joboncev1.BatchRecordDeliveriesResponse_Result) bool {
		return r.GetResponse().GetResult() != "" || r.GetResponse().GetResultOmitted()
	})
	for i, w := range together {
		if err != nil {
			own := *err
			w.err = &own
		} else {
			w.resp, w.err = readResult(resp.GetResults()[i])
			w.lacks = lacking(w.resp, carried)
		}
	}
}

// lacking tells whether a batch's answer lacks the result of completed work, or the body of a job to work on. carried:
// results that fit come along.
func lacking(resp *joboncev1.RecordDeliveryResponse, carried bool) bool {
	switch resp.GetDisposition() {
	case joboncev1.Disposition_DISPOSITION_COMPLETED:
		return resp.GetResultOmitted() || !carried && resp.GetResult() == ""
	case joboncev1.Disposition_DISPOSITION_RECLAIMED:
		return resp.GetJob().GetBody() == nil
	}
	return false
}

// completed reads what an answer lacks.
func (c *coalescer) completed(ctx context.Context, resp *joboncev1.RecordDeliveryResponse) (*joboncev1.RecordDeliveryResponse, *Error) {
	req := &joboncev1.GetJobRequest{JobId: resp.GetJob().GetJobId(), View: joboncev1.JobView_JOB_VIEW_FULL}
	if resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_COMPLETED {
		req.View = joboncev1.JobView_JOB_VIEW_BASIC
	}
	got, err := attempt(ctx, c.service.GetJob, req)
	switch {
	case err != nil && err.Code == codes.NotFound:
		return resp, nil // deleted meanwhile: there is nothing to add
	case err != nil:
		err.OutcomeUnknown = true // The read wrote nothing, but the delivery before it is recorded.
		return nil, err
	}
	if req.GetView() == joboncev1.JobView_JOB_VIEW_FULL {
		resp.Job.Body = got.GetJob().GetBody()
	} else {
		resp.Result, resp.ResultOmitted = got.GetJob().GetWork().GetResult(), false
		resp.Job.Work.Result = resp.GetResult()
	}
	return resp, nil
}
