// Package batch puts what many callers ask for into one write: their deliveries, and their changes of leases. What queues
// while a batch is under way forms the next one, so there is no timer, and a lone call goes at once.
package batch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jobonce/jobonce/internal/job"
)

// Store is a job.Store whose deliveries and changes of leases go through lanes. Everything else is the wrapped store's own.
type Store struct {
	job.Store
	deliveries *lanes[job.Delivery, job.Outcome]
	// changes has each kind in lanes of its own, with bounds of their own: however many large results wait, leases are
	// renewed.
	changes [job.Releasing + 1]*lanes[job.LeaseChange, job.LeaseOutcome]
}

// New wraps store, which the returned store closes when it is closed. Where the store is a [job.EachRecorder] or a
// [job.EachChanger], each caller gets its outcome when it is known, and what takes longer holds up neither its neighbours
// nor the lane.
func New(store job.Store, cfg Config) *Store {
	cfg = cfg.withDefaults()
	s := &Store{Store: store}
	record := atOnce(store.Record)
	if store, ok := store.(job.EachRecorder); ok {
		record = store.RecordEach
	}
	s.deliveries = newLanes(cfg, of[job.Delivery, job.Outcome]{
		name: "deliveries", write: record, observe: cfg.Observe,
		key:  func(d *job.Delivery) string { return d.JobID },
		size: func(d *job.Delivery) int { return len(d.Body.Data) },
		err:  func(o *job.Outcome) *error { return &o.Err },
	})
	change := atOnce(store.ChangeLeases)
	if store, ok := store.(job.EachChanger); ok {
		change = store.ChangeEach
	}
	for kind := range s.changes {
		s.changes[kind] = newLanes(cfg, of[job.LeaseChange, job.LeaseOutcome]{
			name: "changes of leases", write: change,
			key:  func(c *job.LeaseChange) string { return c.JobID },
			size: (*job.LeaseChange).Size,
			err:  func(o *job.LeaseOutcome) *error { return &o.Err },
		})
	}
	return s
}

// atOnce is a write whose outcomes are all known when it returns.
func atOnce[T, O any](write func(context.Context, []T) []O) func(context.Context, []T, func(int, O)) {
	return func(ctx context.Context, items []T, settle func(int, O)) {
		for i, o := range write(ctx, items) {
			settle(i, o)
		}
	}
}

// RecordOne records a single delivery; see [job.Store]. The caller is released when its context ends. A delivery that
// still waited then is not written, and its error matches job.ErrUnavailable; one that was under way may be written.
func (s *Store) RecordOne(ctx context.Context, d job.Delivery) job.Outcome {
	return s.deliveries.one(ctx, d)
}

// Record records the deliveries, each in the lane of its job; see [job.Store]. They share an answer, so those that are known
// wait for those that take longer, but no more than Config.Patience: what is not known then is told as such. When the context
// ends, what still waited is not written, and its error matches job.ErrUnavailable; what was under way may be written.
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(deliveries))
	g := newGroup(s.deliveries, len(deliveries))
	for i := range deliveries {
		g.add(ctx, s.deliveries, deliveries[i], &out[i])
	}
	g.await(ctx)
	return out
}

// errEarlier: a change waits for one before it, of which nobody knows.
var errEarlier = errors.New("what became of an earlier change of the lease is not known")

// ChangeLeases makes the changes; see [job.Store] and, for what waits and what takes longer, [Store.Record]. Several with one
// token are made one after the other.
func (s *Store) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	if len(changes) == 1 {
		return []job.LeaseOutcome{s.changes[changes[0].Kind].one(ctx, changes[0])}
	}
	out := make([]job.LeaseOutcome, len(changes))
	unknown := map[string]bool{} // by token
	for _, turn := range turns(changes) {
		g := newGroup(s.changes[job.Renewal], len(turn))
		for _, i := range turn {
			if c := &changes[i]; unknown[c.Token] {
				out[i].Err = fmt.Errorf("%w: %w", job.ErrUnavailable, errEarlier)
			} else {
				g.add(ctx, s.changes[c.Kind], *c, &out[i])
			}
		}
		g.await(ctx)
		for _, i := range turn {
			unknown[changes[i].Token] = unknown[changes[i].Token] || errors.Is(out[i].Err, job.ErrOutcomeUnknown)
		}
	}
	return out
}

// turns are the places of changes, the first with each token, then the second ones, and so on.
func turns(changes []job.LeaseChange) (turns [][]int) {
	before := make(map[string]int, len(changes))
	for i := range changes {
		n := before[changes[i].Token]
		if before[changes[i].Token]++; n == len(turns) {
			turns = append(turns, nil)
		}
		turns[n] = append(turns[n], i)
	}
	return turns
}

// Queued is how many deliveries wait or have no outcome yet, and how many bytes of bodies they have: what the queue bounds
// count.
func (s *Store) Queued() (deliveries, bytes int64) { return s.deliveries.queued() }

// QueuedChanges is how many changes of leases wait or have no outcome yet, of all kinds.
func (s *Store) QueuedChanges() (changes int64) {
	for _, l := range s.changes {
		n, _ := l.queued()
		changes += n
	}
	return changes
}

// Close waits until everything has its outcome and closes the wrapped store.
func (s *Store) Close() error {
	waits := []func(){s.deliveries.close()}
	for _, l := range s.changes {
		waits = append(waits, l.close())
	}
	for _, wait := range waits {
		wait()
	}
	return s.Store.Close()
}
