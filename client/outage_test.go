package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// What all work needs is away for an hour: a few jobs go out to find that out, no job loses more than an attempt, and all is
// done soon after it is back. The service grants 4 leases for a job.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		ids := jobIDs(40)
		queue(t, s.client(t), ids...)
		var back atomic.Bool
		var tried, left atomic.Int64
		left.Store(int64(len(ids)))
		var log testenv.Tail
		done := make(chan struct{})
		startWorker(t, s.client(t), client.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))},
			func(context.Context, *client.Work) error {
				n := tried.Add(1)
				time.Sleep(10 * time.Millisecond)
				if !back.Load() && n == 20 {
					return fmt.Errorf("stopped: %w", client.ErrLeaseLost) // It says nothing about what the work needs.
				}
				if !back.Load() {
					return client.Unavailable(errors.New("connection refused"))
				}
				if left.Add(-1) == 0 {
					close(done)
				}
				return nil
			})
		time.Sleep(time.Hour)
		if n := tried.Load(); n < 60 || n > 300 {
			t.Errorf("the function was called %d times in an hour", n)
		}
		back.Store(true)
		began := time.Now()
		<-done
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the work was done %v after the outage", took)
		}
		synctest.Wait()
		counted := 0
		for _, id := range ids {
			w := s.work(t, id)
			if w.State != job.StateCompleted || w.Attempts > 3 {
				t.Errorf("%s: %+v", id, w)
			}
			counted += int(w.Attempts) - 1
		}
		if counted > 3 {
			t.Errorf("%d attempts were counted that the outage spoiled", counted)
		}
		for text, want := range map[string]int{"is away; claiming pauses": 1, "is back; claiming goes on": 1, "work failed": counted} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, &log)
			}
		}
	})
}

// TestOutageOrPoison: one job that always finds what it needs away is no outage, whether it is alone or among others, and dies.
func TestOutageOrPoison(t *testing.T) {
	for _, others := range []int{0, 30} {
		t.Run(fmt.Sprint(others, " others"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				c := s.client(t)
				queue(t, c, "poison")
				queue(t, c, jobIDs(others)...)
				startWorker(t, c, client.WorkerConfig{Concurrency: 2}, func(_ context.Context, w *client.Work) error {
					if w.Job.GetJobId() == "poison" {
						return client.Unavailable(errors.New("502 Bad Gateway"))
					}
					return nil
				})
				time.Sleep(10 * time.Minute)
				if w := s.work(t, "poison"); w.State != job.StateDead || w.Attempts != maxAttempts || w.Error != "502 Bad Gateway" {
					t.Errorf("%+v", w)
				}
				for _, id := range jobIDs(others) {
					if w := s.work(t, id); w.State != job.StateCompleted {
						t.Errorf("%s: %+v", id, w)
					}
				}
			})
		})
	}
}

// TestMarkedErrors: what an error says beside that the work failed.
func TestMarkedErrors(t *testing.T) {
	cause := errors.New("the cause")
	for name, tc := range map[string]struct {
		err      error
		attempts int32
		after    time.Duration // when it is tried again
	}{
		"an error":             {cause, 1, 2 * time.Second},
		"later":                {client.RetryIn(cause, time.Minute), 1, time.Minute},
		"sooner":               {client.RetryIn(cause, time.Millisecond), 1, 2 * time.Second},
		"not started":          {client.NotStarted(cause), 0, 0},
		"unavailable, once":    {client.Unavailable(client.RetryIn(cause, time.Minute)), 1, time.Minute},
		"not started, by Join": {errors.Join(cause, client.NotStarted(cause)), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if !errors.Is(tc.err, cause) {
					t.Errorf("%v does not match its cause", tc.err)
				}
				s := startService(t)
				c := s.client(t)
				queue(t, c, "j")
				again := make(chan *client.Work)
				startWorker(t, c, client.WorkerConfig{}, func(_ context.Context, w *client.Work) error {
					if w.Job.GetWork().GetAttempts() > 1 || w.Job.GetWork().GetLastError() != "" {
						again <- w
						return nil
					}
					if tc.attempts == 0 && s.called(claimRPC) > 1 {
						again <- w
						return nil
					}
					return tc.err
				})
				began := time.Now()
				w := <-again
				if got := w.Job.GetWork().GetAttempts() - 1; got != tc.attempts {
					t.Errorf("%d attempts were counted, want %d", got, tc.attempts)
				}
				if took := time.Since(began); took < tc.after || took > tc.after+time.Second {
					t.Errorf("tried again after %v, want %v", took, tc.after)
				}
			})
		})
	}
	for _, mark := range []func(error) error{client.NotStarted, client.Unavailable, client.Permanent,
		func(err error) error { return client.RetryIn(err, time.Second) }} {
		if err := mark(nil); err != nil {
			t.Errorf("nil became %v", err)
		}
	}
}

// shy is an error whose text is not for the log.
type shy struct{}

func (shy) Error() string { return "it failed: secret" }

func (shy) LogValue() slog.Value { return slog.StringValue("it failed") }

// TestWorkerLogs: a service that cannot be reached is said once, and so is that it is back. What an error hides is stored, and not
// logged.
func TestWorkerLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		s.net.shut()
		c := s.client(t)
		var log testenv.Tail
		ran := make(chan struct{})
		startWorker(t, c, client.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))},
			func(context.Context, *client.Work) error {
				close(ran)
				return client.Permanent(shy{})
			})
		time.Sleep(time.Hour)
		s.net.open()
		queue(t, c, "j")
		<-ran
		synctest.Wait()
		if w := s.work(t, "j"); w.Error != "it failed: secret" {
			t.Errorf("%+v", w)
		}
		for text, want := range map[string]int{
			"level=WARN": 1, "work cannot be claimed": 1, "work can be claimed again": 1, `error="it failed"`: 1, "secret": 0,
		} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, &log)
			}
		}
	})
}
