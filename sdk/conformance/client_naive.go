package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// naiveClient is what somebody writes around the generated code in an hour: each attempt is a call of its own with a request_id
// of its own, the error's text says whether to try again, leases are not renewed, and who has worked believes to be done. The
// scenarios say which of them it fails, so that they are known to find such mistakes.
func naiveClient(ctx context.Context, in io.Reader, out io.Writer) error {
	n := &naiveDriver{conns: make(map[string]*grpc.ClientConn)}
	return sit(ctx, in, out, n.perform, describeNaively)
}

type naiveDriver struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func (n *naiveDriver) conn(target string) (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[target] == nil {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		n.conns[target] = conn
	}
	return n.conns[target], nil
}

// retry makes a call up to five times.
func retry(ctx context.Context, call func(ctx context.Context) error) (err error) {
	for range 5 {
		once, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = call(once)
		cancel()
		if err == nil {
			return nil
		}
		text := strings.ToLower(err.Error())
		if !strings.Contains(text, "unavailable") && !strings.Contains(text, "try again") {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (n *naiveDriver) perform(t *task, c Command) (map[string]any, error) {
	conn, err := n.conn(c.Target)
	if err != nil {
		return nil, err
	}
	jobs, work := joboncev1.NewIdempotencyServiceClient(conn), joboncev1.NewWorkServiceClient(conn)
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
	req := a.delivery()
	record := func() (resp *joboncev1.RecordDeliveryResponse, err error) {
		err = retry(ctx, func(ctx context.Context) (err error) {
			req.RequestId = rand.Text()
			resp, err = jobs.RecordDelivery(ctx, req)
			return err
		})
		return resp, err
	}
	end := func(jobID, token string) error {
		f := t.work(ctx, jobID)
		return retry(ctx, func(ctx context.Context) (err error) {
			if f.Error != "" {
				_, err = work.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{
					JobId: jobID, LeaseToken: token, Error: f.Error, Dead: f.Permanent,
				})
				return err
			}
			_, err = work.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: jobID, LeaseToken: token, Result: f.Result})
			return err
		})
	}
	switch c.Op {
	case "record":
		resp, err := record()
		return answered(resp), err
	case "get":
		var job *joboncev1.Job
		err := retry(ctx, func(ctx context.Context) error {
			resp, err := jobs.GetJob(ctx, &joboncev1.GetJobRequest{JobId: a.JobID, View: joboncev1.JobView_JOB_VIEW_FULL})
			job = resp.GetJob()
			return err
		})
		return map[string]any{"deliveries": job.GetDeliveries(), "body": job.GetPayload()}, err
	case "do":
		req.WorkMode = joboncev1.WorkMode_WORK_MODE_LEASED
		resp, err := record()
		if err != nil {
			return nil, err
		}
		started := resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_FIRST
		if started {
			_ = end(a.JobID, resp.GetLease().GetToken())
		}
		return map[string]any{"settled": true, "ran": started, "retry_after_seconds": 0}, nil
	case "work":
		for {
			select {
			case <-t.stop:
				return map[string]any{}, nil
			case <-time.After(50 * time.Millisecond):
			}
			var resp *joboncev1.ClaimWorkResponse
			err := retry(ctx, func(ctx context.Context) (err error) {
				resp, err = work.ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(a.lease()), RequestId: rand.Text()})
				return err
			})
			if err != nil {
				return nil, err
			}
			for _, claimed := range resp.GetJobs() {
				t.desk.wg.Go(func() { _ = end(claimed.GetJob().GetJobId(), claimed.GetLease().GetToken()) })
			}
		}
	case "requeue":
		var resp *joboncev1.RequeueWorkResponse
		err := retry(ctx, func(ctx context.Context) error {
			read, err := jobs.GetJob(ctx, &joboncev1.GetJobRequest{JobId: a.JobID})
			if err == nil {
				resp, err = joboncev1.NewAdminServiceClient(conn).RequeueWork(ctx, requeue(read.GetJob()))
			}
			return err
		})
		return map[string]any{"changed": resp.GetChanged()}, err
	case "close":
		return map[string]any{}, conn.Close()
	}
	return nil, fmt.Errorf("no operation %q", c.Op)
}

// describeNaively reports an error. Whose reason it is the naive client does not ask, and what failed was not written.
func describeNaively(err error) map[string]any {
	st := status.Convert(err)
	report := map[string]any{"code": code.Code(st.Code()).String(), "reason": "", "outcome_unknown": false}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			report["reason"] = d.GetReason()
		case *errdetails.BadRequest:
			report["field"] = d.GetFieldViolations()[0].GetField()
		case *errdetails.RetryInfo:
			report["retry_after_seconds"] = d.GetRetryDelay().AsDuration().Seconds()
		}
	}
	return report
}
