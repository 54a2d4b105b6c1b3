package batch

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/jobonce/jobonce/internal/job"
)

// of says what lanes carry: items T, and what becomes of them, O.
type of[T, O any] struct {
	name string // for the log
	// write writes a batch, and calls settle once for each item; see [job.EachRecorder].
	write func(ctx context.Context, items []T, settle func(i int, o O))
	// observe hears of each write; it may be nil.
	observe func(items int, took time.Duration)
	// key is what the items have in common that take one lane, size what they count for, in bytes.
	key  func(*T) string
	size func(*T) int
	// err is where the outcome has its error.
	err func(*O) *error
}

// lanes are the queues of one kind of items, and their bounds.
type lanes[T, O any] struct {
	of[T, O]
	cfg  Config
	seed maphash.Seed
	all  []lane[T, O]

	// items and bytes are what the queue bounds count.
	items, bytes atomic.Int64

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // one for every lane at work, and for every write that is not over
}

// lane is one queue. The goroutine that serves it lives only while there is something to write.
type lane[T, O any] struct {
	mu      sync.Mutex
	queue   []*call[T, O]
	serving bool
}

// The states of a call. Only one of the two moves away from queued happens: the lane takes it, or its caller gives up.
const (
	queued int32 = iota
	taken
	abandoned
)

// call is an item with what becomes of it.
type call[T, O any] struct {
	item    T
	outcome O
	state   atomic.Int32
	span    trace.Span // the caller's; nil without a tracer
	done    chan struct{}
	// with is set where several calls share an answer, and late is closed then when this one takes longer than its neighbours.
	with *together
	late chan struct{}
}

func newLanes[T, O any](cfg Config, of of[T, O]) *lanes[T, O] {
	return &lanes[T, O]{of: of, cfg: cfg, seed: maphash.MakeSeed(), all: make([]lane[T, O], cfg.Lanes)}
}

// failed is the outcome of an item that was not written, or may not have been.
func (l *lanes[T, O]) failed(err error) (o O) {
	*l.err(&o) = err
	return o
}

func (l *lanes[T, O]) queued() (items, bytes int64) { return l.items.Load(), l.bytes.Load() }

// close lets nothing more in. The function that it returns waits until everything has its outcome.
func (l *lanes[T, O]) close() (wait func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.running.Wait
}

func (l *lanes[T, O]) enqueue(ctx context.Context, c *call[T, O]) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	if !l.admit(c) {
		return job.ErrOverloaded
	}
	if l.cfg.Tracer != nil {
		c.span = trace.SpanFromContext(ctx)
	}
	lane := &l.all[0]
	if len(l.all) > 1 {
		lane = &l.all[maphash.String(l.seed, l.key(&c.item))%uint64(len(l.all))]
	}
	lane.mu.Lock()
	defer lane.mu.Unlock()
	if !lane.serving {
		l.mu.Lock()
		closed := l.closed
		if !closed {
			l.running.Add(1)
		}
		l.mu.Unlock()
		if closed {
			l.leave(c)
			return fmt.Errorf("%w: closed", job.ErrUnavailable)
		}
		lane.serving = true
		go l.serve(lane)
	}
	lane.queue = append(lane.queue, c)
	return nil
}

// admit counts c in, or says that the queue is full.
func (l *lanes[T, O]) admit(c *call[T, O]) bool {
	items, bytes := l.items.Add(1), l.bytes.Add(int64(l.size(&c.item)))
	if items > int64(l.cfg.QueueItems) || bytes > int64(l.cfg.QueueBytes) {
		l.leave(c)
		return false
	}
	return true
}

func (l *lanes[T, O]) leave(c *call[T, O]) {
	l.items.Add(-1)
	l.bytes.Add(-int64(l.size(&c.item)))
}

// serve writes batches until the lane is empty.
func (l *lanes[T, O]) serve(lane *lane[T, O]) {
	defer l.running.Done()
	for {
		l.gather(lane)
		batch := l.take(lane)
		if len(batch) == 0 {
			return
		}
		l.writeBatch(batch)
	}
}

// gather lets calls that have arrived, and are about to queue, do so: they come in bursts, as the answers to the batch
// before went out, and the first of a burst must not have a write of its own while the others wait for it to end. It only
// steps back for goroutines that can run; where there are none, as for a lone call, it costs nothing.
func (l *lanes[T, O]) gather(lane *lane[T, O]) {
	const patience, rounds = 3, 64
	length, still := -1, 0
	for range rounds {
		lane.mu.Lock()
		n := len(lane.queue)
		lane.mu.Unlock()
		if n >= l.cfg.MaxItems {
			return
		}
		if n == length {
			if still++; still == patience {
				return
			}
		} else {
			length, still = n, 0
		}
		runtime.Gosched()
	}
}

// take moves the next batch out of the lane's queue; none when there is nothing left, and then the lane is not served
// any more.
func (l *lanes[T, O]) take(lane *lane[T, O]) (batch []*call[T, O]) {
	lane.mu.Lock()
	defer lane.mu.Unlock()
	bytes, n := 0, 0
	batch = make([]*call[T, O], 0, min(len(lane.queue), l.cfg.MaxItems))
	for _, c := range lane.queue {
		size := l.size(&c.item)
		if len(batch) == l.cfg.MaxItems || (len(batch) > 0 && bytes+size > l.cfg.MaxBytes) {
			break
		}
		n++
		if !c.state.CompareAndSwap(queued, taken) {
			l.leave(c)
			continue
		}
		bytes += size
		batch = append(batch, c)
	}
	rest := copy(lane.queue, lane.queue[n:])
	clear(lane.queue[rest:])
	lane.queue = lane.queue[:rest]
	if len(batch) == 0 {
		// Every call left in the queue was abandoned, so the loop above ran through all of it.
		lane.serving = false
		lane.queue = nil
	}
	return batch
}
