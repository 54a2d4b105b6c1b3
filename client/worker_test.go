package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// running is a worker under test.
type running struct {
	stop   context.CancelFunc
	result chan error
}

// startWorker runs a worker until stop or the test's end.
func startWorker(t *testing.T, c *client.Client, cfg client.WorkerConfig, fn client.WorkFunc) *running {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = testenv.Logger(t)
	}
	w, err := client.NewWorker(c, cfg, fn)
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{stop, make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.result <- w.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r
}

func jobIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("job-", i)
	}
	return ids
}

// Two workers, jobs that fail now and then, a concurrency bound: no job is ever worked on twice at a time, none is lost,
// and each job's fencing numbers grow.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 5
		s := startService(t)
		ids := jobIDs(60)
		queue(t, s.client(t), ids...)

		var mu sync.Mutex
		live := map[string]bool{}
		generation := map[string]int64{}
		left := len(ids)
		done := make(chan struct{})
		for range 2 {
			now, most := 0, 0
			startWorker(t, s.client(t), client.WorkerConfig{Concurrency: each, Lease: 3 * time.Second},
				func(ctx context.Context, w *client.Work) error {
					id := w.Job.GetJobId()
					mu.Lock()
					now++
					if most = max(most, now); most > each {
						t.Errorf("%d jobs at once", now)
					}
					if live[id] {
						t.Errorf("%s is worked on twice at a time", id)
					}
					live[id] = true
					if g := w.Lease.GetGeneration(); g <= generation[id] {
						t.Errorf("%s: generation %d after %d", id, g, generation[id])
					}
					generation[id] = w.Lease.GetGeneration()
					if w.Job.GetPayload() != "body of "+id {
						t.Errorf("%s: body %q", id, w.Job.GetPayload())
					}
					mu.Unlock()
					time.Sleep(rand.N(8 * time.Second)) // Longer than a lease, often.
					mu.Lock()
					defer mu.Unlock()
					now--
					live[id] = false
					if w.Job.GetWork().GetAttempts() < 3 && rand.N(3) == 0 {
						return errWork
					}
					if left--; left == 0 {
						if most < each {
							t.Errorf("never more than %d jobs at once", most)
						}
						close(done)
					}
					return ctx.Err()
				})
		}
		<-done
		synctest.Wait() // The last completion is still on its way.
		for _, id := range ids {
			if w := s.work(t, id); w.State != job.StateCompleted {
				t.Errorf("%s: %+v", id, w)
			}
		}
	})
}

// What a crashed holder left is done once its lease lapsed, and only the events that were asked for.
func TestWorkerPicksUpLapsedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		crashed, other := delivery("crashed"), delivery("other")
		other.Event = "job.started"
		for _, req := range []*request{crashed, other} {
			req.WorkMode = joboncev1.WorkMode_WORK_MODE_LEASED
			if _, err := c.RecordDelivery(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		done := make(chan *client.Work, 2)
		r := startWorker(t, c, client.WorkerConfig{Events: []string{"job.completed"}}, func(_ context.Context, w *client.Work) error {
			done <- w
			return w.SetResult("picked up")
		})
		w := <-done
		if took := time.Since(begin); w.Job.GetJobId() != "crashed" || took < 9*time.Second || took > 13*time.Second {
			t.Errorf("got %v after %v", w.Job, took)
		}
		time.Sleep(time.Minute)
		r.stop()
		if err := <-r.result; err != nil || len(done) > 0 {
			t.Errorf("run: %v, and %d more jobs", err, len(done))
		}
		if stored := s.work(t, "crashed"); stored.State != job.StateCompleted || stored.Result != "picked up" || stored.Attempts != 2 {
			t.Errorf("stored %+v", stored)
		}
	})
}

// A stopped worker claims nothing more and lets what runs finish.
func TestWorkerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "j")
		started := make(chan struct{})
		r := startWorker(t, c, client.WorkerConfig{}, func(ctx context.Context, _ *client.Work) error {
			close(started)
			time.Sleep(20 * time.Second)
			return ctx.Err()
		})
		<-started
		synctest.Wait() // The next claim waits for work.
		r.stop()
		synctest.Wait()
		queue(t, c, "late")
		if err := <-r.result; err != nil {
			t.Errorf("run: %v", err)
		}
		if w := s.work(t, "j"); w.State != job.StateCompleted || w.Attempts != 1 {
			t.Errorf("what ran: %+v", w)
		}
		if w := s.work(t, "late"); w.State != job.StateQueued || w.Attempts != 0 {
			t.Errorf("what came later: %+v", w)
		}
	})
}

// What takes too long is cut, and others may start it at once.
func TestWorkerCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "j")
		started := make(chan struct{})
		cfg := client.WorkerConfig{ShutdownTimeout: 5 * time.Second, Lease: 3 * time.Second}
		r := startWorker(t, c, cfg, func(ctx context.Context, _ *client.Work) error {
			close(started)
			<-ctx.Done()
			if cause := context.Cause(ctx); errors.Is(cause, client.ErrLeaseLost) {
				t.Errorf("ended by %v", cause)
			}
			time.Sleep(10 * time.Second)
			if w := s.work(t, "j"); !w.Due.After(time.Now()) {
				t.Errorf("the lease was not kept to the end: %+v", w)
			}
			return ctx.Err()
		})
		<-started
		begin := time.Now()
		r.stop()
		if err := <-r.result; err != nil {
			t.Errorf("run: %v", err)
		}
		if took := time.Since(begin); took != 15*time.Second {
			t.Errorf("stopped after %v", took)
		}
		if w := s.work(t, "j"); w.State != job.StateQueued || w.Due.After(time.Now()) || w.Attempts != 1 {
			t.Errorf("stored %+v", w)
		}
	})
}

// The worker outlasts an outage, of whatever kind.
func TestWorkerOutlastsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		done := make(chan string, 3)
		startWorker(t, c, client.WorkerConfig{}, func(_ context.Context, w *client.Work) error {
			done <- w.Job.GetJobId()
			return nil
		})
		for i, outage := range []struct{ begin, end func() }{
			{s.net.shut, s.net.open},
			{func() { s.through(refused(claimRPC, overloaded)) }, func() { s.through(nil) }},
		} {
			outage.begin()
			before := s.called(claimRPC)
			time.Sleep(10 * time.Minute)
			if n := s.called(claimRPC) - before; n > 300 {
				t.Errorf("%d claims in 10 minutes of an outage", n)
			}
			outage.end()
			id := fmt.Sprint("after outage ", i)
			queue(t, c, id)
			if got := <-done; got != id {
				t.Errorf("got %s", got)
			}
		}
	})
}

// Whatever a claim was granted whose answer was lost is asked for again, also when the service refuses claims meanwhile.
func TestWorkerRecoversClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, refusal := range map[string]error{"lost": unknown, "overloaded": overloaded, "unavailable": unavailable} {
			s := startService(t)
			c := s.client(t, client.WithoutRetry())
			queue(t, c, "j")
			var claims atomic.Int64
			s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
				if method != claimRPC {
					return handler(ctx, req)
				}
				switch claims.Add(1) {
				case 1:
					_, _ = handler(ctx, req)
					return nil, unknown
				case 2, 3:
					return nil, refusal
				}
				return handler(ctx, req)
			})
			attempts := make(chan int32, 1)
			r := startWorker(t, c, client.WorkerConfig{Lease: time.Hour}, func(_ context.Context, w *client.Work) error {
				attempts <- w.Job.GetWork().GetAttempts()
				return nil
			})
			select {
			case n := <-attempts:
				if n != 1 {
					t.Errorf("%s: attempt %d", name, n)
				}
			case <-time.After(30 * time.Minute):
				t.Errorf("%s: the lease is held by nobody", name)
			}
			r.stop()
			testenv.Must(t, <-r.result)
		}
	})
}

// An empty answer before its time does not make the worker ask in a frenzy.
func TestWorkerDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
			return &joboncev1.ClaimWorkResponse{}, nil
		})
		startWorker(t, s.client(t), client.WorkerConfig{}, never(t))
		time.Sleep(time.Minute)
		if n := s.called(claimRPC); n > 61 {
			t.Errorf("%d claims in a minute", n)
		}
	})
}

func TestWorkerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "bad", "good")
		var runs atomic.Int64
		good := make(chan struct{})
		startWorker(t, c, client.WorkerConfig{Concurrency: 1}, func(_ context.Context, w *client.Work) error {
			if w.Job.GetJobId() == "bad" {
				runs.Add(1)
				panic("oh")
			}
			close(good)
			return nil
		})
		<-good
		time.Sleep(10 * time.Minute)
		w := s.work(t, "bad")
		if w.State != job.StateDead || w.Attempts != maxAttempts || w.Error != "panic: oh" || runs.Load() != maxAttempts {
			t.Errorf("%d runs, stored %+v", runs.Load(), w)
		}
	})
}

func TestWorkerPermanent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queue(t, c, "j")
		returned := make(chan struct{})
		startWorker(t, c, client.WorkerConfig{}, func(context.Context, *client.Work) error {
			defer close(returned)
			return client.Permanent(errWork)
		})
		<-returned
		synctest.Wait()
		if w := s.work(t, "j"); w.State != job.StateDead || w.Error != errWork.Error() {
			t.Errorf("stored %+v", w)
		}
	})
}

// A worker with a prefix gets the jobs under it and no others.
func TestWorkerUnderAPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		for _, id := range []string{"bank:1", "shop:1", "shopping:1", "shop:2"} {
			req := &request{JobId: id, WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED}
			if _, err := c.RecordDelivery(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan string, 4)
		r := startWorker(t, c, client.WorkerConfig{JobIDPrefix: "shop:"}, func(_ context.Context, w *client.Work) error {
			done <- w.Job.GetJobId()
			return nil
		})
		time.Sleep(2 * time.Minute) // in the bubble
		r.stop()
		if err := <-r.result; err != nil {
			t.Error(err)
		}
		close(done)
		var ids []string
		for id := range done {
			ids = append(ids, id)
		}
		if slices.Sort(ids); !slices.Equal(ids, []string{"shop:1", "shop:2"}) {
			t.Errorf("worked on %q", ids)
		}
	})
}

// Run returns what no repetition mends, once what runs is done.
func TestWorkerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		r := startWorker(t, c, client.WorkerConfig{Events: []string{strings.Repeat("x", 129)}}, never(t))
		if err := <-r.result; !errors.Is(err, client.ErrInvalidField) {
			t.Errorf("an event that is too long: %v", err)
		}
		r = startWorker(t, c, client.WorkerConfig{JobIDPrefix: "shop"}, never(t))
		if err := <-r.result; !errors.Is(err, client.ErrInvalidField) {
			t.Errorf("a prefix without a colon: %v", err)
		}
		r = startWorker(t, c, client.WorkerConfig{}, never(t))
		synctest.Wait()
		testenv.OK(t, c.Close())
		if err := <-r.result; !errors.Is(err, client.ErrClosed) {
			t.Errorf("the client was closed: %v", err)
		}
	})
}

// The lease of work that was long waited for is renewed before the work starts: by how much it was cut short nobody knows.
func TestWorkerLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		done := make(chan struct{})
		startWorker(t, c, client.WorkerConfig{Lease: 10 * time.Second, Wait: time.Minute}, func(ctx context.Context, _ *client.Work) error {
			defer close(done)
			if s.called(renewRPC) != 1 || ctx.Err() != nil {
				t.Errorf("%d renewals, %v", s.called(renewRPC), ctx.Err())
			}
			return nil
		})
		time.Sleep(50 * time.Second)
		queue(t, c, "j")
		<-done
	})
}

func TestNewWorkerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startService(t).client(t)
		fn := never(t)
		for name, test := range map[string]struct {
			c    *client.Client
			cfg  client.WorkerConfig
			fn   client.WorkFunc
			want string
		}{
			"client":           {nil, client.WorkerConfig{}, fn, "client is nil"},
			"function":         {c, client.WorkerConfig{}, nil, "function is nil"},
			"concurrency":      {c, client.WorkerConfig{Concurrency: -1}, fn, "client: WorkerConfig.Concurrency is -1"},
			"short lease":      {c, client.WorkerConfig{Lease: time.Millisecond}, fn, "Lease"},
			"long lease":       {c, client.WorkerConfig{Lease: 25 * time.Hour}, fn, "Lease"},
			"long wait":        {c, client.WorkerConfig{Wait: 61 * time.Second}, fn, "Wait"},
			"shutdown timeout": {c, client.WorkerConfig{ShutdownTimeout: -1}, fn, "ShutdownTimeout"},
		} {
			if _, err := client.NewWorker(test.c, test.cfg, test.fn); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The limits here are the service's.
		for _, lease := range []time.Duration{job.MinLease, job.MaxLease} {
			if _, err := client.NewWorker(c, client.WorkerConfig{Lease: lease}, fn); err != nil {
				t.Error(err)
			}
			if _, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(lease), MaxJobs: job.MaxClaimJobs}); err != nil {
				t.Error(err)
			}
		}
	})
}
