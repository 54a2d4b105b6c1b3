package mongostore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// List implements [job.Store]. Each order and filter goes along one index, by keys that stay as they are while a document is
// there.
func (s *Store) List(ctx context.Context, q job.ListQuery) (job.Page, error) {
	done, err := s.beginAdmin(ctx)
	if err != nil {
		return job.Page{}, err
	}
	defer done()
	pager := job.NewPager(&q)
	filter, sort, index := listFilter(&q)
	more := true
	opts := options.Find().SetSort(sort).SetLimit(int64(pager.Limit())).SetProjection(listed)
	f := s.along(ctx, s.coll, index, filter, opts, func(doc bson.Raw) bool {
		r, err := decode(doc, false)
		if id := r.JobID; q.Order == job.ByID && !strings.HasPrefix(id, q.Prefix) {
			return false
		}
		if more = pager.Room(); !more {
			return false
		}
		if at := job.PlaceOf(&r.Record); err != nil {
			pager.Add(at, nil)
		} else {
			pager.Add(at, &r.Record)
		}
		return true
	})
	if f != nil {
		return job.Page{}, s.readError(ctx, f)
	}
	return pager.Page(), nil
}

// beginAdmin is begin for a call that needs the indexes of lists.
func (s *Store) beginAdmin(ctx context.Context) (done func(), err error) {
	if done, err = s.begin(ctx); err != nil {
		return nil, err
	}
	if err := s.listsUnready.Load(); err != nil {
		done()
		return nil, fmt.Errorf("%w: %w", job.ErrUnready, *err)
	}
	return done, nil
}

// readError is the error of a read that failed.
func (s *Store) readError(ctx context.Context, f *failure) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w: %v", job.ErrUnavailable, ctx.Err(), s.explain(f))
	}
	return fmt.Errorf("%w: %v", job.ErrUnavailable, s.explain(f))
}

// listed leaves out what a list does not have.
var listed = append(append(bson.D{}, withoutBody...), bson.E{Key: inWork(workResult), Value: 0})

// earliest is before every time that is stored, and of their type: documents without such a time are not in orders by time.
var earliest = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)

// listFilter is the query for a page: what an index finds, from behind the page before on. The rest is the pager's.
func listFilter(q *job.ListQuery) (filter, sort bson.D, index string) {
	if q.Order == job.ByID {
		ids := append(text(), bson.E{Key: "$gte", Value: q.Prefix})
		if q.After.JobID != "" {
			ids = append(text(), bson.E{Key: "$gt", Value: q.After.JobID})
		}
		return bson.D{{Key: fieldJobID, Value: ids}}, bson.D{{Key: fieldJobID, Value: 1}}, indexName
	}
	direction, bound, beyond := -1, "$lte", "$lt"
	if q.Order == job.OldestFirst {
		direction, bound, beyond = 1, "$gte", "$gt"
	}
	from := earliest
	if !q.SeenFrom.IsZero() {
		from = q.SeenFrom
	}
	seen := bson.D{{Key: "$exists", Value: true}, {Key: "$gte", Value: from}}
	if !q.SeenBefore.IsZero() {
		seen = append(seen, bson.E{Key: "$lt", Value: q.SeenBefore})
	}
	index = indexSeen
	switch {
	case q.Conflicts:
		index = indexConflict
		filter = bson.D{{Key: fieldConflicts, Value: bson.D{{Key: "$exists", Value: true}}}}
	case q.State != job.StateUnknown && q.State != job.StateUntracked:
		index = indexState
		filter = bson.D{{Key: inWork(workState), Value: bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: q.State.String()}}}}
	}
	filter = append(filter, bson.E{Key: fieldFirstSeen, Value: seen}, bson.E{Key: fieldJobID, Value: text()})
	if q.After != (job.Place{}) {
		at := time.UnixMilli(q.After.Seen).UTC()
		filter = append(filter, bson.E{Key: "$and", Value: bson.A{
			bson.D{{Key: fieldFirstSeen, Value: bson.D{{Key: bound, Value: at}}}}, // which bounds the index
			bson.D{{Key: "$or", Value: bson.A{
				bson.D{{Key: fieldFirstSeen, Value: bson.D{{Key: beyond, Value: at}}}},
				bson.D{{Key: fieldJobID, Value: bson.D{{Key: beyond, Value: q.After.JobID}}}},
			}}},
		}})
	}
	return filter, bson.D{{Key: fieldFirstSeen, Value: direction}, {Key: fieldJobID, Value: direction}}, index
}

// Count implements [job.Store].
func (s *Store) Count(ctx context.Context, prefix string) (c job.Counts, err error) {
	done, err := s.beginAdmin(ctx)
	if err != nil {
		return c, err
	}
	defer done()
	if prefix != "" {
		return s.countEach(ctx, &job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: prefix}})
	}
	c.States = make(map[job.WorkState]job.Count)
	for _, state := range job.TrackedStates {
		if c.States[state], err = s.countAlong(ctx, job.Filter{State: state}); err != nil {
			return c, err
		}
	}
	if c.Conflicts, err = s.countAlong(ctx, job.Filter{Conflicts: true}); err != nil {
		return c, err
	}
	among, err := s.countEach(ctx, &job.ListQuery{})
	c.States[job.StateUntracked] = among.States[job.StateUntracked]
	return c, err
}

func (s *Store) countAlong(ctx context.Context, f job.Filter) (job.Count, error) {
	filter, _, index := listFilter(&job.ListQuery{Filter: f})
	n, err := s.count(ctx, s.coll, index, mongo.Pipeline{{{Key: "$match", Value: filter}}, {{Key: "$limit", Value: job.MaxCount + 1}}})
	return job.CountOf(n), err
}

// countEach looks at one job after the other, along a list: nothing else tells which are under a prefix, and in which state, nor which
// are untracked.
func (s *Store) countEach(ctx context.Context, q *job.ListQuery) (job.Counts, error) {
	filter, sort, index := listFilter(q)
	if q.Order == job.ByID {
		filter = bson.D{{Key: fieldJobID, Value: beginsWith(q.Prefix)}}
	}
	conflicts := bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$gt", Value: bson.A{"$" + fieldConflicts, 0}}}, 1, 0}}}
	var groups []struct {
		State        bson.RawValue `bson:"_id"`
		N, Conflicts int64
	}
	err := s.aggregate(ctx, s.coll, index, &groups, mongo.Pipeline{
		{{Key: "$match", Value: filter}},
		{{Key: "$sort", Value: sort}},
		{{Key: "$limit", Value: job.MaxCountExamined}},
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + inWork(workState), job.StateUntracked.String()}}}},
			{Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
			{Key: "conflicts", Value: bson.D{{Key: "$sum", Value: conflicts}}},
		}}},
	})
	states, conflicting := make(map[job.WorkState]int64), int64(0)
	for _, g := range groups {
		states[job.StateNamed(textOf(g.State))] += g.N
		conflicting += g.Conflicts
	}
	return job.CountsOf(states, conflicting), err
}

// count is how many documents a pipeline gives.
func (s *Store) count(ctx context.Context, coll *mongo.Collection, index string, pipeline mongo.Pipeline) (int64, error) {
	var counted []struct{ N int64 }
	err := s.aggregate(ctx, coll, index, &counted, append(pipeline, bson.D{{Key: "$count", Value: "n"}}))
	if err != nil || len(counted) == 0 {
		return 0, err
	}
	return counted[0].N, nil
}

// aggregate reads all that a pipeline gives, by the index of that name, as [Store.along] does.
func (s *Store) aggregate(ctx context.Context, coll *mongo.Collection, index string, into any, pipeline mongo.Pipeline) error {
	tracked, sent := track(ctx)
	cursor, err := coll.Aggregate(tracked, pipeline, options.Aggregate().SetHint(index))
	if err != nil && hasCode(err, codeBadValue, codeIndexNotFound) {
		cursor, err = coll.Aggregate(tracked, pipeline)
	}
	if err == nil {
		err = cursor.All(tracked, into)
	}
	if err != nil {
		return s.readError(ctx, readFailed(err, sent))
	}
	return nil
}
