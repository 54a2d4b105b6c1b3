package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestPoller: jobs whose webhook is overdue are polled until they are over, and each is recorded once, whatever is lost on the way.
func TestPoller(t *testing.T) {
	for name, fault := range map[string]hook{"all is well": nil, "claims get lost": answerLost("ClaimOverdueJobs", 1), "reports get lost": answerLost("ReportPoll", 2),
		"records get lost": answerLost("RecordDelivery", 2)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				c := s.client(t)
				for _, id := range []string{"a", "b", "c", "came"} {
					_, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: id, StatusUrl: "https://p.example/" + id, OverdueAfter: durationpb.New(time.Minute)})
					testenv.Must(t, err)
				}
				_, err := c.RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "came"})
				testenv.Must(t, err)
				s.through(fault)
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex
				polls, recorded := map[string]int{}, map[string]int{}
				all := make(chan struct{})
				p, err := c.NewPoller(func(ctx context.Context, e *joboncev1.Expectation) (client.Polled, error) {
					mu.Lock()
					defer mu.Unlock()
					polls[e.GetJobId()]++
					switch n := polls[e.GetJobId()]; {
					case e.GetJobId() == "c" && n == 1:
						return client.Polled{}, errors.New(strings.Repeat("é", 2<<10) + "\xff")
					case n < 3:
						return client.Polled{After: 10 * time.Second}, nil
					}
					return client.Polled{Delivery: &joboncev1.RecordDeliveryRequest{Event: "job.completed", WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED}}, nil
				}, client.PollerConfig{Concurrency: 2, Logger: testenv.Logger(t), Recorded: func(e *joboncev1.Expectation, resp *joboncev1.RecordDeliveryResponse) {
					mu.Lock()
					defer mu.Unlock()
					if resp.GetFirstDelivery() {
						recorded[e.GetJobId()]++
					}
					if len(recorded) == 3 {
						close(all)
					}
				}})
				testenv.Must(t, err)
				done := make(chan struct{})
				go func() { defer close(done); p.Run(ctx) }()
				<-all
				time.Sleep(10 * time.Minute)
				cancel()
				<-done
				for _, id := range []string{"a", "b", "c"} {
					if polls[id] != 3 || recorded[id] != 1 {
						t.Errorf("%s: %d polls, recorded %d times", id, polls[id], recorded[id])
					}
					if j, err := c.GetJob(t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC); err != nil || j.GetSource() != "poll" || j.GetEvent() != "job.completed" {
						t.Errorf("%s: %v, %v", id, j, err)
					}
				}
				if polls["came"] > 0 {
					t.Error("a job was polled whose webhook came")
				}
				left, err := c.ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{})
				if err != nil || len(left.GetExpectations()) > 0 {
					t.Errorf("left %v, %v", left, err)
				}
			})
		})
	}
}

// TestPollerRecordsWhatIsExpected: what a poller hears is recorded only while the job is expected, and it has it: an operator may have
// cancelled the expectation, or deleted the job with it, while the provider took its time.
func TestPollerRecordsWhatIsExpected(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, c *client.Client)
		recorded  string // the source of the record in the end
		listed    int
	}{
		"nothing":   {func(*testing.T, *client.Client) {}, "poll", 0},
		"cancelled": {cancelled, "", 0},
		"came":      {came, "webhook", 0},
		"came and deleted": {func(t *testing.T, c *client.Client) {
			came(t, c)
			j, err := c.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
			testenv.Must(t, err)
			_, err = c.DeleteJob(t.Context(), &joboncev1.DeleteJobRequest{JobId: "j", ExpectedGeneration: j.GetWork().GetGeneration(), ExpectedFirstSeenTime: j.GetFirstSeenTime()})
			testenv.Must(t, err)
		}, "", 0},
		"expected anew": {func(t *testing.T, c *client.Client) {
			cancelled(t, c)
			_, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: "https://p.example/2", OverdueAfter: durationpb.New(time.Hour)})
			testenv.Must(t, err)
		}, "", 1},
		"polled by another": {func(t *testing.T, c *client.Client) {
			time.Sleep(2 * time.Minute) // the lease has ended
			resp, err := c.ClaimOverdueJobs(t.Context(), &joboncev1.ClaimOverdueJobsRequest{MaxJobs: 1, LeaseDuration: durationpb.New(time.Hour)})
			if err != nil || len(resp.GetJobs()) != 1 {
				t.Fatalf("%v, %v", resp, err)
			}
		}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				c2 := s.client(t)
				_, err := c2.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: "https://p.example/1", OverdueAfter: durationpb.New(0)})
				testenv.Must(t, err)
				asked, answer := make(chan struct{}), make(chan struct{})
				p, err := c2.NewPoller(func(context.Context, *joboncev1.Expectation) (client.Polled, error) {
					asked <- struct{}{}
					<-answer
					return client.Polled{Delivery: &joboncev1.RecordDeliveryRequest{}}, nil
				}, client.PollerConfig{Concurrency: 1, Logger: testenv.Logger(t)})
				testenv.Must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); p.Run(ctx) }()
				<-asked
				c.meanwhile(t, c2)
				close(answer)
				synctest.Wait()
				cancel()
				<-done
				j, err := c2.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
				if j.GetSource() != c.recorded || (err == nil) != (c.recorded != "") || err != nil && !errors.Is(err, client.ErrJobNotFound) {
					t.Errorf("recorded is %v, %v; want a record of %q", j, err, c.recorded)
				}
				left, err := c2.ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{})
				if err != nil || len(left.GetExpectations()) != c.listed {
					t.Errorf("expected are %v, %v; want %d", left, err, c.listed)
				}
			})
		})
	}
}

// TestPollerCannotRecord: of a job that is over and cannot be recorded people see why it waits, however often it is polled; it comes
// again as others do, and not before the record has ended, and is recorded once it can be.
func TestPollerCannotRecord(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		lo, hi time.Duration // when it comes again, counted from the report
	}{
		"as the service says":  {0, 12 * time.Second, 18 * time.Second},
		"as the provider asks": {2 * time.Hour, 2 * time.Hour, 2 * time.Hour},
		"not at once":          {time.Second, 12 * time.Second, 18 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				cl := s.client(t)
				_, err := cl.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: "https://p.example/1", OverdueAfter: durationpb.New(0)})
				testenv.Must(t, err)
				tried, ended := make(chan time.Time, 1), make(chan time.Duration, 1)
				s.through(func(ctx context.Context, m string, req any, handler grpc.UnaryHandler) (any, error) {
					if m != "RecordDelivery" {
						return handler(ctx, req)
					}
					began := time.Now()
					tried <- began
					<-ctx.Done() // the service hangs for as long as it may
					ended <- time.Since(began)
					return nil, ctx.Err()
				})
				p, err := cl.NewPoller(func(context.Context, *joboncev1.Expectation) (client.Polled, error) {
					return client.Polled{After: c.after, Delivery: &joboncev1.RecordDeliveryRequest{}}, nil
				}, client.PollerConfig{Lease: time.Hour, Logger: testenv.Logger(t)})
				testenv.Must(t, err)
				done := make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); <-done }()
				go func() { defer close(done); p.Run(ctx) }()
				reported := <-tried
				listed, err := cl.ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{})
				testenv.Must(t, err)
				e := listed.GetExpectations()[0]
				if again := e.GetDueTime().AsTime().Sub(reported).Round(time.Second); again < c.lo || again > c.hi {
					t.Errorf("comes again after %v, want %v to %v", again, c.lo, c.hi)
				}
				if !strings.Contains(e.GetLastError(), "over, and not recorded yet") {
					t.Errorf("the error is %q", e.GetLastError())
				}
				if took := <-ended; took >= 12*time.Second {
					t.Errorf("the record went on for %v", took)
				}
				s.through(nil)
				time.Sleep(3 * time.Hour)
				if j, err := cl.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC); err != nil || j.GetSource() != "poll" {
					t.Errorf("recorded is %v, %v", j, err)
				}
				if listed, err := cl.ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{}); err != nil || len(listed.GetExpectations()) > 0 {
					t.Errorf("left is %v, %v", listed, err)
				}
			})
		})
	}
}

func cancelled(t *testing.T, c *client.Client) {
	testenv.Must(t, c.CancelExpectation(t.Context(), "j"))
}

// came records what the webhook says.
func came(t *testing.T, c *client.Client) {
	_, err := c.RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j", Source: "webhook"})
	testenv.Must(t, err)
}

// TestPutOff: a job that was not asked about is reported as such and comes again, and is neither a poll nor a line in the log.
func TestPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		_, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: "a", StatusUrl: "https://p.example/a", OverdueAfter: durationpb.New(0)})
		testenv.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var heard []string
		var log bytes.Buffer
		p, err := c.NewPoller(func(_ context.Context, e *joboncev1.Expectation) (client.Polled, error) {
			if e.GetPolls() > 0 {
				t.Errorf("polled %d times", e.GetPolls())
			}
			if heard = append(heard, e.GetLastError()); len(heard) == 1 {
				return client.Polled{After: time.Minute}, fmt.Errorf("%w: p.example is busy", client.ErrPutOff)
			}
			cancel()
			return client.Polled{}, nil
		}, client.PollerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		testenv.Must(t, err)
		p.Run(ctx)
		if len(heard) != 2 || heard[1] != "put off: p.example is busy" || log.Len() > 0 {
			t.Errorf("heard %q, logged %s", heard, log.String())
		}
	})
}

// TestPutOffTurns: jobs that were put off are polled when their turns come, however long the poller would be idle.
func TestPutOffTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startService(t).client(t)
		const jobs = 10
		for i := range jobs {
			_, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: fmt.Sprint(i), StatusUrl: "https://p.example/", OverdueAfter: durationpb.New(0)})
			testenv.Must(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		turns, polled := map[string]time.Time{}, 0
		p, err := c.NewPoller(func(_ context.Context, e *joboncev1.Expectation) (client.Polled, error) {
			mu.Lock()
			defer mu.Unlock()
			if turn, put := turns[e.GetJobId()]; put {
				if late := time.Since(turn); late > 100*time.Millisecond {
					t.Errorf("%s was polled %v after its turn", e.GetJobId(), late)
				}
				if polled++; polled == jobs {
					cancel()
				}
				return client.Polled{After: time.Hour}, nil
			}
			after := time.Duration(len(turns)+1) * time.Second
			turns[e.GetJobId()] = time.Now().Add(after)
			return client.Polled{After: after}, fmt.Errorf("%w: busy", client.ErrPutOff)
		}, client.PollerConfig{Idle: time.Minute, Logger: testenv.Logger(t)})
		testenv.Must(t, err)
		p.Run(ctx)
	})
}

func TestPollerConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startService(t).client(t)
		poll := func(context.Context, *joboncev1.Expectation) (client.Polled, error) { return client.Polled{}, nil }
		for field, cfg := range map[string]client.PollerConfig{"Lease": {Lease: 2 * time.Hour}, "Idle": {Idle: -1}, "Concurrency": {Concurrency: 101}} {
			if _, err := c.NewPoller(poll, cfg); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
		if _, err := c.NewPoller(nil, client.PollerConfig{}); err == nil {
			t.Error("took no PollFunc")
		}
	})
}
