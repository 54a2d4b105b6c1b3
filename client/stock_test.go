package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// queueMany is queue for many jobs.
func queueMany(t *testing.T, c *client.Client, ids []string) {
	t.Helper()
	reqs := make([]*request, len(ids))
	for i, id := range ids {
		reqs[i] = delivery(id)
		reqs[i].WorkMode, reqs[i].LeaseDuration = joboncev1.WorkMode_WORK_MODE_QUEUED, nil
	}
	for len(reqs) > 0 {
		n := min(len(reqs), 256)
		results, err := c.BatchRecordDeliveries(t.Context(), reqs[:n])
		testenv.Must(t, err)
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		reqs = reqs[n:]
	}
}

// TestRestartsCostNoAttempts: however often a worker is restarted, a job has as many attempts as functions were started.
func TestRestartsCostNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs, restarts = 1000, 50
		s := startService(t)
		c := s.client(t)
		ids := jobIDs(jobs)
		queueMany(t, c, ids)
		var started atomic.Int64
		for range restarts {
			stopAt, reached := started.Load()+1+rand.Int64N(2*jobs/restarts-1), make(chan struct{})
			r := startWorker(t, c, client.WorkerConfig{Lease: 10 * time.Second}, func(context.Context, *client.Work) error {
				if started.Add(1) == stopAt {
					close(reached)
				}
				time.Sleep(rand.N(20 * time.Millisecond))
				return nil
			})
			select {
			case <-reached:
			case <-time.After(time.Second): // all is done
			}
			r.stop()
			testenv.OK(t, <-r.result)
		}
		attempts, completed := int64(0), int64(0)
		for _, id := range ids {
			w := s.work(t, id)
			attempts += int64(w.Attempts)
			switch w.State {
			case job.StateCompleted:
				completed++
			case job.StateQueued:
			default:
				t.Errorf("%s is %v", id, w.State)
			}
		}
		if attempts != started.Load() || completed != started.Load() {
			t.Errorf("%d functions started, %d attempts, %d jobs completed", started.Load(), attempts, completed)
		}
	})
}

// TestWorkerGivesBackWhatWaits: jobs that were claimed ahead are given back when they cannot be started soon, and at once
// when the worker stops.
func TestWorkerGivesBackWhatWaits(t *testing.T) {
	for name, stops := range map[string]bool{"slow": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lease = 8 * time.Second
				s := startService(t)
				c := s.client(t)
				waiting := jobIDs(20)
				var quick []string
				for i := range 50 {
					quick = append(quick, fmt.Sprint("quick-", i))
				}
				queueMany(t, c, append(append(quick, "slow"), waiting...))
				slow := make(chan struct{})
				r := startWorker(t, c, client.WorkerConfig{Concurrency: 1, Lease: lease}, func(_ context.Context, w *client.Work) error {
					if w.Job.GetJobId() == "slow" {
						close(slow)
						time.Sleep(3 * lease)
					}
					time.Sleep(10 * time.Millisecond)
					return nil
				})
				<-slow
				synctest.Wait() // The claims under way are answered.
				ahead := 0
				for _, id := range waiting {
					if s.work(t, id).State == job.StateLeased {
						ahead++
					}
				}
				if ahead < len(waiting)/2 {
					t.Errorf("%d jobs were claimed ahead", ahead)
				}
				if stops {
					r.stop()
					synctest.Wait()
				} else {
					time.Sleep(lease/4 + time.Second)
				}
				for _, id := range waiting {
					if w := s.work(t, id); w.State != job.StateQueued || w.Attempts != 0 || w.Due.After(time.Now()) {
						t.Errorf("%s: %+v", id, w)
					}
				}
				claims := s.called(claimRPC)
				time.Sleep(lease)
				if n := s.called(claimRPC) - claims; n > 0 {
					t.Errorf("%d claims while there was no place", n)
				}
				if w := s.work(t, "slow"); w.State != job.StateLeased || w.Attempts != 1 {
					t.Errorf("the slow job: %+v", w)
				}
			})
		})
	}
}

// TestClaimCutShort: what a claim was granted whose answer nobody got is given back when the worker stops.
func TestClaimCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, jobIDs(5)...)
		granted := make(chan struct{})
		var answered atomic.Bool
		s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if method == claimRPC && answered.CompareAndSwap(false, true) {
				close(granted)
				<-ctx.Done()
			}
			return resp, err
		})
		r := startWorker(t, c, client.WorkerConfig{}, never(t))
		<-granted
		r.stop()
		testenv.OK(t, <-r.result)
		for _, id := range jobIDs(5) {
			if w := s.work(t, id); w.State != job.StateQueued || w.Attempts != 0 {
				t.Errorf("%s: %+v", id, w)
			}
		}
	})
}

// TestIdleWorkerWaitsAtTheService: a worker that was busy asks seldom once there is nothing to do.
func TestIdleWorkerWaitsAtTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queueMany(t, c, jobIDs(200))
		startWorker(t, c, client.WorkerConfig{}, func(context.Context, *client.Work) error { return nil })
		time.Sleep(3 * time.Second)
		claims := s.called(claimRPC)
		time.Sleep(5 * time.Minute)
		if n := s.called(claimRPC) - claims; n > 11 {
			t.Errorf("%d claims in 5 minutes", n)
		}
	})
}
