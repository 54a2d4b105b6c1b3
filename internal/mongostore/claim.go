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

// maxClaimRounds bounds how often a claim looks again after other instances took what it saw.
const maxClaimRounds = 8

// Claim implements [job.Store]. It reads what is due, puts each under a lease provided that nobody else changed it, and
// reads which of them it got: three round trips however many jobs.
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

	held, err := s.findRecords(ctx, s.heldBy(req.RequestID, s.now()), bson.D{{Key: fieldFirstSeen, Value: 1}}, 0, nil)
	if err != nil {
		return nil, readError(ctx, err)
	}
	if len(held) > 0 {
		return s.claimed(held), nil
	}
	pause := newPause()
	for range maxClaimRounds {
		claimed, again, err := s.claimRound(ctx, req)
		if err != nil || len(claimed) > 0 || !again {
			return claimed, err
		}
		if !sleep(ctx, pause.NextBackOff()) {
			break
		}
	}
	return nil, nil
}

// claimRound claims once. again is true when something was due and nothing was got.
func (s *Store) claimRound(ctx context.Context, req job.ClaimRequest) (got []job.Claimed, again bool, err error) {
	bytes := 0
	due, err := s.findRecords(ctx, dueFilter(s.now(), req.Events), bson.D{{Key: inWork(workDue), Value: 1}}, req.Max,
		func(r *job.Record) bool {
			bytes += len(r.Body.Data)
			return bytes <= req.MaxBytes
		})
	if err != nil {
		return nil, false, readError(ctx, err)
	}
	if len(due) == 0 {
		return nil, false, nil
	}
	f, err := s.lease(ctx, req, due)
	if err != nil && (f == fateUnsent || f == fateRefused) {
		return nil, false, ended(ctx, false, err)
	}
	held, rerr := s.findRecords(ctx, s.heldBy(req.RequestID, s.now()), nil, 0, nil)
	if rerr != nil {
		return nil, false, ended(ctx, true, rerr)
	}
	if len(held) == 0 && err != nil {
		return nil, false, ended(ctx, true, err)
	}
	// The oldest due first, as they were read; what an earlier call of the same request got comes last.
	at := make(map[string]int, len(due))
	for i := range due {
		at[due[i].JobID] = i - len(due)
	}
	slices.SortStableFunc(held, func(a, b job.Record) int { return cmp.Compare(at[a.JobID], at[b.JobID]) })
	return s.claimed(held), true, nil
}

// lease tries to put each record under a lease of the request. Some may fail; the database tells which succeeded only by
// being read. Sorted by key, so that overlapping bulks cannot deadlock.
func (s *Store) lease(ctx context.Context, req job.ClaimRequest, due []job.Record) (fate, error) {
	now := s.now()
	due = slices.Clone(due)
	slices.SortFunc(due, func(a, b job.Record) int { return cmp.Compare(a.JobID, b.JobID) })
	models := make([]mongo.WriteModel, len(due))
	for i := range due {
		next := due[i].Work.Claim(job.Grant{Token: job.NewToken(), Duration: req.Lease, ClaimID: req.RequestID,
			MaxAttempts: s.opts.MaxAttempts}, now)
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
		{Key: inWork(workClaimID), Value: requestID},
		{Key: inWork(workState), Value: stateNames[job.StateLeased]},
		{Key: inWork(workDue), Value: bson.D{{Key: "$gt", Value: now}}},
	}
}

func (s *Store) claimed(records []job.Record) []job.Claimed {
	now := s.now()
	out := make([]job.Claimed, len(records))
	for i, r := range records {
		out[i] = job.Claimed{Record: r, Lease: r.Work.Lease(now)}
	}
	return out
}

// findRecords reads records with their bodies, up to a limit if it is not 0, and for as long as more says so; the first
// comes in any case.
func (s *Store) findRecords(ctx context.Context, f, sort bson.D, limit int, more func(*job.Record) bool) (out []job.Record, err error) {
	opts := options.Find().SetLimit(int64(limit))
	if len(sort) > 0 {
		opts.SetSort(sort)
	}
	cursor, err := s.coll.Find(ctx, f, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cursor.Close(context.WithoutCancel(ctx))) }()
	for cursor.Next(ctx) {
		r, err := decode(cursor.Current, true)
		if err != nil {
			return nil, err
		}
		if more != nil && !more(&r) && len(out) > 0 {
			break
		}
		out = append(out, r)
	}
	return out, cursor.Err()
}
