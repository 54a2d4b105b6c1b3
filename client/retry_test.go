package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// script is a record function that fails with errs, one after the other, then answers FIRST; the last error is repeated
// for ever when forever is set. It notes what it was asked and when.
type script struct {
	errs    []error
	forever bool

	mu    sync.Mutex
	ids   []string
	times []time.Time
}

func (s *script) record(_ context.Context, req *request) (*response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.ids)
	s.ids = append(s.ids, req.GetRequestId())
	s.times = append(s.times, time.Now())
	if n >= len(s.errs) && s.forever {
		n = len(s.errs) - 1
	}
	if n < len(s.errs) {
		return nil, s.errs[n]
	}
	return &response{Disposition: joboncev1.Disposition_DISPOSITION_FIRST, StartWork: true}, nil
}

func TestRetriesWithOneRequestID(t *testing.T) {
	for name, err := range map[string]error{
		"overloaded":               overloaded,
		"rate limited":             failure(codes.ResourceExhausted, "RATE_LIMITED", "slow down", "", time.Second),
		"store unavailable":        unavailable,
		"outcome unknown":          unknown,
		"server's deadline":        failure(codes.DeadlineExceeded, "OUTCOME_UNKNOWN", "cut short", "", 0),
		"server's cancellation":    failure(codes.Canceled, "OUTCOME_UNKNOWN", "cut short", "", 0),
		"transport":                status.Error(codes.Unavailable, "connection reset"),
		"proxy's deadline":         status.Error(codes.DeadlineExceeded, "upstream timeout"),
		"unknown reason, code yes": failure(codes.Unavailable, "REASON_OF_2040", "no idea", "", 0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{errs: []error{err, err, err}}
				c, _ := start(t, &fake{record: s.record})
				for range 2 {
					resp, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
					if err != nil || !resp.GetStartWork() {
						t.Fatalf("got %v, %v", resp, err)
					}
				}
				first, second := s.ids[:4], s.ids[4:]
				for _, id := range first {
					if id == "" || id != first[0] {
						t.Errorf("the attempts' request ids: %q", first)
					}
				}
				if len(second) != 1 || second[0] == first[0] {
					t.Errorf("the second call's request ids: %q, the first's: %q", second, first[0])
				}
			})
		})
	}
}

func TestDoesNotRetry(t *testing.T) {
	for name, err := range map[string]error{
		"invalid":                   failure(codes.InvalidArgument, "INVALID_FIELD", "bad", "job_id", 0),
		"unauthenticated":           failure(codes.Unauthenticated, "UNAUTHENTICATED", "no", "", 0),
		"internal":                  failure(codes.Internal, "INTERNAL", "sorry", "", 0),
		"lease lost":                failure(codes.Aborted, "LEASE_LOST", "gone", "", 0),
		"unimplemented":             failure(codes.Unimplemented, "UNIMPLEMENTED", "later", "", 0),
		"message too large":         status.Error(codes.ResourceExhausted, "received message larger than max"),
		"not ours":                  status.Error(codes.Unknown, "a proxy's"),
		"reason beats the code":     failure(codes.Unavailable, "WRONG_STATE", "no", "", 0),
		"unknown reason, code no":   failure(codes.ResourceExhausted, "REASON_OF_2040", "no idea", "", time.Second),
		"proxy refuses credentials": status.Error(codes.PermissionDenied, "403"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{errs: []error{err}}
				c, _ := start(t, &fake{record: s.record})
				_, got := c.RecordDelivery(t.Context(), &request{JobId: "j"})
				if status.Code(got) != status.Code(err) || len(s.ids) != 1 {
					t.Errorf("got %v after %d attempts", got, len(s.ids))
				}
			})
		})
	}
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{errs: []error{overloaded, overloaded, unavailable, unavailable, unavailable, unavailable}}
		policy := client.RetryPolicy{BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second}
		c, _ := start(t, &fake{record: s.record}, client.WithRetry(policy))
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil {
			t.Fatal(err)
		}
		// The mean of the client's own delay doubles up to the maximum; what the service asks comes on top.
		asked := []time.Duration{700, 700, 0, 0, 0, 0}
		mean := []time.Duration{100, 200, 400, 800, 1000, 1000}
		for i := range asked {
			delay := s.times[i+1].Sub(s.times[i])
			low := asked[i]*time.Millisecond + mean[i]*time.Millisecond/2
			high := asked[i]*time.Millisecond + mean[i]*time.Millisecond*3/2
			if delay < low || delay > high+1 {
				t.Errorf("delay %d is %v, want %v to %v", i+1, delay, low, high)
			}
		}
	})
}

func TestGivingUp(t *testing.T) {
	hours := failure(codes.ResourceExhausted, "OVERLOADED", "the queue is full", "", time.Hour)
	for name, test := range map[string]struct {
		err       error
		policy    client.RetryPolicy
		timeout   time.Duration
		attempts  int
		took      time.Duration // At most.
		bydefault bool          // No deadline of the caller's.
		deadline  bool          // The deadline ended it.
	}{
		"deadline before the retry":         {err: hours, timeout: time.Minute, attempts: 1, deadline: true},
		"default timeout before the retry":  {err: hours, bydefault: true, attempts: 1, deadline: true},
		"attempts":                          {err: overloaded, policy: client.RetryPolicy{MaxAttempts: 3}, timeout: time.Minute, attempts: 3, took: 2 * time.Second},
		"elapsed":                           {err: overloaded, policy: client.RetryPolicy{MaxElapsed: time.Second}, timeout: time.Minute, attempts: 2, took: time.Second},
		"retries as long as the time lasts": {err: overloaded, policy: client.RetryPolicy{MaxDelay: 50 * time.Millisecond}, timeout: 3100 * time.Millisecond, attempts: 5, took: 3100 * time.Millisecond, deadline: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{errs: []error{test.err}, forever: true}
				c, _ := start(t, &fake{record: s.record}, client.WithRetry(test.policy))
				ctx := t.Context()
				if !test.bydefault {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.timeout)
					defer cancel()
				}
				start := time.Now()
				_, err := c.RecordDelivery(ctx, &request{JobId: "j"})
				if !errors.Is(err, client.ErrOverloaded) || status.Code(err) != codes.ResourceExhausted {
					t.Errorf("got %v, want the service's error", err)
				}
				if errors.Is(err, context.DeadlineExceeded) != test.deadline {
					t.Errorf("got %v, matches the deadline: %v", err, !test.deadline)
				}
				if took := time.Since(start); took > test.took || len(s.ids) != test.attempts {
					t.Errorf("%d attempts in %v, want %d in at most %v", len(s.ids), took, test.attempts, test.took)
				}
			})
		})
	}
}

// The context ends while the service is at work: what went before says more, if there was anything.
func TestContextEndsDuringAttempt(t *testing.T) {
	for name, test := range map[string]struct {
		before error
		opts   []client.Option
		want   codes.Code
	}{
		"first attempt":  {want: codes.DeadlineExceeded},
		"only attempt":   {opts: []client.Option{client.WithoutRetry()}, want: codes.DeadlineExceeded},
		"second attempt": {before: overloaded, want: codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				c, _ := start(t, &fake{record: func(ctx context.Context, _ *request) (*response, error) {
					if calls++; calls == 1 && test.before != nil {
						return nil, test.before
					}
					<-ctx.Done()
					return nil, ctx.Err()
				}}, test.opts...)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := c.RecordDelivery(ctx, &request{JobId: "j"})
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrOutcomeUnknown) || status.Code(err) != test.want {
					t.Errorf("got %v, want code %v", err, test.want)
				}
			})
		})
	}
}

func TestContextEndsDuringWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{errs: []error{failure(codes.ResourceExhausted, "OVERLOADED", "full", "", time.Hour)}, forever: true}
		c, _ := start(t, &fake{record: s.record}, client.WithTimeout(0))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.RecordDelivery(ctx, &request{JobId: "j"})
			ended <- err
		}()
		synctest.Wait() // The call waits for its second attempt.
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, client.ErrOverloaded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCloseEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{errs: []error{failure(codes.ResourceExhausted, "OVERLOADED", "full", "", time.Hour)}, forever: true}
		c, _ := start(t, &fake{record: s.record}, client.WithTimeout(0))
		ended := make(chan error, 1)
		go func() {
			_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
			ended <- err
		}()
		synctest.Wait() // The call waits for its second attempt.
		testenv.OK(t, c.Close())
		if err := <-ended; !errors.Is(err, client.ErrClosed) || !errors.Is(err, client.ErrOverloaded) {
			t.Errorf("the waiting call got %v", err)
		}
		if _, err := c.GetJob(t.Context(), "j", 0); !errors.Is(err, client.ErrClosed) {
			t.Errorf("a call after Close got %v", err)
		}
	})
}
