package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// upkeepEvery is how often due times are looked at, upkeepPart how many at a time.
	upkeepEvery = time.Minute
	upkeepPart  = 1000
)

// keepWork looks now and then at work that no claim would come to.
func (s *Store) keepWork(ctx context.Context) {
	var from time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ready:
		}
		part, cancel := context.WithTimeout(ctx, prepareTimeout)
		from = s.anchor(part, from)
		s.countUnclaimable(part)
		for more := true; more; {
			more = s.group(part)
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-time.After(upkeepEvery):
		}
	}
}

// anchor measures the due times anew that lie further ahead than was granted, which a clock that was ahead has set: of a
// bounded part of those that lie ahead, beginning with the furthest, and going on from where the part before ended.
func (s *Store) anchor(ctx context.Context, from time.Time) (end time.Time) {
	if s.timed(ctx) != nil {
		return from
	}
	allowance := s.allowance()
	ahead := bson.D{{Key: "$exists", Value: true}, {Key: "$gt", Value: s.now().Add(allowance)}}
	if !from.IsZero() {
		ahead = append(ahead, bson.E{Key: "$lte", Value: from})
	}
	seen := 0
	var models []mongo.WriteModel
	f := s.each(ctx, s.coll, bson.D{{Key: inWork(workDue), Value: ahead}}, options.Find().SetProjection(withoutBody).SetLimit(upkeepPart).
		SetSort(bson.D{{Key: inWork(workDue), Value: -1}}), func(doc bson.Raw) bool {
		seen++
		r, err := decode(doc, false)
		if err != nil {
			return true
		}
		end = r.Work.Due
		// The time is that after the read: a lease may have been granted while that took its time.
		if next, anchored := r.Work.Anchor(allowance, s.now()); anchored && r.JobID != "" {
			models = append(models, mongo.NewUpdateOneModel().SetFilter(r.unchanged()).SetUpdate(workChange(&r.Work, &next)))
		}
		return true
	})
	if f == nil && len(models) > 0 {
		s.log.Warn("work was due further ahead than was ever granted, by a clock that was ahead; it is measured anew",
			"store", s.String(), "jobs", len(models))
		if _, err := s.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
			f = &failure{fateUnknown, err} // the next round finds what is left
		}
	}
	if f != nil {
		s.log.Warn("cannot look at due times", "store", s.String(), "error", s.explain(f))
	}
	switch {
	case seen < upkeepPart:
		return time.Time{}
	case end.Equal(from): // as many are due at one time: the rest of those is passed over this once
		return end.Add(-time.Millisecond)
	}
	return end
}

// group gives work that is due its group, where an older version has recorded it without: a bounded part of it. It tells
// whether there may be more now. What is left when it fails, or its time is over, the next round finds.
func (s *Store) group(ctx context.Context) (more bool) {
	if s.CheckWork(ctx) != nil { // without the index it would look at all that is due
		return false
	}
	lacking := append(ofGroup(nil), bson.E{Key: inWork(workDue), Value: bson.D{{Key: "$exists", Value: true}}},
		bson.E{Key: fieldJobID, Value: text()})
	var models []mongo.WriteModel
	f := s.each(ctx, s.coll, lacking, options.Find().SetProjection(bson.D{{Key: fieldJobID, Value: 1}}).SetLimit(upkeepPart),
		func(doc bson.Raw) bool {
			id := textOf(doc.Lookup(fieldJobID))
			models = append(models, mongo.NewUpdateOneModel().
				SetFilter(bson.D{{Key: fieldJobID, Value: id}, {Key: inWork(workDue), Value: bson.D{{Key: "$exists", Value: true}}}}).
				SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: inWork(workGroup), Value: job.Group(id)}}}}))
			return true
		})
	if f == nil && len(models) > 0 {
		if _, err := s.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
			f = &failure{fateUnknown, err}
		}
	}
	if f != nil {
		s.log.Warn("cannot give work its group, by which claims with a prefix find it", "store", s.String(), "error", s.explain(f))
		return false
	}
	if more = len(models) == upkeepPart; !more {
		s.grouped.Store(true)
	}
	return more
}

// countUnclaimable counts the work that is due and can never be claimed, since its state is none of ours, or its job_id no
// text. Nothing moves it, so it is among what has been due for longest.
func (s *Store) countUnclaimable(ctx context.Context) {
	now := s.now()
	cursor, err := s.coll.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: dueBy(time.Time{}, now)}},
		{{Key: "$sort", Value: bson.D{{Key: inWork(workDue), Value: 1}}}},
		{{Key: "$limit", Value: 10 * upkeepPart}},
		{{Key: "$match", Value: bson.D{{Key: "$nor", Value: bson.A{claimable(now)}}}}},
		{{Key: "$count", Value: "n"}},
	})
	var counted []struct{ N int64 }
	if err == nil {
		err = cursor.All(ctx, &counted)
	}
	if err != nil {
		s.log.Warn("cannot count work that nobody can claim", "store", s.String(), "error", s.explain(err))
		return
	}
	n := int64(0)
	if len(counted) > 0 {
		n = counted[0].N
	}
	if before := s.unclaimable.Swap(n); before == 0 && n > 0 {
		s.log.Warn("work is due that nobody can claim: its state is not one that this version knows, or its job_id is not a text",
			"store", s.String(), "jobs", n)
	}
}

// Unclaimable is how much work is due that can never be claimed, as counted last among the 10,000 that
// have been due for longest.
func (s *Store) Unclaimable() int64 { return s.unclaimable.Load() }
