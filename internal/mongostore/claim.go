package mongostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// maxClaimRounds bounds how often a claim looks again after others took what it saw, or the database failed it.
const maxClaimRounds = 8

// claimSettleTime is how long a claim goes on finding out what it got once its caller has left.
const claimSettleTime = 2 * time.Second

// Claim implements [job.Store]. It reads what the request holds, then what is due, puts that under leases provided that
// nobody else changed it, and reads again which of them it got: four round trips however many jobs.
func (s *Store) Claim(ctx context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	done, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer done()
	select {
	case s.claiming <- struct{}{}:
		defer func() { <-s.claiming }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	ctx, endSession := s.session(ctx)
	defer endSession()
	c := &claim{Store: s, req: req, order: map[string]int{}, granted: map[string]job.Work{}}
	return c.run(ctx)
}

// claim is one call of Claim.
type claim struct {
	*Store
	req job.ClaimRequest

	// order is that of what was due, the oldest first: below zero, and what is not in it comes last.
	order map[string]int
	// granted is what this call tried to put under leases, by their tokens.
	granted map[string]job.Work

	// open is true while a lease may have been granted that has not been looked for; unknown is set once one may be granted
	// later still.
	open, unknown bool
	// failed is the last failure, fated its fate.
	failed error
	fated  fate
}

func (c *claim) run(caller context.Context) ([]job.Claimed, error) {
	ctx, pause := caller, newPause()
	for round := 1; ; round++ {
		if round == 2 {
			// Leases may be granted by now. Whoever asked for them may leave, but which they are must be known, so that they
			// can be given back.
			var stop context.CancelFunc
			ctx, stop = outlast(caller, claimSettleTime)
			defer stop()
		}
		claimed, f, err := c.held(ctx)
		if len(claimed) > 0 {
			return claimed, nil
		}
		if err != nil && c.note(f, err) {
			return nil, c.failure(caller)
		}
		if round > maxClaimRounds || round > 1 && (caller.Err() != nil || !sleep(ctx, pause.NextBackOff())) {
			return nil, c.failure(caller)
		}
		if err != nil {
			continue
		}
		nothing, f, err := c.leaseDue(ctx)
		if nothing || err != nil && c.note(f, err) {
			return nil, c.failure(caller)
		}
	}
}

// note keeps a failure. It tells whether trying again is no use.
func (c *claim) note(f fate, err error) (hopeless bool) {
	c.failed, c.fated = err, f
	c.unknown = c.unknown || f == fateUnknown
	return f == fateUnsent
}

// failure is the error of a claim that got nothing; nil when nothing went wrong on the way, or nothing that matters: then
// nothing was due, or others were faster every time.
func (c *claim) failure(caller context.Context) error {
	switch {
	case c.failed == nil:
		return nil
	case c.unknown || c.open:
		return ended(caller, fateUnknown, c.failed)
	}
	return ended(caller, c.fated, c.failed)
}

// outlast is the caller's context, but ends only a while after it.
func outlast(caller context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	stop := context.AfterFunc(caller, func() { time.AfterFunc(while, cancel) })
	return ctx, func() {
		stop()
		cancel()
	}
}

// held is the answer if the request holds leases, granted by this call or by an earlier one; it is empty when it holds none.
func (c *claim) held(ctx context.Context) ([]job.Claimed, fate, error) {
	held, f, err := c.findRecords(ctx, c.heldBy(c.req.RequestID, c.now()), bson.D{{Key: fieldFirstSeen, Value: 1}}, 0, nil)
	if err != nil {
		return nil, f, err
	}
	if c.open = len(held) > 0; !c.open {
		return nil, f, nil
	}
	// What an earlier call of the same request got comes last.
	slices.SortStableFunc(held, func(a, b job.Record) int { return cmp.Compare(c.order[a.JobID], c.order[b.JobID]) })
	claimed, err := c.tell(ctx, held)
	return claimed, fateRetry, err
}

// leaseDue tries to lease what is due, as much as the request takes; how much of it was got shows only when it is read.
// nothing is true when nothing is due and the request holds nothing.
func (c *claim) leaseDue(ctx context.Context) (nothing bool, _ fate, _ error) {
	bytes := 0
	due, f, err := c.findRecords(ctx, dueFilter(c.now(), c.req.Events), bson.D{{Key: inWork(workDue), Value: 1}}, c.req.Max,
		func(r *job.Record) bool {
			bytes += len(r.Body.Data)
			return bytes <= c.req.MaxBytes
		})
	switch {
	case err != nil:
		return false, f, err
	case len(due) == 0 && c.unknown:
		return true, f, nil
	case len(due) == 0:
		// Between the two reads a lease of the request that had lapsed may have been renewed.
		held, f, err := c.findRecords(ctx, c.heldBy(c.req.RequestID, c.now()), nil, 1, nil)
		if err == nil && len(held) == 0 {
			c.failed = nil
			return true, f, nil
		}
		return false, f, err
	}
	for i := range due {
		c.order[due[i].JobID] = i - len(due)
	}
	f, err = c.lease(ctx, due)
	return false, f, err
}

// lease tries to put each record under a lease of the request. Some may fail; the database tells which succeeded only by
// being read. Sorted by key, so that overlapping bulks cannot deadlock.
func (c *claim) lease(ctx context.Context, due []job.Record) (fate, error) {
	now := c.now()
	slices.SortFunc(due, func(a, b job.Record) int { return cmp.Compare(a.JobID, b.JobID) })
	models := make([]mongo.WriteModel, len(due))
	for i := range due {
		next := due[i].Work.Claim(job.Grant{Token: job.NewToken(), Duration: c.req.Lease, ClaimID: c.req.RequestID,
			MaxAttempts: c.opts.MaxAttempts}, now)
		c.granted[next.Token] = next
		models[i] = mongo.NewUpdateOneModel().SetFilter(asRead(&due[i])).SetUpdate(setWork(&next))
	}
	tracked, sent := track(ctx)
	_, err := c.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(false))
	if c.open = true; err == nil {
		return 0, nil
	}
	f := writeFate(err, sent)
	c.open = f != fateUnsent
	c.log.Warn("a claim failed, wholly or in part", "store", c.String(), "jobs", len(due), "error", c.explain(err))
	return f, err
}

// heldBy matches the running leases of a ClaimWork call.
func (s *Store) heldBy(requestID string, now time.Time) bson.D {
	return bson.D{
		{Key: inWork(workClaimID), Value: bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: requestID}}},
		{Key: inWork(workState), Value: job.StateLeased.String()},
		{Key: inWork(workDue), Value: bson.D{{Key: "$gt", Value: now}}},
	}
}

// tell makes the answer of the records that are held, as much as the request takes. A lease that an earlier call with the
// same request id was granted is marked as told again. The error says that one could not be, because it was changed at the
// same time, for example.
func (c *claim) tell(ctx context.Context, held []job.Record) ([]job.Claimed, error) {
	var out []job.Claimed
	bytes := 0
	for _, r := range held {
		if bytes += len(r.Body.Data); len(out) == c.req.Max || len(out) > 0 && bytes > c.req.MaxBytes {
			break
		}
		work, mine := c.granted[r.Work.Token]
		if mine {
			r.Work = work // as granted, whatever another call has marked since
		} else {
			next := r.Work.Retell()
			if _, err := c.swap(ctx, &r, &next); err != nil {
				return nil, err
			}
			r.Work = next
		}
		out = append(out, job.Claimed{Record: r, Lease: r.Work.Lease(c.now()), Granted: mine})
	}
	return out, nil
}

// findRecords reads records with their bodies, up to a limit if it is not 0, and for as long as more says so; the first
// comes in any case. The fate of an error says whether trying again may help.
func (s *Store) findRecords(ctx context.Context, f, sort bson.D, limit int, more func(*job.Record) bool) (out []job.Record, _ fate, err error) {
	tracked, sent := track(ctx)
	opts := options.Find().SetLimit(int64(limit))
	if len(sort) > 0 { // DocumentDB refuses an empty one
		opts.SetSort(sort)
	}
	cursor, err := s.coll.Find(tracked, f, opts)
	if err != nil {
		return nil, readFate(err, sent), err
	}
	defer func() { err = errors.Join(err, cursor.Close(context.WithoutCancel(ctx))) }()
	for cursor.Next(tracked) {
		r, err := decode(cursor.Current, true)
		if err != nil {
			return nil, fateUnsent, err
		}
		if more != nil && !more(&r) && len(out) > 0 {
			break
		}
		out = append(out, r)
	}
	return out, fateRetry, cursor.Err()
}
