package failuretest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	untrackedMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED
	leasedMode    = joboncev1.WorkMode_WORK_MODE_LEASED
	queuedMode    = joboncev1.WorkMode_WORK_MODE_QUEUED
)

// TestFailure1CrashBeforeEnqueue: a frontend is gone right after its delivery was recorded. The work is done all the same:
// by the next delivery, or by a worker.
func TestFailure1CrashBeforeEnqueue(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		t.Run("next delivery", func(t *testing.T) { crashThenDelivery(t, w) })
		t.Run("worker", func(t *testing.T) { crashThenWorker(t, w) })
	})
}

// crash records a delivery as a frontend that then dies, and returns what it was answered.
func crash(t *testing.T, w *world, req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryResponse {
	t.Helper()
	c := w.client()
	resp := record(t, c, req)
	testenv.Must(t, c.Close())
	return resp
}

func crashThenDelivery(t *testing.T, w *world) {
	first := crash(t, w, leased(completed("job-1")))
	want(t, first, "FIRST start first lease")

	c := w.client()
	ran := 0
	deliver := func() client.Result {
		t.Helper()
		req := completed("job-1")
		req.LeaseDuration = durationpb.New(lease)
		req.GetBody().(*joboncev1.RecordDeliveryRequest_Payload).Payload += " " // the provider formats it anew
		result, err := c.Do(t.Context(), req, func(_ context.Context, work *client.Work) error {
			ran++
			if got, want := work.Job.GetPayload(), completed("job-1").GetPayload(); got != want {
				t.Errorf("the work is done on %q, want the stored event %q", got, want)
			}
			if work.Lease.GetGeneration() <= first.GetLease().GetGeneration() {
				t.Errorf("generation %d after %d", work.Lease.GetGeneration(), first.GetLease().GetGeneration())
			}
			return work.SetResult("done")
		})
		testenv.Must(t, err)
		return result
	}
	// The provider is told to come back, at a time when the lease has lapsed.
	w.clock.Advance(lease / 2)
	if r := deliver(); r.Settled || r.Ran || r.RetryAfter < lease/2 || r.RetryAfter > lease/2+time.Second {
		t.Errorf("while the lease runs: %+v", r)
	}
	w.clock.Advance(lease / 2)
	if r := deliver(); !r.Settled || !r.Ran || said(r.Response) != "RECLAIMED start lease conflict PAYLOAD" {
		t.Errorf("once it has lapsed: %+v", r)
	}
	if r := deliver(); !r.Settled || r.Ran || said(r.Response) != "COMPLETED conflict PAYLOAD" || r.Response.GetResult() != "done" {
		t.Errorf("once it is done: %+v", r)
	}
	if ran != 1 {
		t.Errorf("the work was done %d times", ran)
	}
	// Should the first one come back to life, it learns that it is too late.
	if err := complete(t, c, "job-1", first.GetLease(), "too late"); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("the first holder completes: %v", err)
	}
	wantState(t, stored(t, c, "job-1"), joboncev1.WorkState_WORK_STATE_COMPLETED, 4)
}

func crashThenWorker(t *testing.T, w *world) {
	want(t, crash(t, w, leased(completed("leased"))), "FIRST start first lease")
	want(t, crash(t, w, queued(completed("queued"))), "FIRST first")
	w.clock.Advance(lease)

	c := w.client()
	done := make(chan string, 4)
	worker, err := client.NewWorker(c, client.WorkerConfig{Lease: lease, Logger: testenv.Logger(t)},
		func(_ context.Context, work *client.Work) error {
			if want := completed(work.Job.GetJobId()).GetPayload(); work.Job.GetPayload() != want {
				t.Errorf("the work is done on %q, want %q", work.Job.GetPayload(), want)
			}
			done <- work.Job.GetJobId()
			return nil
		})
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- worker.Run(ctx) }()
	got := map[string]int{await(t, "a job is worked on", done): 1}
	got[await(t, "the other is", done)]++
	stop()
	testenv.OK(t, await(t, "the worker stops", stopped))
	if len(done) > 0 || got["leased"] != 1 || got["queued"] != 1 {
		t.Errorf("worked on %v and %d more", got, len(done))
	}
	for id := range got {
		wantState(t, stored(t, c, id), joboncev1.WorkState_WORK_STATE_COMPLETED, 1)
	}
}

// TestFailure2LostAnswer: the service has carried a call out, and the connection is cut before the answer is sent.
func TestFailure2LostAnswer(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		for mode, words := range map[joboncev1.WorkMode]string{
			untrackedMode: "FIRST start first", leasedMode: "FIRST start first lease", queuedMode: "FIRST first",
		} {
			t.Run(mode.String(), func(t *testing.T) { lostAnswer(t, w, mode, words) })
		}
		t.Run("reclaim", func(t *testing.T) { lostReclaim(t, w) })
		t.Run("ClaimWork", func(t *testing.T) { lostClaim(t, w) })
		t.Run("CompleteWork", func(t *testing.T) { lostCompletion(t, w) })
	})
}

func lostAnswer(t *testing.T, w *world, mode joboncev1.WorkMode, words string) {
	// The client tries again by itself, and the caller notices nothing.
	patient := w.client()
	id := fmt.Sprint("patient-", mode)
	w.answers.lose(2, "RecordDelivery")
	resp := record(t, patient, in(mode, completed(id)))
	want(t, resp, words)
	if n := w.answers.unlost(); n != 0 || resp.GetDeliveries() != 3 {
		t.Errorf("%d answers of 2 were not lost; counted %d deliveries, want 3", n, resp.GetDeliveries())
	}

	// Whoever gets an error instead is told which request id to come back with.
	id = fmt.Sprint("impatient-", mode)
	impatient := w.client(client.WithoutRetry())
	w.answers.lose(1, "RecordDelivery")
	_, err := impatient.RecordDelivery(t.Context(), in(mode, completed(id)))
	var failed *client.Error
	if !errors.As(err, &failed) || !errors.Is(err, client.ErrOutcomeUnknown) || failed.RequestID == "" {
		t.Fatalf("the lost answer is %v", err)
	}
	again := in(mode, completed(id))
	again.RequestId = failed.RequestID
	resp = record(t, patient, again)
	want(t, resp, words)
	repeated := record(t, patient, again)
	want(t, repeated, words)
	if resp.GetLease().GetToken() != repeated.GetLease().GetToken() || resp.GetLease().GetGeneration() != repeated.GetLease().GetGeneration() {
		t.Errorf("the lease is %v and then %v", resp.GetLease(), repeated.GetLease())
	}
	// Any other call is a duplicate.
	if other := record(t, patient, in(mode, completed(id))); other.GetStartWork() || other.GetFirstDelivery() {
		t.Errorf("another call is answered %q", said(other))
	}
}

func lostReclaim(t *testing.T, w *world) {
	crash(t, w, leased(completed("reclaim")))
	w.clock.Advance(lease)
	w.answers.lose(1, "RecordDelivery")
	resp := record(t, w.client(), leased(completed("reclaim")))
	want(t, resp, "RECLAIMED start lease")
	if j := resp.GetJob(); j.GetWork().GetAttempts() != 2 || j.GetPayload() != completed("reclaim").GetPayload() {
		t.Errorf("the job comes as %v", j)
	}
}

func lostClaim(t *testing.T, w *world) {
	c := w.client()
	record(t, c, queued(delivery("claimed", "job.claimed", "OK")))
	w.answers.lose(1, "ClaimWork")
	resp, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{
		LeaseDuration: durationpb.New(lease), Events: []string{"job.claimed"}, // not what the other tests left
	})
	if err != nil || len(resp.GetJobs()) != 1 || w.answers.unlost() != 0 {
		t.Fatalf("claimed %v, %v", resp, err)
	}
	got := resp.GetJobs()[0]
	if got.GetJob().GetWork().GetAttempts() != 1 {
		t.Errorf("the lost answer cost an attempt: %v", got.GetJob())
	}
	testenv.OK(t, complete(t, c, "claimed", got.GetLease(), ""))
}

func lostCompletion(t *testing.T, w *world) {
	c := w.client()
	l := record(t, c, leased(completed("completion"))).GetLease()
	w.answers.lose(2, "CompleteWork")
	if err := complete(t, c, "completion", l, "done"); err != nil || w.answers.unlost() != 0 {
		t.Errorf("completed with %v", err)
	}
	if j := stored(t, c, "completion"); j.GetWork().GetResult() != "done" {
		t.Errorf("the job is %v", j)
	}
	renewal := &joboncev1.RenewLeaseRequest{JobId: "completion", LeaseToken: l.GetToken(), LeaseDuration: durationpb.New(lease)}
	if _, err := c.RenewLease(t.Context(), proto.CloneOf(renewal)); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("renewing what is completed: %v", err)
	}
}
