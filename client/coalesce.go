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

// coalescer sends calls of concurrent callers together. A lone call goes out at once, as it would without: there is no
// timer, only what piles up while calls are under way shares the next one.
type coalescer[Req proto.Message, Resp any] struct {
	// one makes one attempt of a call on its own; together one of several, with an answer for each.
	one      func(context.Context, Req) (Resp, *Error)
	together func(context.Context, []Req) ([]answer[Resp], *Error)
	// token asks for each caller's token. Nil when all have the same, or none.
	token *bearer
	// apart is set when no calls are to go out together, or when the service has no call for that.
	apart atomic.Bool

	mu     sync.Mutex
	queues map[string]*queue[Req, Resp] // by token; those that are in use
}

// answer is what became of one of several calls.
type answer[Resp any] struct {
	resp Resp
	err  *Error
}

// queue is the calls of one token.
type queue[Req proto.Message, Resp any] struct {
	token    string
	underWay int
	waiting  []*waiter[Req, Resp]
}

// waiter is a call that goes out with others.
type waiter[Req proto.Message, Resp any] struct {
	ctx  context.Context
	req  Req
	sent bool // guarded by the coalescer's lock
	answer[Resp]
	// alone: it was not sent after all, and is to go out on its own.
	alone bool
	done  chan struct{}
}

// newCoalescer makes a coalescer. together returns the call's error, or as many answers as there were requests. shared
// says whether calls may go out together at all.
func newCoalescer[Req proto.Message, Resp any](
	one func(context.Context, Req) (Resp, *Error), together func(context.Context, []Req) ([]answer[Resp], *Error),
	token *bearer, shared bool,
) *coalescer[Req, Resp] {
	c := &coalescer[Req, Resp]{one: one, together: together, token: token, queues: make(map[string]*queue[Req, Resp])}
	c.apart.Store(!shared)
	return c
}

// do makes one attempt of a call.
func (c *coalescer[Req, Resp]) do(ctx context.Context, req Req) (Resp, *Error) {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md) > 0 || c.apart.Load() {
		return c.one(ctx, req) // what its caller sends beside it, a batch cannot carry
	}
	token := ""
	if c.token != nil {
		var err error
		if ctx, token, err = c.token.ask(ctx); err != nil {
			return c.one(ctx, req) // gRPC makes the call's error of it
		}
	}
	c.mu.Lock()
	q := c.queues[token]
	if q == nil {
		q = &queue[Req, Resp]{token: token}
		c.queues[token] = q
	}
	if q.underWay < maxUnderWay {
		q.underWay++
		c.mu.Unlock()
		defer c.hold(q)()
		return c.one(ctx, req)
	}
	// A copy: the caller may leave, and use its request again, while the batch is being sent.
	w := &waiter[Req, Resp]{ctx: ctx, req: proto.CloneOf(req), done: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	c.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		var none Resp
		return none, c.abandon(q, w)
	}
	if w.alone {
		return c.one(ctx, req)
	}
	return w.resp, w.err
}

// abandon takes a call whose caller has left out of the queue, if it is still there, and gives its error.
func (c *coalescer[Req, Resp]) abandon(q *queue[Req, Resp], w *waiter[Req, Resp]) *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.sent {
		q.waiting = slices.DeleteFunc(q.waiting, func(other *waiter[Req, Resp]) bool { return other == w })
	}
	e := fromStatus(status.FromContextError(w.ctx.Err()))
	e.contextOver, e.OutcomeUnknown = true, w.sent
	return e
}

// hold keeps a place that was taken until free is called, or its time is over.
func (c *coalescer[Req, Resp]) hold(q *queue[Req, Resp]) (free func()) {
	leave := sync.OnceFunc(func() { c.next(q) })
	timer := time.AfterFunc(maxHeld, leave)
	return func() {
		timer.Stop()
		leave()
	}
}

// next has what has piled up take over a place, or gives it up.
func (c *coalescer[Req, Resp]) next(q *queue[Req, Resp]) {
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
func (q *queue[Req, Resp]) take() []*waiter[Req, Resp] {
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
func (c *coalescer[Req, Resp]) send(q *queue[Req, Resp], together []*waiter[Req, Resp]) {
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
	reqs := make([]Req, len(together))
	stops := make([]func() bool, len(together))
	for i, w := range together {
		reqs[i] = w.req
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
		together[0].resp, together[0].err = c.one(ctx, reqs[0])
	} else {
		c.sendTogether(ctx, reqs, together)
	}
	for i, w := range together {
		stops[i]() // Before its caller goes on and leaves its context.
		close(w.done)
	}
}

// sendTogether makes one call of several.
func (c *coalescer[Req, Resp]) sendTogether(ctx context.Context, reqs []Req, together []*waiter[Req, Resp]) {
	answers, err := c.together(ctx, reqs)
	if err == nil && len(answers) != len(reqs) {
		err = unreadable(fmt.Sprintf("%d results for %d calls in one", len(answers), len(reqs)))
	}
	alone := err != nil && err.Code == codes.Unimplemented
	if alone {
		c.apart.Store(true)
	}
	for i, w := range together {
		w.alone = alone
		if err != nil {
			own := *err
			w.err = &own
		} else {
			w.answer = answers[i]
		}
	}
}
