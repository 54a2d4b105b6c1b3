package failuretest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/retention"
	"github.com/jobonce/jobonce/internal/testenv"
)

// together runs n callers, all released at once, and waits for them.
func together(n int, f func(i int)) {
	start := make(chan struct{})
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	running.Wait()
}

// race has n callers deliver the same job at once, and returns their answers.
func race(t *testing.T, n int, call func(i int) (*joboncev1.RecordDeliveryResponse, error)) (starters, others []*joboncev1.RecordDeliveryResponse) {
	t.Helper()
	responses := make([]*joboncev1.RecordDeliveryResponse, n)
	together(n, func(i int) {
		resp, err := call(i)
		testenv.OK(t, err)
		responses[i] = resp
	})
	if t.Failed() {
		t.FailNow()
	}
	for _, r := range responses {
		if r.GetStartWork() {
			starters = append(starters, r)
		} else {
			others = append(others, r)
		}
	}
	return starters, others
}

// TestFailure3TwoFirstsAtOnce: many deliveries of one job at the same moment, on MongoDB through two instances.
func TestFailure3TwoFirstsAtOnce(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		const callers, jobs = 12, 15
		clients := []*client.Client{w.client(), w.client()}
		if w.open != nil {
			clients[1] = newClient(t, w.serve(w.open()))
		}
		for n := range jobs {
			mode := []joboncev1.WorkMode{leasedMode, untrackedMode, queuedMode}[n%3]
			id := fmt.Sprintf("job-%d", n)
			starters, others := race(t, callers, func(i int) (*joboncev1.RecordDeliveryResponse, error) {
				return clients[i%2].RecordDelivery(t.Context(), in(mode, completed(id)))
			})
			words, state, first := "DUPLICATE", joboncev1.WorkState_WORK_STATE_UNTRACKED, starters
			switch mode {
			case leasedMode:
				words, state = "IN_PROGRESS", joboncev1.WorkState_WORK_STATE_LEASED
			case queuedMode:
				words, state = "PENDING", joboncev1.WorkState_WORK_STATE_QUEUED
				if len(starters) > 0 {
					t.Errorf("%s: queued work is started by %v", id, starters)
				}
				for i, r := range others {
					if r.GetFirstDelivery() {
						first, others = append(first, r), append(others[:i:i], others[i+1:]...)
						break
					}
				}
			}
			if len(first) != 1 || first[0].GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || !first[0].GetFirstDelivery() {
				t.Fatalf("%s: first are %v", id, first)
			}
			for _, r := range others {
				want(t, r, words)
				if end := r.GetHolderExpireTime(); mode == leasedMode && (end == nil || !end.AsTime().Equal(first[0].GetLease().GetExpireTime().AsTime())) {
					t.Errorf("%s: the holder's lease ends at %v, and the others are told %v", id, first[0].GetLease().GetExpireTime(), end)
				}
			}
			wantState(t, stored(t, clients[0], id), state, callers)
		}
	})
}

// TestFailure4OtherPayload: the job is delivered again with another body.
func TestFailure4OtherPayload(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		for mode, words := range map[joboncev1.WorkMode]string{
			untrackedMode: "DUPLICATE conflict PAYLOAD", leasedMode: "IN_PROGRESS conflict PAYLOAD", queuedMode: "PENDING conflict PAYLOAD",
		} {
			id := mode.String()
			record(t, c, in(mode, completed(id)))
			for range 2 {
				other := in(mode, completed(id))
				other.GetBody().(*joboncev1.RecordDeliveryRequest_Payload).Payload = `{"job_id":"` + id + `","total":7}`
				want(t, record(t, c, other), words)
			}
			j := stored(t, c, id)
			if j.GetPayload() != completed(id).GetPayload() || j.GetConflicts() != 2 || j.GetDeliveries() != 3 ||
				j.GetLastConflict().GetKind() != joboncev1.ConflictKind_CONFLICT_KIND_PAYLOAD {
				t.Errorf("stored is %v", j)
			}
		}
	})
}

// TestFailure5LateRedelivery: a delivery comes a year later, when retention may have dropped the payload.
func TestFailure5LateRedelivery(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		record(t, c, completed("untracked"))
		l := record(t, c, leased(completed("leased"))).GetLease()
		testenv.Must(t, complete(t, c, "leased", l, "done"))
		l = record(t, c, leased(completed("dead"))).GetLease()
		err := c.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{JobId: "dead", LeaseToken: l.GetToken(), Dead: true})
		testenv.Must(t, err)
		jobs := map[string]string{"untracked": "DUPLICATE", "leased": "COMPLETED", "dead": "DEAD"}
		for round := range 2 {
			w.clock.Advance(365 * 24 * time.Hour)
			if round == 1 {
				const days = 180 * 24 * time.Hour
				keeper := retention.New(retention.Config{Policy: retention.Policy{Payload: days, Dead: days}, Now: w.clock.Now, Logger: testenv.Logger(t)}, w.store)
				if r, err := keeper.Pass(t.Context()); err != nil || r.Payloads != len(jobs) || r.Jobs != 0 {
					t.Errorf("retention: %+v, %v", r, err)
				}
			}
			for id, words := range jobs {
				again := completed(id)
				if id != "untracked" {
					again = leased(again)
				}
				want(t, record(t, c, again), words)
				again.GetBody().(*joboncev1.RecordDeliveryRequest_Payload).Payload += " "
				want(t, record(t, c, again), words+" conflict PAYLOAD")
				j := stored(t, c, id)
				if dropped := j.GetPayloadDroppedTime() != nil; dropped != (round == 1) || dropped != (j.GetBody() == nil) {
					t.Errorf("round %d: stored is %v", round, j)
				}
			}
		}
	})
}

// TestFailure7NoWebhook: a webhook does not come in time; the job is found overdue, is polled until it is over, and is recorded
// once. And what a poller learns about a job races with the webhook that comes after all.
func TestFailure7NoWebhook(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		expectAndPoll(t, w, c)
		sources := []string{"webhook", "poll"}
		won := map[string]int{}
		for n := range 20 {
			id := fmt.Sprintf("job-%d", n)
			starters, others := race(t, len(sources), func(i int) (*joboncev1.RecordDeliveryResponse, error) {
				req := leased(completed(id))
				if req.Source = sources[i]; req.Source == "poll" { // a status page says the same in other words
					req.Body = &joboncev1.RecordDeliveryRequest_Payload{
						Payload: `{"state":"finished","job_id":"` + id + `","event":"job.completed","status":"OK"}`,
					}
				}
				return c.RecordDelivery(t.Context(), req)
			})
			if len(starters) != 1 {
				t.Fatalf("%s was started %d times", id, len(starters))
			}
			want(t, starters[0], "FIRST start first lease")
			want(t, others[0], "IN_PROGRESS")
			won[starters[0].GetJob().GetSource()]++
			wantState(t, stored(t, c, id), joboncev1.WorkState_WORK_STATE_LEASED, 2)
		}
		t.Logf("who came first: %v", won)
	})
}

// expectAndPoll expects webhooks of which one comes in time, one never, and one after it was polled.
func expectAndPoll(t *testing.T, w *world, c *client.Client) {
	for _, id := range []string{"in time", "never", "late"} {
		_, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: id, StatusUrl: "https://provider.example/jobs", OverdueAfter: durationpb.New(time.Minute)})
		testenv.Must(t, err)
	}
	record(t, c, in(queuedMode, completed("in time")))
	w.clock.Advance(2 * time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	polls, recovered, both := map[string]int{}, 0, make(chan struct{})
	p, err := c.NewPoller(func(_ context.Context, e *joboncev1.Expectation) (client.Polled, error) {
		mu.Lock()
		defer mu.Unlock()
		if polls[e.GetJobId()]++; polls[e.GetJobId()] < 3 { // running, running, done
			return client.Polled{After: time.Millisecond}, nil
		}
		d := in(queuedMode, completed(e.GetJobId()))
		d.Source, d.RequestId = "", ""
		return client.Polled{Delivery: d}, nil
	}, client.PollerConfig{Idle: time.Millisecond, Logger: testenv.Logger(t), Recorded: func(_ *joboncev1.Expectation, resp *joboncev1.RecordDeliveryResponse) {
		mu.Lock()
		defer mu.Unlock()
		if resp.GetFirstDelivery() {
			if recovered++; recovered == 2 {
				close(both)
			}
		}
	}})
	testenv.Must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	for done := false; !done; { // what came in time is found too, and is not polled
		w.clock.Advance(2 * time.Millisecond)
		left, err := c.ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{})
		testenv.Must(t, err)
		select {
		case <-both:
			done = len(left.GetExpectations()) == 0
		default:
		}
	}
	stop()
	<-done
	if polls["never"] != 3 || polls["late"] != 3 || polls["in time"] != 0 {
		t.Errorf("polled %v", polls)
	}
	want(t, record(t, c, in(queuedMode, completed("late"))), "PENDING")
	for id, source := range map[string]string{"in time": "webhook", "never": "poll", "late": "poll"} {
		if j := stored(t, c, id); j.GetSource() != source {
			t.Errorf("%s: %v", id, j)
		}
	}
	claimed, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 10, LeaseDuration: durationpb.New(time.Minute)})
	if err != nil || len(claimed.GetJobs()) != 3 {
		t.Errorf("work to be done: %v, %v", claimed, err)
	}
}

// TestFailure8OtherTerminalEvent: a job that was reported as completed is reported as failed.
func TestFailure8OtherTerminalEvent(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		var first *joboncev1.Lease
		for mode, words := range map[joboncev1.WorkMode][2]string{
			untrackedMode: {"DUPLICATE", "DUPLICATE"}, leasedMode: {"IN_PROGRESS", "PENDING"}, queuedMode: {"PENDING", "PENDING"},
		} {
			id := mode.String()
			if l := record(t, c, in(mode, completed(id))).GetLease(); l != nil {
				first = l
			}
			want(t, record(t, c, leased(delivery(id, "job.failed", "ERROR"))), words[0]+" conflict EVENT")
			// It starts nothing either when the work is free.
			w.clock.Advance(lease)
			resp := record(t, c, leased(delivery(id, "job.failed", "ERROR")))
			want(t, resp, words[1]+" conflict EVENT")
			if x := resp.GetConflict(); x.GetStoredEvent() != "job.completed" || x.GetStoredStatus() != "OK" ||
				x.GetDeliveredEvent() != "job.failed" || x.GetDeliveredStatus() != "ERROR" {
				t.Errorf("the conflict is %v", x)
			}
			j := stored(t, c, id)
			if j.GetEvent() != "job.completed" || j.GetStatus() != "OK" || j.GetPayload() != completed(id).GetPayload() || j.GetConflicts() != 2 {
				t.Errorf("stored is %v", j)
			}
			if mode != untrackedMode {
				want(t, record(t, c, leased(completed(id))), "RECLAIMED start lease")
			}
		}
		if err := complete(t, c, leasedMode.String(), first, ""); !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("the first holder, replaced by now, completes: %v", err)
		}
	})
}
