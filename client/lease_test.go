package client_test

import (
	"context"
	"errors"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// takeOver gives the work to somebody else, behind the holder's back.
func takeOver(t *testing.T, s *service, w *client.Work) job.Claimed {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	testenv.Must(t, job.GiveBack(ctx, s.store, w.Job.GetJobId(), w.Lease.GetToken(), job.Release{}))
	claimed, err := s.store.Claim(ctx, job.ClaimRequest{RequestID: "other", Max: 1, Lease: time.Hour})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %v, %v", claimed, err)
	}
	return claimed[0]
}

func TestLeaseLost(t *testing.T) {
	for name, failure := range map[string]error{"done": nil, "failed": errWork} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				var other job.Claimed
				result, err := s.client(t).Do(t.Context(), delivery("j"), func(ctx context.Context, w *client.Work) error {
					other = takeOver(t, s, w)
					lost := time.Now()
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, client.ErrLeaseLost) {
						t.Errorf("ended by %v", cause)
					}
					if took := time.Since(lost); took > 5*time.Second {
						t.Errorf("it was noticed after %v of a lease of 10 s", took)
					}
					if other.Lease.Generation <= w.Lease.GetGeneration() {
						t.Errorf("generation %d after %d", other.Lease.Generation, w.Lease.GetGeneration())
					}
					return failure
				})
				if !errors.Is(err, client.ErrLeaseLost) || failure != nil && !errors.Is(err, failure) || result.Settled || !result.Ran {
					t.Errorf("got %+v, %v", result, err)
				}
				if stored := s.work(t, "j"); stored.Token != other.Lease.Token || stored.State != job.StateLeased {
					t.Errorf("the other's work was touched: %+v", stored)
				}
				if n := s.called(completeRPC) + s.called(releaseRPC); n > 0 {
					t.Errorf("%d calls for a lease that is known to be lost", n)
				}
			})
		})
	}
}

// Only completing it shows that the lease is gone.
func TestLeaseLostAtTheEnd(t *testing.T) {
	for name, failure := range map[string]error{"done": nil, "failed": errWork, "permanent": client.Permanent(errWork)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				result, err := s.client(t).Do(t.Context(), delivery("j"), func(ctx context.Context, w *client.Work) error {
					takeOver(t, s, w)
					return failure
				})
				if !errors.Is(err, client.ErrLeaseLost) || failure != nil && !errors.Is(err, failure) || result.Settled {
					t.Errorf("got %+v, %v", result, err)
				}
			})
		})
	}
}

func TestJobDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		s.through(refused(renewRPC, failure(codes.NotFound, "JOB_NOT_FOUND", "no such job", "", 0)))
		result, err := s.client(t).Do(t.Context(), delivery("j"), func(ctx context.Context, _ *client.Work) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, client.ErrLeaseLost) || !errors.Is(err, client.ErrJobNotFound) || result.Settled {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

// No renewal gets through: the work ends before anybody else can start it. The token still holds when the service can be
// reached again.
func TestLeaseRunsOut(t *testing.T) {
	outages := map[string]struct{ begin, end func(*service) }{
		"no connection": {func(s *service) { s.net.shut() }, func(s *service) { s.net.open() }},
		"no answers": {func(s *service) { s.net.lose() }, func(s *service) {
			s.net.cut() // As keepalive does in the end.
		}},
		"refused": {func(s *service) { s.through(refused(renewRPC, failure(codes.Internal, "INTERNAL", "sorry", "", 0))) },
			func(s *service) { s.through(nil) }},
	}
	for name, outage := range outages {
		for returned, failure := range map[string]error{"done": nil, "failed": errWork} {
			t.Run(name+"/"+returned, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := startService(t)
					result, err := s.client(t).Do(t.Context(), delivery("j"), func(ctx context.Context, w *client.Work) error {
						outage.begin(s)
						began := time.Now()
						<-ctx.Done()
						if cause := context.Cause(ctx); !errors.Is(cause, client.ErrLeaseLost) {
							t.Errorf("ended by %v", cause)
						}
						if took := time.Since(began); took > 10*time.Second || took < 9*time.Second {
							t.Errorf("ended after %v of a lease of 10 s", took)
						}
						if w.Lease.GetExpireTime().AsTime().After(time.Now().Add(30 * time.Millisecond)) { // The service tells a little less, for its clock.
							t.Errorf("the lease given at first runs until %v, it is %v", w.Lease.GetExpireTime().AsTime(), time.Now())
						}
						outage.end(s)
						return failure
					})
					stored := s.work(t, "j")
					if failure == nil && (err != nil || !result.Settled || stored.State != job.StateCompleted) {
						t.Errorf("got %+v, %v, stored %+v", result, err, stored)
					}
					if failure != nil && (!errors.Is(err, failure) || stored.State != job.StateQueued || stored.Error != errWork.Error()) {
						t.Errorf("got %+v, %v, stored %+v", result, err, stored)
					}
				})
			})
		}
	}
}

// An outage that is shorter than the lease goes unnoticed, and so does a call that hangs.
func TestLeaseOutlastsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		result, err := s.client(t).Do(t.Context(), delivery("j"), func(ctx context.Context, _ *client.Work) error {
			s.net.shut()
			time.Sleep(6 * time.Second)
			s.net.open()
			time.Sleep(10 * time.Second)
			var hung atomic.Bool
			s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
				if method == renewRPC && hung.CompareAndSwap(false, true) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return handler(ctx, req)
			})
			time.Sleep(20 * time.Second)
			if !hung.Load() {
				t.Error("no call hung")
			}
			return context.Cause(ctx)
		})
		if err != nil || !result.Settled || s.work(t, "j").Attempts != 1 {
			t.Errorf("got %+v, %v, stored %+v", result, err, s.work(t, "j"))
		}
	})
}

// Whichever answer gets lost, the work runs once under one lease.
func TestDoLostAnswers(t *testing.T) {
	for _, method := range []string{recordRPC, renewRPC, completeRPC} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				s.through(answerLost(method, 2))
				runs := 0
				result, err := s.client(t).Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error {
					runs++
					time.Sleep(15 * time.Second)
					return nil
				})
				stored := s.work(t, "j")
				if err != nil || !result.Settled || runs != 1 || stored.Attempts != 1 || stored.State != job.StateCompleted {
					t.Errorf("got %+v, %v after %d runs, stored %+v", result, err, runs, stored)
				}
				if s.called(method) < 3 {
					t.Errorf("%d calls", s.called(method))
				}
			})
		})
	}
}

// The answer comes when most of the lease is over: it is renewed before the work starts.
func TestSlowAnswer(t *testing.T) {
	for name, takenOver := range map[string]bool{"still free": false, "taken over": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
					resp, err := handler(ctx, req)
					if method == recordRPC {
						time.Sleep(11 * time.Second)
						if takenOver {
							if _, err := s.store.Claim(ctx, job.ClaimRequest{RequestID: "other", Max: 1, Lease: time.Hour}); err != nil {
								t.Error(err)
							}
						}
					}
					return resp, err
				})
				fn := func(context.Context, *client.Work) error {
					if due := s.work(t, "j").Due; time.Until(due) < 9*time.Second {
						t.Errorf("started with a lease until %v, it is %v", due, time.Now())
					}
					return nil
				}
				if takenOver {
					fn = never(t)
				}
				result, err := s.client(t, client.WithTimeout(time.Minute)).Do(t.Context(), delivery("j"), fn)
				if errors.Is(err, client.ErrLeaseLost) != takenOver || result.Settled == takenOver || result.Ran == takenOver {
					t.Errorf("got %+v, %v", result, err)
				}
			})
		})
	}
}

// The work is done, and the service cannot be told.
func TestCompletionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		s.through(refused(completeRPC, unavailable))
		start := time.Now()
		result, err := c.Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error { return nil })
		if !errors.Is(err, client.ErrStoreUnavailable) || errors.Is(err, client.ErrLeaseLost) || result.Settled || !result.Ran {
			t.Errorf("got %+v, %v", result, err)
		}
		if took := time.Since(start); took > client.DefaultTimeout || s.called(completeRPC) < 3 {
			t.Errorf("given up after %v and %d calls", took, s.called(completeRPC))
		}
		// A later delivery starts the work again.
		s.through(nil)
		time.Sleep(10 * time.Second)
		if result, err = c.Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error { return nil }); err != nil || !result.Settled {
			t.Errorf("then %+v, %v", result, err)
		}
	})
}

// Once the client is closed no renewal gets through, and the work ends with its lease.
func TestCloseDuringWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		_, err := c.Do(t.Context(), delivery("j"), func(ctx context.Context, _ *client.Work) error {
			testenv.OK(t, c.Close())
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, client.ErrLeaseLost) || !errors.Is(err, client.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRenewalsAreSpread: leases that were granted at once are not renewed at once, and each well before its end.
func TestRenewalsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs, lease = 10, 30 * time.Second
		s := startService(t)
		c := s.client(t)
		var mu sync.Mutex
		var drawn int
		c.SpreadBy(func() float64 {
			mu.Lock()
			defer mu.Unlock()
			drawn++
			return float64(drawn%jobs) / jobs
		})
		var renewals []time.Time
		s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
			if method == renewRPC {
				mu.Lock()
				renewals = append(renewals, time.Now())
				mu.Unlock()
			}
			return handler(ctx, req)
		})
		queue(t, c, jobIDs(jobs)...)
		granted := time.Now()
		startWorker(t, c, client.WorkerConfig{Concurrency: jobs, Lease: lease}, func(context.Context, *client.Work) error {
			time.Sleep(lease / 2)
			return nil
		})
		time.Sleep(lease)
		mu.Lock()
		defer mu.Unlock()
		if len(renewals) < jobs {
			t.Fatalf("%d renewals", len(renewals))
		}
		for i, at := range renewals {
			if after := at.Sub(granted); after < lease/5 || after >= lease/2 {
				t.Errorf("a renewal %v after a lease of %v was granted", after, lease)
			}
			if i > 0 && at.Sub(renewals[i-1]) < 200*time.Millisecond {
				t.Errorf("renewals after %v and %v", renewals[i-1].Sub(granted), at.Sub(granted))
			}
		}
	})
}

// TestUnstartedLeaseIsGivenBack: work that was granted and cannot be started is free at once, not when the lease ends.
func TestUnstartedLeaseIsGivenBack(t *testing.T) {
	// slow has the answer to a delivery come when little is left of its lease, so that it is renewed first.
	slow := func(method string) {
		if method == recordRPC {
			time.Sleep(8 * time.Second)
		}
	}
	for name, test := range map[string]struct {
		before func(ctx context.Context, method string, leave context.CancelFunc) error // an error is the call's
		answer func(method string, leave context.CancelFunc)
		want   error
	}{
		"the caller leaves during the renewal": {
			before: func(ctx context.Context, method string, leave context.CancelFunc) error {
				if method == renewRPC {
					leave()
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			},
			answer: func(method string, _ context.CancelFunc) { slow(method) }, want: context.Canceled,
		},
		"the renewal is refused": {
			before: func(_ context.Context, method string, _ context.CancelFunc) error {
				if method == renewRPC {
					return failure(codes.Internal, "INTERNAL", "sorry", "", 0)
				}
				return nil
			},
			answer: func(method string, _ context.CancelFunc) { slow(method) }, want: client.ErrInternal,
		},
		"the caller left when the answer came": {
			answer: func(method string, leave context.CancelFunc) {
				if method == recordRPC {
					leave()
				}
			},
			want: context.Canceled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if test.before != nil {
					s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
						if err := test.before(ctx, method, leave); err != nil {
							return nil, err
						}
						return handler(ctx, req)
					})
				}
				answered := func(
					ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
				) error {
					err := invoke(ctx, method, req, reply, cc, opts...)
					test.answer(path.Base(method), leave)
					return err
				}
				c := s.client(t, client.WithTimeout(time.Minute), client.WithDialOptions(grpc.WithUnaryInterceptor(answered)))
				begin := time.Now()
				result, err := c.Do(ctx, delivery("j"), never(t))
				if !errors.Is(err, test.want) || result.Settled || result.Ran || result.RetryAfter != time.Second {
					t.Errorf("got %+v, %v", result, err)
				}
				if took := time.Since(begin); took > 9*time.Second {
					t.Errorf("took %v", took)
				}
				stored := s.work(t, "j")
				if stored.State != job.StateQueued || stored.Due.After(time.Now()) {
					t.Errorf("stored %+v", stored)
				}
			})
		})
	}
}
