package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// claimAll queues jobs and claims them, each under a lease of a minute.
func claimAll(t *testing.T, c *client.Client, ids ...string) []*joboncev1.ClaimedJob {
	t.Helper()
	queue(t, c, ids...)
	resp, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 100, LeaseDuration: durationpb.New(time.Minute)})
	if err != nil || len(resp.GetJobs()) != len(ids) {
		t.Fatalf("claimed %v, %v", resp, err)
	}
	return resp.GetJobs()
}

func completion(w *joboncev1.ClaimedJob) *joboncev1.CompleteWorkRequest {
	return &joboncev1.CompleteWorkRequest{JobId: w.GetJob().GetJobId(), LeaseToken: w.GetLease().GetToken(), Result: w.GetJob().GetJobId()}
}

// holdCompletions has CompleteWork calls wait until let is closed.
func holdCompletions(s *service) (let chan struct{}) {
	let = make(chan struct{})
	s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
		if method == completeRPC {
			<-let
		}
		return handler(ctx, req)
	})
	return let
}

// TestChangesShareCalls: what comes while calls are under way goes out together, and what fails of it is one caller's.
func TestChangesShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		work := claimAll(t, c, jobIDs(20)...)
		let := holdCompletions(s)
		work[11].Lease.Token = "lost"
		errs := make([]error, len(work))
		var all sync.WaitGroup
		for i, w := range work {
			all.Go(func() {
				if i%2 == 0 {
					errs[i] = c.CompleteWork(t.Context(), completion(w))
				} else {
					errs[i] = c.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{
						JobId: w.GetJob().GetJobId(), LeaseToken: w.GetLease().GetToken(), NotStarted: true,
					})
				}
			})
			if i%2 == 0 {
				synctest.Wait() // The first that are under way are completions.
			}
			if i == 0 && s.called(completeRPC) != 1 {
				t.Error("a lone call does not go out at once")
			}
		}
		synctest.Wait()
		close(let)
		all.Wait()
		for i, w := range work {
			stored := s.work(t, w.GetJob().GetJobId())
			switch {
			case i == 11:
				if !errors.Is(errs[i], client.ErrLeaseLost) || stored.State != job.StateLeased {
					t.Errorf("the lost one got %v, and is %+v", errs[i], stored)
				}
			case errs[i] != nil,
				i%2 == 0 && (stored.State != job.StateCompleted || stored.Result != w.GetJob().GetJobId()),
				i%2 == 1 && (stored.State != job.StateQueued || stored.Attempts != 0):
				t.Errorf("%d got %v, and is %+v", i, errs[i], stored)
			}
		}
		if alone, together := s.called(completeRPC)+s.called(releaseRPC), s.called(changesRPC); alone > 7 || together == 0 {
			t.Errorf("%d calls of their own, %d for several", alone, together)
		}
	})
}

// TestRenewalsPassCompletions: a service that takes its time with results holds up no renewal.
func TestRenewalsPassCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		work := claimAll(t, c, jobIDs(20)...)
		let := holdCompletions(s)
		var all sync.WaitGroup
		for _, w := range work[1:] {
			all.Go(func() {
				testenv.OK(t, c.CompleteWork(t.Context(), completion(w)))
			})
		}
		synctest.Wait()
		began := time.Now()
		lease, err := c.RenewLease(t.Context(), &joboncev1.RenewLeaseRequest{
			JobId: work[0].GetJob().GetJobId(), LeaseToken: work[0].GetLease().GetToken(), LeaseDuration: durationpb.New(time.Hour),
		})
		if err != nil || lease.GetRemaining().AsDuration() < 59*time.Minute || time.Since(began) > 0 {
			t.Errorf("renewed after %v: %v, %v", time.Since(began), lease, err)
		}
		close(let)
		all.Wait()
	})
}

// TestServiceWithoutSharedChanges: a service of before BatchChangeLeases is not asked for it again and again.
func TestServiceWithoutSharedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		for _, ids := range [][]string{jobIDs(20), {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}} {
			work := claimAll(t, c, ids...)
			let := make(chan struct{})
			s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
				if <-let; method == changesRPC {
					return nil, status.Error(codes.Unimplemented, "unknown method BatchChangeLeases")
				}
				return handler(ctx, req)
			})
			var all sync.WaitGroup
			for _, w := range work {
				all.Go(func() {
					testenv.OK(t, c.CompleteWork(t.Context(), completion(w)))
				})
			}
			synctest.Wait()
			close(let)
			all.Wait()
			s.through(nil)
		}
		if n := s.called(changesRPC); n == 0 || n > 4 {
			t.Errorf("asked %d times", n)
		}
	})
}
