package batch

import (
	"context"
	"fmt"
	"sync"

	"github.com/jobonce/jobonce/internal/job"
)

// group is the calls that share an answer.
type group[T, O any] struct {
	lanes *lanes[T, O] // any of those that carry such items
	calls []*call[T, O]
	outs  []*O
	with  *together
}

// together is what each call of a group has of it: it keeps none of the others' items.
type together struct {
	once  sync.Once
	known chan struct{} // closed when the first of them has its outcome
}

func newGroup[T, O any](l *lanes[T, O], n int) *group[T, O] {
	return &group[T, O]{lanes: l, calls: make([]*call[T, O], 0, n), outs: make([]*O, 0, n), with: &together{known: make(chan struct{})}}
}

// add queues an item, whose outcome goes to out.
func (g *group[T, O]) add(ctx context.Context, l *lanes[T, O], item T, out *O) {
	c := &call[T, O]{item: item, done: make(chan struct{}), with: g.with, late: make(chan struct{})}
	if err := l.enqueue(ctx, c); err != nil {
		*out = l.failed(err)
		return
	}
	g.calls, g.outs = append(g.calls, c), append(g.outs, out)
}

// await waits for the outcomes. Those that are known wait for the late ones, but no more than Config.Patience.
func (g *group[T, O]) await(ctx context.Context) {
	var late []int
	for i, c := range g.calls {
		select {
		case <-c.late:
			late = append(late, i)
		case <-c.done:
			*g.outs[i] = c.outcome
		case <-ctx.Done():
			*g.outs[i] = g.lanes.await(ctx, c)
		}
	}
	if len(late) == 0 {
		return
	}
	select {
	case <-g.with.known:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(ctx, g.lanes.cfg.Patience)
	defer cancel()
	for _, i := range late {
		*g.outs[i] = g.lanes.await(ctx, g.calls[i])
	}
}

// one queues a lone item and waits for its outcome.
func (l *lanes[T, O]) one(ctx context.Context, item T) O {
	c := &call[T, O]{item: item, done: make(chan struct{})}
	if err := l.enqueue(ctx, c); err != nil {
		return l.failed(err)
	}
	return l.await(ctx, c)
}

// await waits for one outcome.
func (l *lanes[T, O]) await(ctx context.Context, c *call[T, O]) O {
	select {
	case <-c.done:
		return c.outcome
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(queued, abandoned) {
		return l.failed(fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err()))
	}
	select {
	case <-c.done:
		return c.outcome
	default:
		return l.failed(fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err()))
	}
}
