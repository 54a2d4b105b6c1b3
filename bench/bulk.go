package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/load"
)

// The bulk ceiling: what the database takes from few writers that have all deliveries in hand.
const (
	bulkWriters = 4
	bulkSize    = 500
)

// bulk is the writers. Of the workload, the duration, the run and the body count.
type bulk struct {
	directTarget
	end func()
}

func newBulk(ctx context.Context, s spec) (runner, string, error) {
	s.Callers = bulkWriters
	t, note, end, err := connectDirect(s)
	if err != nil {
		return nil, "", err
	}
	return bulk{t, end}, note, t.coll.Database().Client().Ping(ctx, nil)
}

func (b bulk) close() { b.end() }

func (b bulk) run(ctx context.Context, o order) (load.Result, error) {
	w := o.Workload
	var (
		bodies       = load.NewBody(w.Run, w.BodyBytes)
		writers      sync.WaitGroup
		next, firsts atomic.Int64
		errs         [bulkWriters]error
		start        = time.Now()
	)
	for i := range bulkWriters {
		writers.Go(func() {
			for errs[i] == nil && ctx.Err() == nil && time.Since(start) < w.Duration {
				var n int64
				n, errs[i] = b.write(ctx, w.Run, bodies, next.Add(bulkSize)-bulkSize)
				firsts.Add(n)
			}
		})
	}
	writers.Wait()
	r := load.Result{Ops: next.Load(), Firsts: firsts.Load(), Keys: next.Load(), Elapsed: time.Since(start)}
	err := cmp.Or(errs[:]...)
	if err == nil && r.Firsts != r.Keys {
		err = fmt.Errorf("%d firsts for %d keys", r.Firsts, r.Keys)
	}
	return r, err
}

// write upserts the keys from one on, in their order, which is that of the index.
func (b bulk) write(ctx context.Context, run string, bodies load.Body, from int64) (firsts int64, err error) {
	models := make([]mongo.WriteModel, bulkSize)
	for i := range models {
		jobID, update, err := b.update(bodies.Of(load.Key(run, from+int64(i))))
		if err != nil {
			return 0, err
		}
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "job_id", Value: jobID}}).SetUpdate(update).SetUpsert(true)
	}
	r, err := b.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return 0, errors.New("bulk write: " + strconv.Quote(err.Error()))
	}
	return r.UpsertedCount, nil
}
