// Package batch puts many callers' deliveries into one write. What queues while a batch is under way forms the next
// one, so there is no timer, and a lone call goes at once.
package batch

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/jobonce/jobonce/internal/job"
)

// Store is a job.Store whose deliveries go through the lanes. Everything else is the wrapped store's own.
type Store struct {
	job.Store
	each  func(context.Context, []job.Delivery, func(int, job.Outcome)) // see [job.EachRecorder]
	cfg   Config
	seed  maphash.Seed
	lanes []lane

	// items and bytes are what the queue bounds count.
	items, bytes atomic.Int64

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // one for every lane at work, and for every write that is not over
}

// lane is one queue. The goroutine that serves it lives only while there is something to write.
type lane struct {
	mu      sync.Mutex
	queue   []*call
	serving bool
}

// The states of a call. Only one of the two moves away from queued happens: the lane takes it, or its caller gives up.
const (
	queued int32 = iota
	taken
	abandoned
)

type call struct {
	delivery job.Delivery
	state    atomic.Int32
	outcome  job.Outcome
	done     chan struct{}
	// with is set where several calls share an answer, and late is closed then when this one takes longer than its neighbours.
	with *together
	late chan struct{}
}

// together are the calls of one Record.
type together struct {
	once  sync.Once
	known chan struct{} // closed when the first of them has its outcome
}

func (c *call) size() int { return len(c.delivery.Body.Data) }

// New wraps store, which the returned store closes when it is closed. Where the store is a [job.EachRecorder], each caller
// gets its outcome when it is known, and what takes longer holds up neither its neighbours nor the lane.
func New(store job.Store, cfg Config) *Store {
	cfg = cfg.withDefaults()
	s := &Store{Store: store, cfg: cfg, seed: maphash.MakeSeed(), lanes: make([]lane, cfg.Lanes)}
	s.each = func(ctx context.Context, deliveries []job.Delivery, settle func(int, job.Outcome)) {
		outcomes := store.Record(ctx, deliveries)
		for i := range deliveries {
			settle(i, outcomes[i])
		}
	}
	if store, ok := store.(job.EachRecorder); ok {
		s.each = store.RecordEach
	}
	return s
}

// RecordOne records a single delivery; see [job.Store]. The caller is released when its context ends. A delivery that
// still waited then is not written, and its error matches job.ErrUnavailable; one that was under way may be written.
func (s *Store) RecordOne(ctx context.Context, d job.Delivery) job.Outcome {
	c := &call{delivery: d, done: make(chan struct{})}
	if err := s.enqueue(ctx, c); err != nil {
		return job.Outcome{Err: err}
	}
	return await(ctx, c)
}

// Record records the deliveries, each in the lane of its job; see [job.Store]. They share an answer, so those that are known
// wait for those that take longer, but no more than Config.Patience: what is not known then is told as such.
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(deliveries))
	calls := make([]*call, len(deliveries))
	with := &together{known: make(chan struct{})}
	for i, d := range deliveries {
		c := &call{delivery: d, done: make(chan struct{}), with: with, late: make(chan struct{})}
		if out[i].Err = s.enqueue(ctx, c); out[i].Err == nil {
			calls[i] = c
		}
	}
	var late []int
	for i, c := range calls {
		if c == nil {
			continue
		}
		select {
		case <-c.late:
			late = append(late, i)
		case <-c.done:
			out[i] = await(ctx, c)
		case <-ctx.Done():
			out[i] = await(ctx, c)
		}
	}
	if len(late) == 0 {
		return out
	}
	select {
	case <-with.known:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	for _, i := range late {
		out[i] = await(ctx, calls[i])
	}
	return out
}

// Queued is how many deliveries wait or have no outcome yet, and how many bytes of bodies they have: what the queue bounds
// count.
func (s *Store) Queued() (deliveries, bytes int64) { return s.items.Load(), s.bytes.Load() }

// Close waits until every delivery has its outcome and closes the wrapped store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	return s.Store.Close()
}

func (s *Store) enqueue(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	if !s.admit(c) {
		return job.ErrOverloaded
	}
	l := &s.lanes[0]
	if len(s.lanes) > 1 {
		l = &s.lanes[maphash.String(s.seed, c.delivery.JobID)%uint64(len(s.lanes))]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.serving {
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.running.Add(1)
		}
		s.mu.Unlock()
		if closed {
			s.leave(c)
			return fmt.Errorf("%w: closed", job.ErrUnavailable)
		}
		l.serving = true
		go s.serve(l)
	}
	l.queue = append(l.queue, c)
	return nil
}

// admit counts c in, or says that the queue is full.
func (s *Store) admit(c *call) bool {
	items, bytes := s.items.Add(1), s.bytes.Add(int64(c.size()))
	if items > int64(s.cfg.QueueItems) || bytes > int64(s.cfg.QueueBytes) {
		s.leave(c)
		return false
	}
	return true
}

func (s *Store) leave(c *call) {
	s.items.Add(-1)
	s.bytes.Add(-int64(c.size()))
}

func await(ctx context.Context, c *call) job.Outcome {
	select {
	case <-c.done:
		return c.outcome
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(queued, abandoned) {
		return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err())}
	}
	select {
	case <-c.done:
		return c.outcome
	default:
		return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err())}
	}
}

// serve writes batches until the lane is empty.
func (s *Store) serve(l *lane) {
	defer s.running.Done()
	for {
		s.gather(l)
		batch := s.take(l)
		if len(batch) == 0 {
			return
		}
		s.write(batch)
	}
}

// gather lets calls that have arrived, and are about to queue, do so: they come in bursts, as the answers to the batch
// before went out, and the first of a burst must not have a write of its own while the others wait for it to end. It only
// steps back for goroutines that can run; where there are none, as for a lone call, it costs nothing.
func (s *Store) gather(l *lane) {
	const patience, rounds = 3, 64
	length, still := -1, 0
	for range rounds {
		l.mu.Lock()
		n := len(l.queue)
		l.mu.Unlock()
		if n >= s.cfg.MaxItems {
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
func (s *Store) take(l *lane) (batch []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, n := 0, 0
	batch = make([]*call, 0, min(len(l.queue), s.cfg.MaxItems))
	for _, c := range l.queue {
		if len(batch) == s.cfg.MaxItems || (len(batch) > 0 && bytes+c.size() > s.cfg.MaxBytes) {
			break
		}
		n++
		if !c.state.CompareAndSwap(queued, taken) {
			s.leave(c)
			continue
		}
		bytes += c.size()
		batch = append(batch, c)
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	if len(batch) == 0 {
		// Every call left in the queue was abandoned, so the loop above ran through all of it.
		l.serving = false
		l.queue = nil
	}
	return batch
}
