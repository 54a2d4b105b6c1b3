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

	var (
		order   = map[string]int{}      // of what was due, the oldest first
		granted = map[string]job.Work{} // what this call tried to put under leases, by their tokens
		unknown bool                    // a lease may have been granted, or be granted later still
		failed  error                   // the last failure
		fated   fate
	)
	pause := newPause()
	caller := ctx
	for round := 1; ; round++ {
		if round == 2 {
			// Leases may be granted by now. Whoever asked for them may leave, but which they are must be known, so that they
			// can be given back.
			var stop context.CancelFunc
			ctx, stop = outlast(caller, claimSettleTime)
			defer stop()
		}
		held, f, err := s.findRecords(ctx, s.heldBy(req.RequestID, s.now()), bson.D{{Key: fieldFirstSeen, Value: 1}}, 0, nil)
		if len(held) > 0 && err == nil {
			// What an earlier call of the same request got comes last.
			slices.SortStableFunc(held, func(a, b job.Record) int { return cmp.Compare(order[a.JobID], order[b.JobID]) })
			var claimed []job.Claimed
			if claimed, err = s.claimed(ctx, held, granted, req); err == nil {
				return claimed, nil
			}
			f = fateRetry // it is read again
		}
		if round > maxClaimRounds || round > 1 && caller.Err() != nil || round > 1 && !sleep(ctx, pause.NextBackOff()) {
			break
		}
		if err == nil {
			var n int
			n, f, err = s.leaseDue(ctx, req, order, granted)
			if err == nil && n == 0 {
				if unknown {
					break
				}
				// Between the two reads a lease of the request that had lapsed may have been renewed.
				if held, f, err = s.findRecords(ctx, s.heldBy(req.RequestID, s.now()), nil, 1, nil); err == nil && len(held) == 0 {
					return nil, nil
				}
			}
		}
		if err != nil {
			failed, fated, unknown = err, f, unknown || f == fateUnknown
			if f == fateUnsent {
				break
			}
		}
	}
	if unknown {
		fated = fateUnknown
	}
	if failed != nil {
		return nil, ended(caller, fated, failed)
	}
	return nil, nil // others were faster every time
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

// leaseDue tries to lease what is due, as much as the request takes, and notes its order. It returns how much that was;
// how much of it was got shows only when it is read.
func (s *Store) leaseDue(ctx context.Context, req job.ClaimRequest, order map[string]int, granted map[string]job.Work) (int, fate, error) {
	bytes := 0
	due, f, err := s.findRecords(ctx, dueFilter(s.now(), req.Events), bson.D{{Key: inWork(workDue), Value: 1}}, req.Max,
		func(r *job.Record) bool {
			bytes += len(r.Body.Data)
			return bytes <= req.MaxBytes
		})
	if err != nil || len(due) == 0 {
		return 0, f, err
	}
	for i := range due {
		order[due[i].JobID] = i - len(due)
	}
	f, err = s.lease(ctx, req, due, granted)
	return len(due), f, err
}

// lease tries to put each record under a lease of the request. Some may fail; the database tells which succeeded only by
// being read. Sorted by key, so that overlapping bulks cannot deadlock.
func (s *Store) lease(ctx context.Context, req job.ClaimRequest, due []job.Record, granted map[string]job.Work) (fate, error) {
	now := s.now()
	due = slices.Clone(due)
	slices.SortFunc(due, func(a, b job.Record) int { return cmp.Compare(a.JobID, b.JobID) })
	models := make([]mongo.WriteModel, len(due))
	for i := range due {
		next := due[i].Work.Claim(job.Grant{Token: job.NewToken(), Duration: req.Lease, ClaimID: req.RequestID,
			MaxAttempts: s.opts.MaxAttempts}, now)
		granted[next.Token] = next
		models[i] = mongo.NewUpdateOneModel().SetFilter(asRead(&due[i])).SetUpdate(setWork(&next))
	}
	tracked, sent := track(ctx)
	_, err := s.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(false))
	if err == nil {
		return 0, nil
	}
	s.log.Warn("a claim failed, wholly or in part", "store", s.String(), "jobs", len(due), "error", s.explain(err))
	return writeFate(err, sent), err
}

// heldBy matches the running leases of a ClaimWork call.
func (s *Store) heldBy(requestID string, now time.Time) bson.D {
	return bson.D{
		{Key: inWork(workClaimID), Value: bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: requestID}}},
		{Key: inWork(workState), Value: stateNames[job.StateLeased]},
		{Key: inWork(workDue), Value: bson.D{{Key: "$gt", Value: now}}},
	}
}

// claimed is the answer to a claim that holds the records, as much as the request takes. A lease that an earlier call with
// the same request id was granted is marked as told again. The error says that one could not be, because it was changed at
// the same time, for example.
func (s *Store) claimed(ctx context.Context, held []job.Record, granted map[string]job.Work, req job.ClaimRequest) ([]job.Claimed, error) {
	var out []job.Claimed
	bytes := 0
	for _, r := range held {
		if bytes += len(r.Body.Data); len(out) == req.Max || len(out) > 0 && bytes > req.MaxBytes {
			break
		}
		work, mine := granted[r.Work.Token]
		if mine {
			r.Work = work // as granted, whatever another call has marked since
		} else {
			next := r.Work.Retell()
			if _, err := s.swap(ctx, &r, &next); err != nil {
				return nil, err
			}
			r.Work = next
		}
		out = append(out, job.Claimed{Record: r, Lease: r.Work.Lease(s.now()), Granted: mine})
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
