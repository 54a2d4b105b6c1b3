package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

var errWork = errors.New("downstream is away")

// never is work that must not start.
func never(t *testing.T) client.WorkFunc {
	return func(context.Context, *client.Work) error {
		t.Error("the work was started")
		return nil
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		req := delivery("j")
		before := proto.CloneOf(req)
		result, err := c.Do(t.Context(), req, func(_ context.Context, w *client.Work) error {
			if w.Job.GetJobId() != "j" || w.Job.GetEvent() != "job.completed" || w.Job.GetPayload() != "body of j" {
				t.Errorf("works on %v", w.Job)
			}
			if stored := s.work(t, "j"); stored.State != job.StateLeased || stored.Generation != w.Lease.GetGeneration() {
				t.Errorf("generation %d, stored %+v", w.Lease.GetGeneration(), stored)
			}
			return w.SetResult("shipped")
		})
		if err != nil || !result.Settled || !result.Ran || result.RetryAfter != 0 ||
			result.Response.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST {
			t.Errorf("got %+v, %v", result, err)
		}
		if !proto.Equal(req, before) {
			t.Errorf("the request became %v", req)
		}
		result, err = c.Do(t.Context(), req, never(t))
		if err != nil || !result.Settled || result.Ran || result.Response.GetResult() != "shipped" {
			t.Errorf("the second delivery got %+v, %v", result, err)
		}
	})
}

// Bodies of bytes come back too, and a request_id of the caller's is kept.
func TestDoBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		req := &request{JobId: "j", RequestId: "mine", Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("\xff")}}
		_, err := s.client(t).Do(t.Context(), req, func(_ context.Context, w *client.Work) error {
			if string(w.Job.GetPayloadBytes()) != "\xff" || s.work(t, "j").RequestID != "mine" {
				t.Errorf("works on %v, stored %+v", w.Job, s.work(t, "j"))
			}
			return nil
		})
		testenv.OK(t, err)
	})
}

func TestDoKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		result, err := c.Do(t.Context(), delivery("j"), func(ctx context.Context, _ *client.Work) error {
			for range 60 {
				time.Sleep(time.Second)
				other, err := c.Do(ctx, delivery("j"), never(t))
				if err != nil || other.Settled || other.Ran ||
					other.Response.GetDisposition() != joboncev1.Disposition_DISPOSITION_IN_PROGRESS ||
					other.RetryAfter < time.Second || other.RetryAfter > 10*time.Second || other.RetryAfter%time.Second != 0 {
					t.Errorf("another delivery got %+v, %v", other, err)
				}
			}
			return ctx.Err()
		})
		if err != nil || !result.Settled || s.work(t, "j").Attempts != 1 {
			t.Errorf("got %+v, %v, stored %+v", result, err, s.work(t, "j"))
		}
		// A renewal at every third of the lease.
		if n := s.called(renewRPC); n < 16 || n > 20 {
			t.Errorf("%d renewals in a minute of a lease of 10 s", n)
		}
	})
}

// TestRetryAfter: the next delivery is asked for when the work is likely done, not when the lease ends.
func TestRetryAfter(t *testing.T) {
	for known, want := range map[time.Duration]time.Duration{
		0: time.Second, 500 * time.Millisecond: time.Second, 4100 * time.Millisecond: 5 * time.Second, 20 * time.Second: 20 * time.Second,
		50 * time.Second: 10 * time.Second, // The lease ends then, and its holder may be gone.
	} {
		t.Run(known.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startService(t).client(t)
				req := delivery("j")
				req.WorkMode, req.LeaseDuration = joboncev1.WorkMode_WORK_MODE_LEASED, durationpb.New(time.Minute)
				if _, err := c.RecordDelivery(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				time.Sleep(known)
				if result, err := c.Do(t.Context(), delivery("j"), never(t)); err != nil || result.RetryAfter != want {
					t.Errorf("got %+v, %v; want a retry after %v", result, err, want)
				}
			})
		})
	}
}

// The stored event is worked on, and the fencing number grows.
func TestDoReclaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		var generations []int64
		fail := func(_ context.Context, w *client.Work) error {
			generations = append(generations, w.Lease.GetGeneration())
			if w.Job.GetPayload() != "body of j" {
				t.Errorf("works on %q", w.Job.GetPayload())
			}
			return errWork
		}
		req := delivery("j")
		for attempt := 1; attempt <= maxAttempts; attempt++ {
			delay := time.Second << attempt
			result, err := c.Do(t.Context(), req, fail)
			if !errors.Is(err, errWork) || result.Settled || !result.Ran || result.RetryAfter != delay {
				t.Errorf("attempt %d got %+v, %v", attempt, result, err)
			}
			stored := s.work(t, "j")
			if stored.State != job.StateQueued || int(stored.Attempts) != attempt || stored.Error != errWork.Error() {
				t.Errorf("after attempt %d: %+v", attempt, stored)
			}
			// Whoever comes back too early is told when to.
			result, err = c.Do(t.Context(), req, never(t))
			if err != nil || result.Settled || result.RetryAfter != delay ||
				result.Response.GetDisposition() != joboncev1.Disposition_DISPOSITION_PENDING {
				t.Errorf("too early: %+v, %v", result, err)
			}
			time.Sleep(result.RetryAfter)
			req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: "not the first body"}
		}
		result, err := c.Do(t.Context(), req, never(t))
		if err != nil || !result.Settled || result.Response.GetDisposition() != joboncev1.Disposition_DISPOSITION_DEAD {
			t.Errorf("past all attempts: %+v, %v", result, err)
		}
		for i := 1; i < len(generations); i++ {
			if generations[i] <= generations[i-1] {
				t.Errorf("fencing numbers %v", generations)
			}
		}
	})
}

func TestDoBackoff(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		1500 * time.Millisecond: 1500 * time.Millisecond, -time.Second: 0, 1000 * time.Hour: 24 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := startService(t)
			start := time.Now()
			_, err := s.client(t).Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error { return errWork },
				client.WithBackoff(func(attempts int) time.Duration {
					if attempts != 1 {
						t.Errorf("asked for attempt %d", attempts)
					}
					return given
				}))
			if !errors.Is(err, errWork) {
				t.Errorf("got %v", err)
			}
			if delay := s.work(t, "j").Due.Sub(start.Truncate(time.Millisecond)); delay != want {
				t.Errorf("backoff %v became %v, want %v", given, delay, want)
			}
		})
	}
	for attempts, want := range map[int]time.Duration{
		-1: time.Second, 1: 2 * time.Second, 3: 8 * time.Second, 11: 2048 * time.Second, 12: time.Hour, 1 << 30: time.Hour,
	} {
		if got := client.DefaultBackoff(attempts); got != want {
			t.Errorf("DefaultBackoff(%d) is %v, want %v", attempts, got, want)
		}
	}
}

func TestDoPermanent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		result, err := s.client(t).Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error {
			return client.Permanent(errWork)
		})
		if !errors.Is(err, errWork) || !result.Settled || s.work(t, "j").State != job.StateDead {
			t.Errorf("got %+v, %v, stored %+v", result, err, s.work(t, "j"))
		}
	})
	if client.Permanent(nil) != nil {
		t.Error("no error became one")
	}
}

// Whoever asked for the work is gone by the time it ends.
func TestDoWithoutItsCaller(t *testing.T) {
	for name, failure := range map[string]error{"done": nil, "failed": errWork} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				ctx, cancel := context.WithCancel(t.Context())
				result, err := s.client(t).Do(ctx, delivery("j"), func(ctx context.Context, _ *client.Work) error {
					cancel()
					<-ctx.Done()
					if cause := context.Cause(ctx); cause != context.Canceled {
						t.Errorf("ended by %v", cause)
					}
					time.Sleep(time.Minute)
					if w := s.work(t, "j"); !w.Due.After(time.Now()) {
						t.Errorf("the lease was not kept meanwhile: %+v", w)
					}
					return failure
				})
				stored := s.work(t, "j")
				if failure == nil && (err != nil || !result.Settled || stored.State != job.StateCompleted) {
					t.Errorf("got %+v, %v, stored %+v", result, err, stored)
				}
				// The work is free at once.
				if failure != nil && (!errors.Is(err, errWork) || stored.State != job.StateQueued || stored.Due.After(time.Now())) {
					t.Errorf("got %+v, %v, stored %+v", result, err, stored)
				}
			})
		})
	}
}

func TestDoPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		func() {
			defer func() {
				if p := recover(); p != "oh" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = c.Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error { panic("oh") })
			t.Error("no panic")
		}()
		if stored := s.work(t, "j"); stored.State != job.StateQueued || stored.Error != "the work panicked" || !stored.Due.After(time.Now()) {
			t.Errorf("stored %+v", stored)
		}
	})
}

// The service keeps what it can of an error: 4 KiB of UTF-8.
func TestDoLongError(t *testing.T) {
	for name, text := range map[string]string{
		"fits": strings.Repeat("x", 4<<10), "long": strings.Repeat("x", 4<<10+1), "long rune at the cut": strings.Repeat("x", 4<<10-1) + "ü",
		"not text": "a\xffb", "not text at the cut": strings.Repeat("x", 4<<10-2) + "\xff", "long run of runes": strings.Repeat("日", 2000),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				_, err := s.client(t).Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error { return errors.New(text) })
				if err == nil || err.Error() != text {
					t.Errorf("got %v", err)
				}
				stored := s.work(t, "j").Error
				valid := strings.ToValidUTF8(text, "\uFFFD")
				if !strings.HasPrefix(valid, stored) || len(stored) < min(len(valid), 4<<10-2) {
					t.Errorf("stored %q", stored)
				}
			})
		})
	}
}

func TestSetResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		longest := strings.Repeat("x", 64<<10)
		result, err := s.client(t).Do(t.Context(), delivery("j"), func(_ context.Context, w *client.Work) error {
			testenv.OK(t, w.SetResult(longest))
			for _, bad := range []string{longest + "x", "\xff"} {
				if err := w.SetResult(bad); !errors.Is(err, client.ErrInvalidField) {
					t.Errorf("a result of %d bytes: %v", len(bad), err)
				}
			}
			return nil
		})
		if err != nil || !result.Settled || s.work(t, "j").Result != longest {
			t.Errorf("got %v, stored a result of %d bytes", err, len(s.work(t, "j").Result))
		}
	})
}

func TestDoRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		queued := delivery("j")
		queued.WorkMode = joboncev1.WorkMode_WORK_MODE_QUEUED
		for name, test := range map[string]struct {
			req  *request
			fn   client.WorkFunc
			opt  client.DoOption
			want error
		}{
			"no request":   {nil, never(t), nil, client.ErrInvalidField},
			"queued":       {queued, never(t), nil, client.ErrInvalidField},
			"no job_id":    {&request{}, never(t), nil, client.ErrInvalidField},
			"no function":  {delivery("j"), nil, nil, nil},
			"no backoff":   {delivery("j"), never(t), client.WithBackoff(nil), nil},
			"not in UTF-8": {&request{JobId: "\xff"}, never(t), nil, client.ErrInvalidField},
		} {
			var opts []client.DoOption
			if test.opt != nil {
				opts = append(opts, test.opt)
			}
			result, err := c.Do(t.Context(), test.req, test.fn, opts...)
			if err == nil || test.want != nil && !errors.Is(err, test.want) || result.Settled || result.RetryAfter != time.Second {
				t.Errorf("%s: %+v, %v", name, result, err)
			}
		}
	})
}

// A request_id that was used without a lease before: there is nothing to hold.
func TestDoWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j", RequestId: "r"}); err != nil {
			t.Fatal(err)
		}
		result, err := c.Do(t.Context(), &request{JobId: "j", RequestId: "r"}, never(t))
		if err == nil || result.Settled || result.Ran {
			t.Errorf("got %+v, %v", result, err)
		}
		result, err = c.Do(t.Context(), &request{JobId: "j"}, never(t))
		if err != nil || !result.Settled {
			t.Errorf("a job without tracking: %+v, %v", result, err)
		}
	})
}

// A disposition of a newer service is no reason to stop the deliveries.
func TestDoUnknownDisposition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, &fake{record: func(context.Context, *request) (*response, error) {
			return &response{Disposition: 99, Job: &joboncev1.Job{JobId: "j"}}, nil
		}})
		result, err := c.Do(t.Context(), delivery("j"), never(t))
		if err != nil || result.Settled || result.RetryAfter != time.Second {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

func TestDoNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		s.through(func(context.Context, string, any, grpc.UnaryHandler) (any, error) {
			return nil, failure(codes.ResourceExhausted, "OVERLOADED", "full", "", 90*time.Second)
		})
		result, err := s.client(t).Do(t.Context(), delivery("j"), never(t))
		if !errors.Is(err, client.ErrOverloaded) || result.Settled || result.RetryAfter != 90*time.Second {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

// TestWait: a delivery waits at the service for work that is somebody else's, on top of the client's timeout, and in a call of its
// own, however many go out at once.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t, client.WithTimeout(2*time.Second))
		const n = 30
		release, began := make(chan struct{}), make(chan struct{})
		go func() {
			_, err := c.Do(t.Context(), delivery("j"), func(context.Context, *client.Work) error {
				close(began)
				<-release
				return errWork
			})
			if !errors.Is(err, errWork) {
				t.Errorf("got %v", err)
			}
		}()
		<-began
		before := s.called("BatchRecordDeliveries")
		var ran atomic.Int64
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				result, err := c.Do(t.Context(), delivery("j"), func(_ context.Context, w *client.Work) error {
					ran.Add(1)
					return w.SetResult("done")
				}, client.WithWait(30*time.Second))
				if err != nil || !result.Settled {
					t.Errorf("got %+v, %v", result, err)
				}
			})
		}
		time.Sleep(10 * time.Second) // longer than the timeout
		close(release)
		all.Wait()
		if ran.Load() != 1 || s.called("BatchRecordDeliveries") != before {
			t.Errorf("the work was done %d times, and %d deliveries shared calls", ran.Load(), s.called("BatchRecordDeliveries")-before)
		}
		result, err := c.Do(t.Context(), delivery("k"), func(context.Context, *client.Work) error { return nil }, client.WithWait(2*time.Minute))
		if !errors.Is(err, client.ErrInvalidField) || result.Ran {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}
