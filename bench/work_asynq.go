package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/load"
)

// asynqQueue is asynq on Redis.
type asynqQueue struct {
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
}

// asynqDatabase is the Redis database that asynq has for itself.
const asynqDatabase = 1

func newAsynq(ctx context.Context, s spec) (runner, string, error) {
	settings, err := redisSettings(ctx, s.Address)
	if err != nil {
		return nil, "", err
	}
	opt := asynq.RedisClientOpt{Addr: s.Address, DB: asynqDatabase, PoolSize: s.Callers}
	q := asynqQueue{redis: opt, client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt)}
	return queueRunner{q}, "asynq: " + settings + ", its defaults, as many workers as ours, a connection for each", nil
}

// redisSettings are those that say what an answer of Redis promises.
func redisSettings(ctx context.Context, address string) (string, error) {
	c := redis.NewClient(&redis.Options{Addr: address})
	defer c.Close()
	var settings []string
	for _, name := range []string{"appendonly", "appendfsync"} {
		value, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			return "", err
		}
		settings = append(settings, name+"="+value[name])
	}
	return strings.Join(settings, ", "), nil
}

func (q asynqQueue) close() {
	_ = q.client.Close()
	_ = q.inspector.Close()
}

func (q asynqQueue) fill(ctx context.Context, w load.Workload) (load.Result, error) {
	bodies := load.NewBody(w.Run, w.BodyBytes)
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	begin := time.Now()
	for range w.Callers {
		group.Go(func() error {
			for n := next.Add(1) - 1; n < w.Count; n = next.Add(1) - 1 {
				key := load.Key(w.Run, n)
				if _, err := q.client.EnqueueContext(ctx, asynq.NewTask("bench", []byte(bodies.Of(key))), asynq.TaskID(key)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return load.Result{Ops: w.Count, Elapsed: time.Since(begin)}, err
}

// drain stops its clock when Redis has no task left: one that is done is deleted.
func (q asynqQueue) drain(ctx context.Context, w load.Workload, t *tally) (time.Duration, error) {
	server := asynq.NewServer(q.redis, asynq.Config{Concurrency: w.Callers, LogLevel: asynq.WarnLevel})
	begin := time.Now()
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		t.start(task.ResultWriter().TaskID())
		return nil
	}))
	if err != nil {
		return 0, err
	}
	defer server.Shutdown()
	select {
	case <-t.all:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for {
		left, err := q.left()
		if err != nil || left == 0 {
			return time.Since(begin), err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (q asynqQueue) left() (int, error) {
	info, err := q.inspector.GetQueueInfo("default")
	if err != nil {
		return 0, err
	}
	if info.FailedTotal > 0 {
		return 0, fmt.Errorf("%d tasks failed", info.FailedTotal)
	}
	return info.Size, nil
}

func (q asynqQueue) check(context.Context, load.Workload) error {
	left, err := q.left()
	if err == nil && left > 0 {
		err = fmt.Errorf("after all work was done, %d tasks are left", left)
	}
	return err
}
