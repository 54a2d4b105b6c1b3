package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// desk is the part of a client under test that speaks the protocol: it reads commands and runs each on a goroutine.
type desk struct {
	mu      sync.Mutex
	out     *json.Encoder
	running map[int]*task
	wg      sync.WaitGroup
	gone    chan struct{} // closed when the harness has gone
}

// task is a command under way.
type task struct {
	id     int
	ctx    context.Context
	cancel context.CancelFunc // the caller gives up
	stop   chan struct{}      // closed when a worker is to stop
	desk   *desk

	mu       sync.Mutex
	finished map[string]chan Finish // by job
}

// perform does what a command says, and returns the result or an error.
type perform func(t *task, c Command) (map[string]any, error)

// sit reads commands until there are no more, and waits until all have ended.
func sit(ctx context.Context, in io.Reader, out io.Writer, do perform, describe func(error) map[string]any) error {
	d := &desk{out: json.NewEncoder(out), running: make(map[int]*task), gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		close(d.gone)
		cancel()
		d.wg.Wait()
	}()
	for dec := json.NewDecoder(in); ; {
		var c Command
		if err := dec.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		d.mu.Lock()
		t := d.running[c.ID]
		d.mu.Unlock()
		switch {
		case c.Op == "finish" && t != nil:
			var f Finish
			b, _ := json.Marshal(c.Args)
			_ = json.Unmarshal(b, &f)
			t.finish(f.Job) <- f
		case c.Op == "cancel" && t != nil:
			t.cancel()
		case c.Op == "stop" && t != nil:
			close(t.stop)
		case t == nil:
			t := &task{id: c.ID, desk: d, stop: make(chan struct{}), finished: make(map[string]chan Finish)}
			t.ctx, t.cancel = context.WithCancel(ctx)
			d.mu.Lock()
			d.running[c.ID] = t
			d.mu.Unlock()
			d.wg.Go(func() {
				defer t.cancel()
				result, err := do(t, c)
				r := Report{ID: c.ID, Result: result}
				if err != nil {
					r.Result, r.Error = nil, describe(err)
				}
				d.report(r)
			})
		}
	}
}

func (d *desk) report(r Report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.out.Encode(r) // A harness that has gone needs none.
}

func (t *task) finish(jobID string) chan Finish {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished[jobID] == nil {
		t.finished[jobID] = make(chan Finish, 1)
	}
	return t.finished[jobID]
}

// work does the work of a job as the harness says. Work that is told to stop reports it, and still waits for the harness.
func (t *task) work(ctx context.Context, jobID string) Finish {
	t.desk.report(Report{ID: t.id, Event: "working", JobID: jobID})
	select {
	case f := <-t.finish(jobID):
		return f
	case <-ctx.Done():
		t.desk.report(Report{ID: t.id, Event: "stopped", JobID: jobID})
	case <-t.desk.gone:
		return Finish{Error: "the harness has gone"}
	}
	select {
	case f := <-t.finish(jobID):
		return f
	case <-t.desk.gone:
		return Finish{Error: "the harness has gone"}
	}
}

// args reads the arguments of a command.
type args struct {
	JobID          string  `json:"job_id"`
	Body           string  `json:"body"`
	Event          string  `json:"event"`
	Mode           string  `json:"mode"`
	LeaseSeconds   float64 `json:"lease_seconds"`
	TimeoutSeconds float64 `json:"timeout_seconds"`
	WaitSeconds    float64 `json:"wait_seconds"`
	Concurrency    int     `json:"concurrency"`
}

func readArgs(c Command) (a args, err error) {
	b, err := json.Marshal(c.Args)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

func (a args) lease() time.Duration { return time.Duration(a.LeaseSeconds * float64(time.Second)) }

func (a args) delivery() *joboncev1.RecordDeliveryRequest {
	req := &joboncev1.RecordDeliveryRequest{JobId: a.JobID, Event: a.Event}
	if a.Mode != "" {
		req.WorkMode = joboncev1.WorkMode(joboncev1.WorkMode_value["WORK_MODE_"+strings.ToUpper(a.Mode)])
	}
	if a.Body != "" {
		req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: a.Body}
	}
	if a.LeaseSeconds > 0 {
		req.LeaseDuration = durationpb.New(a.lease())
	}
	if a.WaitSeconds > 0 {
		req.Wait = durationpb.New(time.Duration(a.WaitSeconds * float64(time.Second)))
	}
	return req
}

// answered is the answer to a delivery as a report has it.
func answered(resp *joboncev1.RecordDeliveryResponse) map[string]any {
	return map[string]any{
		"disposition": strings.TrimPrefix(resp.GetDisposition().String(), "DISPOSITION_"), "start_work": resp.GetStartWork(),
		"deliveries": resp.GetDeliveries(), "lease": resp.GetLease().GetToken() != "", "result": resp.GetResult(),
	}
}

// requeue names a job as it was read.
func requeue(job *joboncev1.Job) *joboncev1.RequeueWorkRequest {
	return &joboncev1.RequeueWorkRequest{
		JobId: job.GetJobId(), ExpectedGeneration: job.GetWork().GetGeneration(), ExpectedFirstSeenTime: job.GetFirstSeenTime(),
		ExpectedState: job.GetWork().GetState(),
	}
}
