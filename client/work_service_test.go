package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// claimOne claims the one job that is due.
func claimOne(t *testing.T, c *client.Client) *joboncev1.ClaimedJob {
	t.Helper()
	resp, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(time.Minute)})
	if err != nil || len(resp.GetJobs()) != 1 {
		t.Fatalf("claimed %v, %v", resp, err)
	}
	return resp.GetJobs()[0]
}

// A claim whose answer got lost is recovered: every attempt has the same request_id.
func TestClaimLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "a", "b", "c")
		var mu sync.Mutex
		var ids []string
		lost := answerLost(claimRPC, 2)
		s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(*joboncev1.ClaimWorkRequest); ok {
				mu.Lock()
				ids = append(ids, r.GetRequestId())
				mu.Unlock()
			}
			return lost(ctx, method, req, handler)
		})
		req := &joboncev1.ClaimWorkRequest{MaxJobs: 2, LeaseDuration: durationpb.New(time.Minute)}
		before := proto.CloneOf(req)
		resp, err := c.ClaimWork(t.Context(), req)
		if err != nil || len(resp.GetJobs()) != 2 || resp.GetJobs()[0].GetJob().GetPayload() != "body of a" {
			t.Errorf("claimed %v, %v", resp, err)
		}
		if !proto.Equal(req, before) {
			t.Errorf("the request became %v", req)
		}
		if last := claimOne(t, c); last.GetJob().GetJobId() != "c" {
			t.Errorf("the next claim got %v", last)
		}
		if len(ids) != 4 || ids[0] == "" || ids[1] != ids[0] || ids[2] != ids[0] || ids[3] == ids[0] {
			t.Errorf("request ids %q", ids)
		}
		for _, id := range []string{"a", "b", "c"} {
			if n := s.work(t, id).Attempts; n != 1 {
				t.Errorf("%s: %d attempts", id, n)
			}
		}
	})
}

// The wait does not count against the client's timeout, and an error names the request to repeat.
func TestClaimWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t, client.WithTimeout(2*time.Second))
		req := &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(time.Minute), Wait: durationpb.New(30 * time.Second)}
		start := time.Now()
		resp, err := c.ClaimWork(t.Context(), req)
		if took := time.Since(start); err != nil || len(resp.GetJobs()) != 0 || took < 29*time.Second || took > 31*time.Second {
			t.Errorf("got %v, %v after %v", resp, err, took)
		}
		time.AfterFunc(20*time.Second, func() { queue(t, c, "j") })
		start = time.Now()
		resp, err = c.ClaimWork(t.Context(), req)
		if took := time.Since(start); err != nil || len(resp.GetJobs()) != 1 || took != 20*time.Second {
			t.Errorf("got %v, %v after %v", resp, err, took)
		}
		s.through(refused(claimRPC, unavailable))
		_, err = c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{RequestId: "mine", LeaseDuration: durationpb.New(time.Minute)})
		failed := (*client.Error)(nil)
		if !errors.Is(err, client.ErrStoreUnavailable) || !errors.As(err, &failed) || failed.RequestID != "mine" {
			t.Errorf("got %v", err)
		}
	})
}

// Every operation with a token may be repeated, so lost answers do no harm.
func TestTokenOperationsLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "j")
		first := claimOne(t, c)
		time.Sleep(time.Second)

		s.through(answerLost(renewRPC, 2))
		lease, err := c.RenewLease(t.Context(), &joboncev1.RenewLeaseRequest{
			JobId: "j", LeaseToken: first.GetLease().GetToken(), LeaseDuration: durationpb.New(2 * time.Minute),
		})
		if err != nil || lease.GetToken() != first.GetLease().GetToken() || lease.GetGeneration() != first.GetLease().GetGeneration() ||
			lease.GetRemaining().AsDuration() < 119*time.Second {
			t.Errorf("renewed %v, %v, was %v", lease, err, first)
		}

		s.through(answerLost(releaseRPC, 2))
		release := &joboncev1.ReleaseWorkRequest{
			JobId: "j", LeaseToken: lease.GetToken(), RetryDelay: durationpb.New(time.Second), Error: "not now",
		}
		if err := c.ReleaseWork(t.Context(), release); err != nil || s.work(t, "j").State != job.StateQueued {
			t.Errorf("released: %v, stored %+v", err, s.work(t, "j"))
		}
		time.Sleep(time.Second)
		second := claimOne(t, c)
		if second.GetLease().GetGeneration() <= lease.GetGeneration() || second.GetJob().GetWork().GetLastError() != "not now" {
			t.Errorf("claimed %v after %v", second, lease)
		}
		if err := c.ReleaseWork(t.Context(), release); !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("the old token: %v", err)
		}

		s.through(answerLost(completeRPC, 2))
		complete := &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: second.GetLease().GetToken(), Result: "done"}
		if err := c.CompleteWork(t.Context(), complete); err != nil || s.work(t, "j").Result != "done" {
			t.Errorf("completed: %v, stored %+v", err, s.work(t, "j"))
		}
		complete.LeaseToken = lease.GetToken()
		if err := c.CompleteWork(t.Context(), complete); !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("the old token: %v", err)
		}
		complete.JobId = "nobody"
		if err := c.CompleteWork(t.Context(), complete); !errors.Is(err, client.ErrJobNotFound) {
			t.Errorf("no such job: %v", err)
		}
	})
}

// What cannot be sent is refused as the service would, with the field's name.
func TestWorkRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		ctx := t.Context()
		claim := func(req *joboncev1.ClaimWorkRequest) error {
			_, err := c.ClaimWork(ctx, req)
			return err
		}
		renew := func(req *joboncev1.RenewLeaseRequest) error {
			_, err := c.RenewLease(ctx, req)
			return err
		}
		const bad = "\xff"
		minute := durationpb.New(time.Minute)
		for name, test := range map[string]struct {
			err   error
			field string
		}{
			"no claim":        {claim(nil), ""},
			"no lease":        {claim(&joboncev1.ClaimWorkRequest{}), "lease_duration"},
			"job_id_prefix":   {claim(&joboncev1.ClaimWorkRequest{LeaseDuration: minute, JobIdPrefix: bad}), "job_id_prefix"},
			"event":           {claim(&joboncev1.ClaimWorkRequest{LeaseDuration: minute, Events: []string{"e", bad}}), "events[1]"},
			"worker_id":       {claim(&joboncev1.ClaimWorkRequest{LeaseDuration: minute, WorkerId: bad}), "worker_id"},
			"request_id":      {claim(&joboncev1.ClaimWorkRequest{LeaseDuration: minute, RequestId: bad}), "request_id"},
			"no renewal":      {renew(nil), "job_id"},
			"renewal's job":   {renew(&joboncev1.RenewLeaseRequest{JobId: bad}), "job_id"},
			"renewal's token": {renew(&joboncev1.RenewLeaseRequest{JobId: "j", LeaseToken: bad}), "lease_token"},
			"no completion":   {c.CompleteWork(ctx, nil), "job_id"},
			"result":          {c.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: "t", Result: bad}), "result"},
			"no release":      {c.ReleaseWork(ctx, nil), "job_id"},
			"error":           {c.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t", Error: bad}), "error"},
		} {
			failed := (*client.Error)(nil)
			if !errors.Is(test.err, client.ErrInvalidField) || !errors.As(test.err, &failed) || failed.Field != test.field {
				t.Errorf("%s: %v, want the field %q", name, test.err, test.field)
			}
		}
	})
}
