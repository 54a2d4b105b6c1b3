package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// settle turns what became of the group into its outcomes, and tells whether there are conflicts to record. The record
// counts all the group's deliveries, and each is told what the count was after its own.
func (s *Store) settle(ctx context.Context, g *group) (conflicts bool) {
	if err := g.failure(ctx); err != nil {
		for _, o := range g.outcomes {
			o.Err = err
		}
		return false
	}
	deliveries := g.record.Deliveries
	for i, d := range g.deliveries {
		o := g.outcomes[i]
		if *o = s.decide(ctx, g, d); o.Err != nil {
			continue
		}
		o.Record.Deliveries = max(1, deliveries-int64(len(g.deliveries)-1-i))
		conflicts = conflicts || o.Verdict.Conflict != nil
	}
	return conflicts
}

// maxClaims bounds how often one delivery tries to claim work that others keep changing.
const maxClaims = 5

// decide decides one delivery on the group's record, and claims the work where the decision says so.
func (s *Store) decide(ctx context.Context, g *group, d *job.Delivery) job.Outcome {
	now := s.now()
	v := job.Decide(&g.record, d, now)
	unknown := false // a claim may yet be applied
	for try := 0; v.Claim && try < maxClaims; try++ {
		r, f, err := s.reclaim(ctx, g.record, d)
		if err != nil {
			return job.Outcome{Err: err}
		}
		unknown = unknown || f == fateUnknown
		g.record = r
		now = s.now()
		v = job.Decide(&g.record, d, now)
	}
	if v.Claim && unknown {
		return job.Outcome{Err: ended(ctx, fateUnknown, errClaimOpen)}
	}
	r := g.record
	if v.Disposition != job.Reclaimed {
		r.Body = job.Body{}
	} else if r.Body.Kind == job.BodyNone {
		full, err := s.readOne(ctx, r.JobID, true)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return job.Outcome{Err: ended(ctx, fateUnknown, err)}
		}
		r.Body = full.Body
	}
	return job.Answer(r, v, now)
}

// failure is the error of a group that did not come through; nil for one that did.
func (g *group) failure(ctx context.Context) error {
	if g.record.JobID != "" {
		return nil
	}
	err := g.err
	if g.unknown || err == nil && g.written {
		err = job.ErrOutcomeUnknown
		if g.err != nil {
			err = fmt.Errorf("%w: %v", err, g.err)
		}
	} else if err == nil {
		err = fmt.Errorf("%w: nothing was written in %d tries", job.ErrUnavailable, maxTries)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// recordConflicts counts the conflicts and keeps each job's latest. Best effort: the deliveries are recorded and decided,
// and a failure here must not make that unknown.
func (s *Store) recordConflicts(ctx context.Context, groups []*group) {
	if len(groups) == 0 {
		return
	}
	models := make([]mongo.WriteModel, len(groups))
	for i, g := range groups {
		n, last := 0, (*job.Conflict)(nil)
		for _, o := range g.outcomes {
			if c := o.Verdict.Conflict; c != nil {
				n, last = n+1, c
			}
		}
		models[i] = mongo.NewUpdateOneModel().SetFilter(filter(g.jobID)).SetUpdate(conflictUpdate(n, last))
	}
	if _, err := s.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		s.log.Warn("conflicts were not counted", "store", s.String(), "jobs", len(groups), "error", s.explain(err))
	}
}

func conflictUpdate(n int, c *job.Conflict) bson.D {
	return bson.D{
		{Key: "$inc", Value: bson.D{{Key: fieldConflicts, Value: int32(n)}}},
		{Key: "$set", Value: bson.D{{Key: fieldLastConflict, Value: bson.D{
			{Key: conflictKind, Value: c.Kind.String()}, {Key: conflictEvent, Value: c.Event},
			{Key: conflictStatus, Value: c.Status}, {Key: conflictTime, Value: c.Time},
		}}}},
	}
}
