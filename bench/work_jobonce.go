package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/load"
)

// workers is JobOnce as a queue: the Go client with its defaults, and a Worker for each instance of the service.
type workers struct {
	clients []*client.Client
}

func newWorkers(s spec) (runner, string, error) {
	var w workers
	for address := range strings.SplitSeq(s.Address, ",") {
		c, err := client.New(address)
		if err != nil {
			w.close()
			return nil, "", err
		}
		w.clients = append(w.clients, c)
	}
	return queueRunner{w}, "", nil
}

func (q workers) close() {
	for _, c := range q.clients {
		_ = c.Close()
	}
}

// fill records as callers of the Go client do, which shares calls between them.
func (q workers) fill(ctx context.Context, w load.Workload) (load.Result, error) {
	service := load.Service{Client: q.clients[0], Mode: joboncev1.WorkMode_WORK_MODE_QUEUED}
	r, err := target{Target: service, reason: load.Reason}.run(ctx, order{Workload: w})
	if err == nil && r.Firsts != w.Count {
		err = fmt.Errorf("%d of %d jobs were recorded: %w", r.Firsts, w.Count, r.FirstError)
	}
	return r, err
}

// drain ends when the workers have: a worker that is told to end waits until the jobs under way are completed.
func (q workers) drain(ctx context.Context, w load.Workload, t *tally) (time.Duration, error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var all []*client.Worker
	for _, c := range q.clients {
		worker, err := client.NewWorker(c, client.WorkerConfig{Concurrency: w.Callers / len(q.clients)},
			func(_ context.Context, work *client.Work) error {
				t.start(work.Job.GetJobId())
				return nil
			})
		if err != nil {
			return 0, err
		}
		all = append(all, worker)
	}
	var group errgroup.Group
	begin := time.Now()
	for _, worker := range all {
		group.Go(func() error { return worker.Run(working) })
	}
	select {
	case <-t.all:
	case <-ctx.Done():
	}
	stop()
	err := group.Wait()
	return time.Since(begin), errors.Join(err, ctx.Err())
}

// check asks for every job.
func (q workers) check(ctx context.Context, w load.Workload) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range 64 {
		group.Go(func() error {
			for {
				n := next.Add(1) - 1
				if n >= w.Count {
					return nil
				}
				j, err := q.clients[0].GetJob(ctx, load.Key(w.Run, n), joboncev1.JobView_JOB_VIEW_BASIC)
				if err != nil {
					return err
				}
				if work := j.GetWork(); work.GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED || work.GetAttempts() != 1 {
					return fmt.Errorf("after all work was done, %s is %v after %d attempts", j.GetJobId(), work.GetState(), work.GetAttempts())
				}
			}
		})
	}
	return group.Wait()
}
