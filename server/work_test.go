package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// embedded is a real store with a clock that is moved by hand.
func embedded(t *testing.T) (*batch.Store, *testenv.Clock) {
	t.Helper()
	clock := testenv.NewClock()
	s, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Now: clock.Now, Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	jobs := batch.New(s, batch.Config{})
	t.Cleanup(func() { testenv.OK(t, jobs.Close()) })
	return jobs, clock
}

func (r *running) work() joboncev1.WorkServiceClient { return joboncev1.NewWorkServiceClient(r.conn) }

func minute() *durationpb.Duration { return durationpb.New(time.Minute) }

func leased(id, requestID string) *joboncev1.RecordDeliveryRequest {
	req := text(id, `{"event":"e"}`)
	req.WorkMode, req.LeaseDuration, req.RequestId = joboncev1.WorkMode_WORK_MODE_LEASED, minute(), requestID
	return req
}

func queued(id string) *joboncev1.RecordDeliveryRequest {
	req := text(id, `{"event":"e"}`)
	req.WorkMode = joboncev1.WorkMode_WORK_MODE_QUEUED
	return req
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		testenv.Must(t, err)
		return v
	}
}

func TestLeasedJob(t *testing.T) {
	jobs, clock := embedded(t)
	s := start(t, Config{}, jobs)
	rec := must[*joboncev1.RecordDeliveryResponse](t)

	first := rec(s.RecordDelivery(t.Context(), leased("j", "r1")))
	l := first.GetLease()
	if first.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || !first.GetStartWork() || l.GetToken() == "" ||
		l.GetGeneration() == 0 || l.GetRemaining().AsDuration() > time.Minute || l.GetRemaining().AsDuration() < 59*time.Second {
		t.Errorf("first: %v", first)
	}
	other := rec(s.RecordDelivery(t.Context(), leased("j", "r2")))
	if other.GetDisposition() != joboncev1.Disposition_DISPOSITION_IN_PROGRESS || other.GetLease() != nil ||
		!other.GetHolderExpireTime().AsTime().Equal(l.GetExpireTime().AsTime()) {
		t.Errorf("other: %v", other)
	}
	if strings.Contains(other.String(), l.GetToken()) {
		t.Error("the holder's token is told to another")
	}
	clock.Advance(time.Minute)
	reclaimed := rec(s.RecordDelivery(t.Context(), leased("j", "r2")))
	if reclaimed.GetDisposition() != joboncev1.Disposition_DISPOSITION_RECLAIMED || reclaimed.GetJob().GetPayload() != `{"event":"e"}` ||
		reclaimed.GetLease().GetGeneration() <= l.GetGeneration() {
		t.Errorf("reclaimed: %v", reclaimed)
	}
	_, err := s.work().CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: l.GetToken()})
	if status.Code(err) != codes.Aborted || details(t, err) != (told{reason: "LEASE_LOST"}) {
		t.Errorf("complete with the old token: %v", err)
	}
	l = must[*joboncev1.RenewLeaseResponse](t)(s.work().RenewLease(t.Context(), &joboncev1.RenewLeaseRequest{
		JobId: "j", LeaseToken: reclaimed.GetLease().GetToken(), LeaseDuration: minute()})).GetLease()
	if l.GetToken() != reclaimed.GetLease().GetToken() || l.GetGeneration() != reclaimed.GetLease().GetGeneration() {
		t.Errorf("renewed: %v", l)
	}
	must[*joboncev1.CompleteWorkResponse](t)(s.work().CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{
		JobId: "j", LeaseToken: l.GetToken(), Result: "42"}))
	done := rec(s.RecordDelivery(t.Context(), leased("j", "")))
	if done.GetDisposition() != joboncev1.Disposition_DISPOSITION_COMPLETED || done.GetResult() != "42" || done.GetStartWork() {
		t.Errorf("completed: %v", done)
	}
	batched := must[*joboncev1.BatchRecordDeliveriesResponse](t)(s.BatchRecordDeliveries(t.Context(),
		&joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{leased("j", "")}}))
	if r := batched.GetResults()[0].GetResponse(); r.GetDisposition() != joboncev1.Disposition_DISPOSITION_COMPLETED || r.GetResult() != "42" ||
		r.GetResultOmitted() || r.GetJob().GetWork().GetResult() != "" {
		t.Errorf("completed, in a batch: %v", r)
	}
}

func TestReleaseWork(t *testing.T) {
	jobs, _ := embedded(t)
	s := start(t, Config{}, jobs)
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), queued("j")))
	claim := func() *joboncev1.ClaimedJob {
		t.Helper()
		resp := must[*joboncev1.ClaimWorkResponse](t)(s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute()}))
		if len(resp.GetJobs()) != 1 || resp.GetJobs()[0].GetJob().GetPayload() != `{"event":"e"}` {
			t.Fatalf("claimed %v", resp)
		}
		return resp.GetJobs()[0]
	}
	release := func(req *joboncev1.ReleaseWorkRequest) {
		t.Helper()
		must[*joboncev1.ReleaseWorkResponse](t)(s.work().ReleaseWork(t.Context(), req))
	}
	first := claim()
	release(&joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: first.GetLease().GetToken(), Error: "try again"})
	second := claim()
	if w := second.GetJob().GetWork(); w.GetAttempts() != 2 || w.GetLastError() != "try again" {
		t.Errorf("claimed again: %v", w)
	}
	release(&joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: second.GetLease().GetToken(), Dead: true, Error: "no use"})
	got := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j"})).GetJob().GetWork()
	want := &joboncev1.Work{State: joboncev1.WorkState_WORK_STATE_DEAD, Mode: joboncev1.WorkMode_WORK_MODE_QUEUED, Attempts: 2,
		Generation: second.GetLease().GetGeneration(), LastError: "no use"}
	if !proto.Equal(got, want) {
		t.Errorf("work %v, want %v", got, want)
	}
}

// TestWaitingClaim has a call wait for work, which comes by each of the ways that work comes.
func TestWaitingClaim(t *testing.T) {
	jobs, _ := embedded(t)
	claiming := make(chan struct{}, 100)
	s := start(t, Config{}, hookedJobs{Store: jobs, afterClaim: func([]job.Claimed) { claiming <- struct{}{} }})
	wait := func() <-chan *joboncev1.ClaimedJob {
		got := make(chan *joboncev1.ClaimedJob, 1)
		go func() {
			resp, err := s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), Wait: durationpb.New(time.Minute)})
			if err != nil || len(resp.GetJobs()) != 1 {
				t.Errorf("%v, %v", resp, err)
				got <- nil
				return
			}
			got <- resp.GetJobs()[0]
		}()
		<-claiming // it has looked once, and found nothing
		return got
	}
	waiting := wait()
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), queued("recorded")))
	got := <-waiting
	if got.GetJob().GetJobId() != "recorded" {
		t.Errorf("got %v", got)
	}
	for len(claiming) > 0 {
		<-claiming
	}
	waiting = wait()
	must[*joboncev1.ReleaseWorkResponse](t)(s.work().ReleaseWork(t.Context(),
		&joboncev1.ReleaseWorkRequest{JobId: "recorded", LeaseToken: got.GetLease().GetToken()}))
	if again := <-waiting; again.GetJob().GetJobId() != "recorded" || again.GetLease().GetToken() == got.GetLease().GetToken() {
		t.Errorf("got %v", again)
	}
}

func TestStopEndsWaitingClaims(t *testing.T) {
	jobs, _ := embedded(t)
	claiming := make(chan struct{}, 100)
	s := start(t, Config{ShutdownTimeout: time.Hour}, hookedJobs{Store: jobs, afterClaim: func([]job.Claimed) { claiming <- struct{}{} }})
	answered := make(chan error, 1)
	go func() {
		resp, err := s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), Wait: durationpb.New(time.Minute)})
		if len(resp.GetJobs()) != 0 {
			t.Errorf("got %v", resp)
		}
		answered <- err
	}()
	<-claiming
	s.stop()
	if err := <-answered; err != nil {
		t.Errorf("a claim that waited when the server stopped: %v, want an empty answer", err)
	}
	testenv.OK(t, <-s.stopped)
}

// hookedJobs tells of each claim, after the store has made it and before the caller hears of it.
type hookedJobs struct {
	*batch.Store
	afterClaim func([]job.Claimed)
}

func (h hookedJobs) Claim(ctx context.Context, r job.ClaimRequest) ([]job.Claimed, error) {
	claimed, err := h.Store.Claim(context.WithoutCancel(ctx), r)
	h.afterClaim(claimed)
	if len(claimed) > 0 && r.RequestID == "to be cancelled" {
		<-ctx.Done()
	}
	return claimed, err
}

func TestCancelledClaimIsGivenBack(t *testing.T) {
	jobs, _ := embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := start(t, Config{}, hookedJobs{Store: jobs, afterClaim: func(c []job.Claimed) { cancel() }})
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), queued("j")))
	_, err := s.work().ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), RequestId: "to be cancelled"})
	if status.Code(err) != codes.Canceled {
		t.Fatalf("got %v", err)
	}
	// The client hears of its cancellation before the server does: the next claim waits for what is given back.
	resp := must[*joboncev1.ClaimWorkResponse](t)(s.work().ClaimWork(t.Context(),
		&joboncev1.ClaimWorkRequest{LeaseDuration: minute(), Wait: durationpb.New(time.Minute)}))
	if len(resp.GetJobs()) != 1 || resp.GetJobs()[0].GetJob().GetWork().GetAttempts() != 1 {
		t.Errorf("got %v, want the job with its first attempt", resp)
	}
}

func TestBatchOfReclaimedJobsFits(t *testing.T) {
	jobs, clock := embedded(t)
	s := start(t, Config{MaxBodyBytes: job.MaxBodyBytes}, jobs)
	req := &joboncev1.BatchRecordDeliveriesRequest{}
	for _, id := range []string{"a", "b"} {
		d := leased(id, "")
		d.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: strings.Repeat("x", 2<<20)}
		must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), d))
		req.Deliveries = append(req.Deliveries, d)
	}
	clock.Advance(time.Hour)
	resp := must[*joboncev1.BatchRecordDeliveriesResponse](t)(s.BatchRecordDeliveries(t.Context(), req))
	for i, r := range resp.GetResults() {
		if r.GetResponse().GetDisposition() != joboncev1.Disposition_DISPOSITION_RECLAIMED || r.GetResponse().GetLease() == nil {
			t.Errorf("result %d: %.300v", i, r)
		}
		if has := r.GetResponse().GetJob().GetPayload() != ""; has != (i == 0) {
			t.Errorf("result %d comes with its payload: %t", i, has)
		}
	}
	if n := proto.Size(resp); n > job.MaxBodyBytes {
		t.Errorf("the response is %d bytes", n)
	}
}

func TestWorkRefuses(t *testing.T) {
	jobs, _ := embedded(t)
	s := start(t, Config{}, jobs)
	w := s.work()
	type claim = joboncev1.ClaimWorkRequest
	long := strings.Repeat("x", 129)
	for name, c := range map[string]struct {
		call  func(context.Context) error
		field string
	}{
		"no lease":            {claimOf(w, &claim{}), "lease_duration"},
		"zero lease":          {claimOf(w, &claim{LeaseDuration: durationpb.New(0)}), "lease_duration"},
		"long lease":          {claimOf(w, &claim{LeaseDuration: durationpb.New(25 * time.Hour)}), "lease_duration"},
		"invalid lease":       {claimOf(w, &claim{LeaseDuration: &durationpb.Duration{Seconds: 5, Nanos: -1}}), "lease_duration"},
		"too many jobs":       {claimOf(w, &claim{LeaseDuration: minute(), MaxJobs: 101}), "max_jobs"},
		"negative jobs":       {claimOf(w, &claim{LeaseDuration: minute(), MaxJobs: -1}), "max_jobs"},
		"long wait":           {claimOf(w, &claim{LeaseDuration: minute(), Wait: durationpb.New(61 * time.Second)}), "wait"},
		"negative wait":       {claimOf(w, &claim{LeaseDuration: minute(), Wait: durationpb.New(-1)}), "wait"},
		"empty event":         {claimOf(w, &claim{LeaseDuration: minute(), Events: []string{"a", ""}}), "events[1]"},
		"long event":          {claimOf(w, &claim{LeaseDuration: minute(), Events: []string{long}}), "events[0]"},
		"many events":         {claimOf(w, &claim{LeaseDuration: minute(), Events: make([]string, 101)}), "events"},
		"long worker id":      {claimOf(w, &claim{LeaseDuration: minute(), WorkerId: long}), "worker_id"},
		"long request id":     {claimOf(w, &claim{LeaseDuration: minute(), RequestId: long}), "request_id"},
		"renew without id":    {renewOf(w, &joboncev1.RenewLeaseRequest{LeaseToken: "t", LeaseDuration: minute()}), "job_id"},
		"renew without token": {renewOf(w, &joboncev1.RenewLeaseRequest{JobId: "j", LeaseDuration: minute()}), "lease_token"},
		"renew without lease": {renewOf(w, &joboncev1.RenewLeaseRequest{JobId: "j", LeaseToken: "t"}), "lease_duration"},
		"long token":          {renewOf(w, &joboncev1.RenewLeaseRequest{JobId: "j", LeaseToken: long, LeaseDuration: minute()}), "lease_token"},
		"long result":         {completeOf(w, &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: "t", Result: strings.Repeat("x", 64<<10+1)}), "result"},
		"long error":          {releaseOf(w, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t", Error: strings.Repeat("x", 4<<10+1)}), "error"},
		"long delay":          {releaseOf(w, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t", RetryDelay: durationpb.New(25 * time.Hour)}), "retry_delay"},
		"negative delay":      {releaseOf(w, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t", RetryDelay: durationpb.New(-1)}), "retry_delay"},
		"dead with delay":     {releaseOf(w, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t", Dead: true, RetryDelay: durationpb.New(0)}), "retry_delay"},
	} {
		err := c.call(t.Context())
		if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD", field: c.field}) {
			t.Errorf("%s: %v %+v, want %s", name, err, details(t, err), c.field)
		}
	}
	retry := metadata.AppendToOutgoingContext(t.Context(), attemptsHeader, "1")
	if err := claimOf(w, &claim{LeaseDuration: minute()})(retry); details(t, err).field != "request_id" {
		t.Errorf("transport retry: %v", err)
	}
	err := completeOf(w, &joboncev1.CompleteWorkRequest{JobId: "absent", LeaseToken: "t"})(t.Context())
	if status.Code(err) != codes.NotFound || details(t, err) != (told{reason: "JOB_NOT_FOUND"}) {
		t.Errorf("absent: %v", err)
	}
}

func claimOf(w joboncev1.WorkServiceClient, req *joboncev1.ClaimWorkRequest) func(context.Context) error {
	return func(ctx context.Context) error { _, err := w.ClaimWork(ctx, req); return err }
}

func renewOf(w joboncev1.WorkServiceClient, req *joboncev1.RenewLeaseRequest) func(context.Context) error {
	return func(ctx context.Context) error { _, err := w.RenewLease(ctx, req); return err }
}

func completeOf(w joboncev1.WorkServiceClient, req *joboncev1.CompleteWorkRequest) func(context.Context) error {
	return func(ctx context.Context) error { _, err := w.CompleteWork(ctx, req); return err }
}

func releaseOf(w joboncev1.WorkServiceClient, req *joboncev1.ReleaseWorkRequest) func(context.Context) error {
	return func(ctx context.Context) error { _, err := w.ReleaseWork(ctx, req); return err }
}

// TestWaitingClaims: claims that wait take half of the calls at most, and of one caller a quarter; more are answered at once.
func TestWaitingClaims(t *testing.T) {
	var token string
	entry := "- {name: a, token_sha256: SUM, allow: [work]}\n- {name: b, token_sha256: SUM, allow: [work]}"
	for name, c := range map[string]struct {
		cfg  Config
		most int
	}{"anybody": {Config{MaxCalls: 8}, 4}, "one caller": {Config{MaxCalls: 8, Callers: callersOf(t, &token, entry)}, 2}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.cfg, idleJobs{new(memoryJobs)})
			ctx, cancel := context.WithCancel(as(t.Context(), token))
			defer cancel()
			claim := func() error {
				_, err := s.work().ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), Wait: durationpb.New(time.Minute)})
				return err
			}
			var waiting sync.WaitGroup
			for range c.most {
				waiting.Go(func() { _ = claim() })
			}
			untilWaiting(s, c.most)
			began := time.Now()
			if err := claim(); err != nil || time.Since(began) > 30*time.Second {
				t.Errorf("one more got %v after %v", err, time.Since(began))
			}
			cancel()
			waiting.Wait()
			untilWaiting(s, 0)
		})
	}
}
