package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// TestMetrics: each job counts by how its work ended, and is under way meanwhile.
func TestMetrics(t *testing.T) {
	s := startService(t)
	m := NewMetrics(prometheus.NewRegistry())
	ends := make(chan client.WorkOutcome, 100)
	for _, outcome := range []client.WorkOutcome{client.WorkDone, client.WorkDead, client.WorkFailed, client.WorkGivenBack, client.WorkLost} {
		if n := testutil.ToFloat64(m.jobs.WithLabelValues(string(outcome))); n != 0 {
			t.Errorf("%s begins at %v", outcome, n)
		}
		s.queue(&joboncev1.RecordDeliveryRequest{JobId: string(outcome)})
	}
	again := map[client.WorkOutcome]bool{}
	fn := m.Watch(func(ctx context.Context, w *client.Work) error {
		if n := testutil.ToFloat64(m.underWay); n != 1 {
			t.Errorf("%v jobs are under way, want 1", n)
		}
		outcome := client.WorkOutcome(w.Job.GetJobId())
		if again[outcome] {
			return nil
		}
		again[outcome] = true
		switch outcome {
		case client.WorkDead:
			return client.Permanent(errors.New("no use"))
		case client.WorkFailed:
			return errors.New("not now")
		case client.WorkGivenBack:
			return client.NotStarted(errors.New("not begun"))
		case client.WorkLost:
			_, err := s.RequeueWork(ctx, &joboncev1.RequeueWorkRequest{
				JobId: w.Job.GetJobId(), ExpectedGeneration: w.Lease.GetGeneration(), ExpectedFirstSeenTime: w.Job.GetFirstSeenTime(), Force: true,
			})
			if err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	stop := s.work(client.WorkerConfig{Concurrency: 1, Lease: time.Second, Backoff: func(int) time.Duration { return time.Hour }, Ended: func(outcome client.WorkOutcome, took time.Duration) {
		m.Ended(outcome, took)
		ends <- outcome
	}}, fn)
	seen := map[client.WorkOutcome]int{}
	for seen[client.WorkDone] < 3 { // those that were given back, and lost, are done the second time
		seen[<-ends]++
	}
	stop()
	for _, outcome := range []client.WorkOutcome{client.WorkDead, client.WorkFailed, client.WorkGivenBack, client.WorkLost} {
		if got := testutil.ToFloat64(m.jobs.WithLabelValues(string(outcome))); got != 1 {
			t.Errorf("%s: %v, want 1", outcome, got)
		}
	}
	if n := testutil.ToFloat64(m.underWay); n != 0 {
		t.Errorf("%v jobs are under way at the end", n)
	}
}
