package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/jobonce/jobonce/internal/load"
)

// riverQueue is River on PostgreSQL.
type riverQueue struct {
	pool   *pgxpool.Pool
	insert *river.Client[pgx.Tx]
}

// How often River looks for jobs: as often as it can, since it is no faster than that. Its defaults are 100 ms and 1 s.
const (
	riverFetchCooldown     = river.FetchCooldownMin
	riverFetchPollInterval = 10 * time.Millisecond
)

// riverJob is a job with the same body as everywhere.
type riverJob struct {
	Key  string          `json:"key"`
	Body json.RawMessage `json:"body"`
}

func (riverJob) Kind() string { return "bench" }

func newRiver(ctx context.Context, s spec) (runner, string, error) {
	cfg, err := pgxpool.ParseConfig(s.Address)
	if err != nil {
		return nil, "", err
	}
	cfg.MaxConns = int32(max(10, s.Callers))
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, "", err
	}
	q, commit, err := prepareRiver(ctx, pool)
	if err != nil {
		pool.Close()
		return nil, "", err
	}
	return queueRunner{q}, fmt.Sprintf("river: synchronous_commit=%s, FetchCooldown=%v, FetchPollInterval=%v, as many workers as ours",
		commit, riverFetchCooldown, riverFetchPollInterval), nil
}

func prepareRiver(ctx context.Context, pool *pgxpool.Pool) (q riverQueue, commit string, err error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return q, "", err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return q, "", err
	}
	insert, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return q, "", err
	}
	err = pool.QueryRow(ctx, "SHOW synchronous_commit").Scan(&commit)
	return riverQueue{pool: pool, insert: insert}, commit, err
}

func (q riverQueue) close() { q.pool.Close() }

func (q riverQueue) fill(ctx context.Context, w load.Workload) (load.Result, error) {
	bodies := load.NewBody(w.Run, w.BodyBytes)
	begin := time.Now()
	for from := int64(0); from < w.Count; from += bulkSize {
		var jobs []river.InsertManyParams
		for n := from; n < min(from+bulkSize, w.Count); n++ {
			key := load.Key(w.Run, n)
			jobs = append(jobs, river.InsertManyParams{Args: riverJob{Key: key, Body: json.RawMessage(bodies.Of(key))}})
		}
		if _, err := q.insert.InsertManyFast(ctx, jobs); err != nil {
			return load.Result{}, err
		}
	}
	r := load.Result{Ops: w.Count, Elapsed: time.Since(begin)}
	// As the other database is: the planner does badly on a table that was empty a moment ago.
	_, err := q.pool.Exec(ctx, "ANALYZE river_job")
	return r, err
}

// drain stops its clock at River's word that the last job is completed, which comes after the commit.
func (q riverQueue) drain(ctx context.Context, w load.Workload, t *tally) (time.Duration, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverJob]) error {
		t.start(job.Args.Key)
		return nil
	}))
	c, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{
		FetchCooldown: riverFetchCooldown, FetchPollInterval: riverFetchPollInterval,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w.Callers}}, Workers: workers,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return 0, err
	}
	completed, cancel := c.SubscribeConfig(&river.SubscribeConfig{
		Kinds: []river.EventKind{river.EventKindJobCompleted}, ChanSize: int(w.Count) + 1,
	})
	defer cancel()
	begin := time.Now()
	if err := c.Start(ctx); err != nil {
		return 0, err
	}
	for n := int64(0); n < w.Count; n++ {
		select {
		case <-completed:
		case <-ctx.Done():
			return 0, errors.Join(ctx.Err(), c.Stop(context.WithoutCancel(ctx)))
		}
	}
	elapsed := time.Since(begin)
	return elapsed, c.Stop(ctx)
}

func (q riverQueue) check(ctx context.Context, w load.Workload) error {
	var n int64
	err := q.pool.QueryRow(ctx, `SELECT count(*) FROM river_job
		WHERE args->>'key' >= $1 COLLATE "C" AND args->>'key' < $2 COLLATE "C" AND state = 'completed' AND attempt = 1`,
		load.Key(w.Run, 0), load.Key(w.Run, w.Count)).Scan(&n)
	if err == nil && n != w.Count {
		err = fmt.Errorf("after all work was done, %d of %d jobs are completed", n, w.Count)
	}
	return err
}
