package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/load"
)

// byHand is the queue that one writes oneself on MongoDB: each worker takes the job that is longest due with
// findOneAndUpdate, does it, and crosses it off with updateOne. The job's id is the document's.
type byHand struct {
	jobs   *mongo.Collection
	decode decoder
	end    func()
}

// byHandLease is how long a worker has for a job. Nobody looks for those that lapsed, which is to the queue's advantage.
const byHandLease = time.Minute

func newByHand(ctx context.Context, s spec) (runner, string, error) {
	t, _, end, err := connectDirect(s)
	if err != nil {
		return nil, "", err
	}
	due := mongo.IndexModel{Keys: bson.D{{Key: "state", Value: 1}, {Key: "due", Value: 1}}}
	if _, err := t.coll.Indexes().CreateOne(ctx, due); err != nil {
		end()
		return nil, "", err
	}
	return queueRunner{byHand{jobs: t.coll, decode: t.decode, end: end}},
		"by_hand: findOneAndUpdate by {state, due}, sorted by due, then updateOne; a connection for each worker", nil
}

func (q byHand) close() { q.end() }

func (q byHand) fill(ctx context.Context, w load.Workload) (load.Result, error) {
	bodies := load.NewBody(w.Run, w.BodyBytes)
	begin := time.Now()
	for from := int64(0); from < w.Count; from += bulkSize {
		var jobs []bson.D
		for n := from; n < min(from+bulkSize, w.Count); n++ {
			e, err := q.decode(bodies.Of(load.Key(w.Run, n)))
			if err != nil {
				return load.Result{}, err
			}
			jobs = append(jobs, bson.D{
				{Key: "_id", Value: e.jobID}, {Key: "event", Value: e.event}, {Key: "status", Value: e.status},
				{Key: "payload", Value: e.payload}, {Key: "state", Value: "queued"}, {Key: "due", Value: time.Now()},
			})
		}
		if _, err := q.jobs.InsertMany(ctx, jobs, options.InsertMany().SetOrdered(false)); err != nil {
			return load.Result{}, err
		}
	}
	return load.Result{Ops: w.Count, Elapsed: time.Since(begin)}, nil
}

func (q byHand) drain(ctx context.Context, w load.Workload, t *tally) (time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	begin := time.Now()
	for range w.Callers {
		group.Go(func() error {
			for {
				id, token, err := q.take(ctx)
				switch {
				case err == nil:
					t.start(id)
					err = q.complete(ctx, id, token)
				case errors.Is(err, mongo.ErrNoDocuments):
					return nil // All are due from the start, so there are none left to take.
				case lostRace(err):
					continue
				}
				if err != nil {
					return err
				}
			}
		})
	}
	err := group.Wait()
	return time.Since(begin), err
}

func (q byHand) take(ctx context.Context) (id, token string, err error) {
	now := time.Now()
	token = uuid.NewString()
	var job struct {
		ID      string `bson:"_id"`
		Payload bson.Raw
	}
	err = q.jobs.FindOneAndUpdate(ctx,
		bson.D{{Key: "state", Value: "queued"}, {Key: "due", Value: bson.D{{Key: "$lte", Value: now}}}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "state", Value: "leased"}, {Key: "due", Value: now.Add(byHandLease)}, {Key: "token", Value: token}}},
			{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
		},
		options.FindOneAndUpdate().SetSort(bson.D{{Key: "due", Value: 1}}).SetReturnDocument(options.After),
	).Decode(&job)
	return job.ID, token, err
}

func (q byHand) complete(ctx context.Context, id, token string) error {
	r, err := q.jobs.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: id}, {Key: "token", Value: token}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "state", Value: "completed"}}},
			{Key: "$unset", Value: bson.D{{Key: "due", Value: ""}, {Key: "token", Value: ""}}},
		})
	if err == nil && r.ModifiedCount != 1 {
		err = fmt.Errorf("%s was not there to be completed", id)
	}
	return err
}

func (q byHand) check(ctx context.Context, w load.Workload) error {
	n, err := q.jobs.CountDocuments(ctx, bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gte", Value: load.Key(w.Run, 0)}, {Key: "$lt", Value: load.Key(w.Run, w.Count)}}},
		{Key: "state", Value: "completed"}, {Key: "attempts", Value: 1},
	})
	if err == nil && n != w.Count {
		err = fmt.Errorf("after all work was done, %d of %d jobs are completed", n, w.Count)
	}
	return err
}
