package mongostore

import (
	"context"
	"slices"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// group is the deliveries of one job within a call: one upsert writes them all and counts each. The first in the order
// of the call is the one that makes the record, if any does.
type group struct {
	jobID      string
	deliveries []*job.Delivery
	outcomes   []job.Outcome
	places     []int // in the call
	settle     func(place int, o job.Outcome)
	settled    atomic.Bool // never twice, even where one of many that went on together panics
	tries      *tries

	update   update
	fresh    job.Record // the record that the update makes
	textOnly bool       // the database refused the embedded document
	looks    int        // how often a hint of it was refused, and the unique index was found good
	// duplicates counts the tries in a row that met a duplicate key.
	duplicates int

	// created is true when our upsert made the record, written when it was applied and acknowledged.
	created, written bool
	// record is the record as it stands after the write; known once it is.
	record stored
	known  bool
}

// Record implements [job.Store].
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	return all(ctx, deliveries, s.RecordEach)
}

// RecordEach implements [job.EachRecorder]: one bulk for all, and one read for those that were not the first. When the
// database fails them all alike, they are tried again together. One that fails by itself, or that may claim work, goes on
// alone. With the request id in the record, repeating a write is how the truth about it is found out.
func (s *Store) RecordEach(ctx context.Context, deliveries []job.Delivery, settle func(i int, o job.Outcome)) {
	done, err := s.begin(ctx)
	if err != nil {
		for i := range deliveries {
			settle(i, job.Outcome{Err: err})
		}
		return
	}
	defer done()
	groups := s.groupByJob(ctx, deliveries, settle)
	ctx, endSession := s.session(ctx)
	defer endSession()
	together(ctx, s, groups, s.recordRound, s.alone)
}

// groupByJob sorts the deliveries by job.
func (s *Store) groupByJob(ctx context.Context, deliveries []job.Delivery, settle func(int, job.Outcome)) []*group {
	byID := make(map[string]*group, len(deliveries))
	groups := make([]*group, 0, len(deliveries))
	for i := range deliveries {
		d := &deliveries[i]
		g := byID[d.JobID]
		if g == nil {
			g = &group{jobID: d.JobID, settle: settle, tries: s.newTries(ctx)}
			byID[d.JobID] = g
			groups = append(groups, g)
		}
		g.deliveries, g.places = append(g.deliveries, d), append(g.places, i)
	}
	inOrder(groups)
	return groups
}

// leases tells whether a delivery of the group may be granted a lease.
func (g *group) leases() bool {
	return slices.ContainsFunc(g.deliveries, func(d *job.Delivery) bool { return d.Mode == job.ModeLeased })
}

// alone records one group.
func (s *Store) alone(ctx context.Context, g *group) {
	for {
		if g.leases() && whenTimed(ctx, s, []*group{g}) == nil {
			return
		}
		if g.known {
			s.decide(ctx, g)
			return
		}
		if g.duplicates == suspectTries && s.isForeign(ctx, g) {
			return
		}
		r := s.recordRound(ctx, []*group{g})
		if len(r.alone)+len(r.struck)+len(r.untimed) == 0 {
			return
		}
		if !g.known && !g.tries.wait() {
			g.giveUp()
			return
		}
	}
}

// decide decides a group that goes alone, and settles it.
func (s *Store) decide(ctx context.Context, g *group) {
	if s.outcomesOf(ctx, g) {
		s.recordConflicts(ctx, []*group{g})
	} else {
		g.settleAll()
	}
}

// outcomesOf decides each delivery of the group, and tells whether there are conflicts to record. The record counts all
// the group's deliveries, and each is told what the count was after its own.
func (s *Store) outcomesOf(ctx context.Context, g *group) (conflicts bool) {
	deliveries := g.record.Deliveries
	g.outcomes = make([]job.Outcome, len(g.deliveries))
	for i, d := range g.deliveries {
		o := &g.outcomes[i]
		if *o = s.outcome(ctx, g, d); o.Err != nil {
			continue
		}
		o.Record.Deliveries = deliveries - int64(len(g.deliveries)-1-i)
		conflicts = conflicts || o.Verdict.Conflict != nil
	}
	return conflicts
}

// settleAll tells the callers their outcomes.
func (g *group) settleAll() {
	if g.settled.Swap(true) {
		return
	}
	for i, o := range g.outcomes {
		g.settle(g.places[i], o)
	}
}

// fail tells all callers the same error.
func (g *group) fail(err error) {
	if g.settled.Swap(true) {
		return
	}
	for _, place := range g.places {
		g.settle(place, job.Outcome{Err: err})
	}
}

func (g *group) giveUp() { g.fail(g.tries.err()) }

func (g *group) id() string { return g.jobID }

func (g *group) past() *tries { return g.tries }

func (g *group) sent() bool { return g.written }

// detach copies the deliveries, so that the group does not keep the bodies of all the call's.
func (g *group) detach() {
	for i, d := range g.deliveries {
		g.deliveries[i] = new(*d)
	}
}

// recordConflicts counts the conflicts, keeps each job's latest, and settles the groups. Best effort: the deliveries are
// recorded and decided, and a failure here must not make that unknown.
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
	for _, g := range groups {
		g.settleAll()
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
