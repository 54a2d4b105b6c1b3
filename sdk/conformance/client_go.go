package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// goClient is package client under test.
func goClient(ctx context.Context, in io.Reader, out io.Writer) error {
	g := &goDriver{clients: make(map[string]*client.Client)}
	return sit(ctx, in, out, g.perform, describe)
}

type goDriver struct {
	mu      sync.Mutex
	clients map[string]*client.Client // by target
}

func (g *goDriver) client(target string) (*client.Client, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.clients[target] == nil {
		c, err := client.New(target)
		if err != nil {
			return nil, err
		}
		g.clients[target] = c
	}
	return g.clients[target], nil
}

func (g *goDriver) perform(t *task, c Command) (map[string]any, error) {
	jobs, err := g.client(c.Target)
	if err != nil {
		return nil, err
	}
	a, err := readArgs(c)
	if err != nil {
		return nil, err
	}
	ctx := t.ctx
	if a.TimeoutSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(a.TimeoutSeconds*float64(time.Second)))
		defer cancel()
	}
	fn := func(ctx context.Context, work *client.Work) error {
		f := t.work(ctx, work.Job.GetJobId())
		switch {
		case f.Permanent:
			return client.Permanent(errors.New(f.Error))
		case f.Error != "":
			return errors.New(f.Error)
		}
		return work.SetResult(f.Result)
	}
	switch c.Op {
	case "record":
		resp, err := jobs.RecordDelivery(ctx, a.delivery())
		return answered(resp), err
	case "get":
		job, err := jobs.GetJob(ctx, a.JobID, joboncev1.JobView_JOB_VIEW_FULL)
		return map[string]any{"deliveries": job.GetDeliveries(), "body": job.GetPayload()}, err
	case "do":
		result, err := jobs.Do(ctx, a.delivery(), fn)
		if result.Response == nil {
			return nil, err
		}
		m := map[string]any{"settled": result.Settled, "ran": result.Ran, "retry_after_seconds": result.RetryAfter.Seconds()}
		if err != nil {
			m["error"] = map[string]any{"reason": lostReason(err), "message": err.Error()}
		}
		return m, nil
	case "work":
		worker, err := client.NewWorker(jobs, client.WorkerConfig{
			Concurrency: a.Concurrency, Lease: a.lease(), Logger: slog.New(slog.DiscardHandler),
		}, fn)
		if err != nil {
			return nil, err
		}
		go func() {
			select {
			case <-t.stop:
				t.cancel()
			case <-t.ctx.Done():
			}
		}()
		return map[string]any{}, worker.Run(ctx)
	case "requeue":
		job, err := jobs.GetJob(ctx, a.JobID, joboncev1.JobView_JOB_VIEW_BASIC)
		if err != nil {
			return nil, err
		}
		resp, err := jobs.RequeueWork(ctx, requeue(job))
		return map[string]any{"changed": resp.GetChanged()}, err
	case "close":
		return map[string]any{}, jobs.Close()
	}
	return nil, fmt.Errorf("no operation %q", c.Op)
}

// describe is an error as a report has it.
func describe(err error) map[string]any {
	e := new(client.Error)
	if !errors.As(err, &e) {
		return map[string]any{"message": err.Error(), "reason": lostReason(err)}
	}
	return map[string]any{
		"code": code.Code(e.Code).String(), "reason": e.ReasonText, "field": e.Field, "request_id": e.RequestID != "",
		"outcome_unknown": e.OutcomeUnknown, "retry_after_seconds": e.RetryDelay.Seconds(), "message": e.Message,
	}
}

func lostReason(err error) string {
	if errors.Is(err, client.ErrLeaseLost) {
		return "LEASE_LOST"
	}
	return ""
}
