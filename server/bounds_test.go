package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// grpcLimit is what gRPC clients take by default.
const grpcLimit = 4 << 20

// foreign is a store whose records others wrote, without any limit. It answers all that is asked with the same record.
type foreign struct {
	job.Store // panics where it is not overridden

	// text is the length of every text, body that of the body.
	text, body int
	state      job.WorkState
	// claimable is how many jobs a claim finds.
	claimable int
	err       error

	mu       sync.Mutex
	long     string
	released []job.Release
}

func (f *foreign) record(id string) job.Record {
	f.mu.Lock()
	if len(f.long) != max(f.text, f.body) {
		f.long = strings.Repeat("é", max(f.text, f.body)/2+1)[:max(f.text, f.body)]
	}
	text, body := f.long[:f.text], f.long[:f.body]
	f.mu.Unlock()
	r := job.Record{
		JobID: id, Event: text, Status: text, Source: text, ContentType: text, Traceparent: text, FirstSeen: time.Now(), LastSeen: time.Now(), Deliveries: 1 << 60, Conflicts: 1 << 60,
		LastConflict: &job.Conflict{Kind: job.ConflictEvent, Event: text, Status: text, Time: time.Now()},
		Work: job.Work{State: f.state, Mode: job.ModeLeased, Due: time.Now(), Token: text, Generation: 1 << 60, Attempts: 1 << 30,
			Result: text, Error: text},
	}
	if f.body > 0 {
		r.Body = job.Body{Kind: job.BodyBytes, Data: body}
	}
	return r
}

func (f *foreign) RecordOne(_ context.Context, d job.Delivery) job.Outcome {
	if f.err != nil {
		return job.Outcome{Err: f.err}
	}
	r := f.record(d.JobID)
	v := job.Verdict{Disposition: job.Completed, Conflict: r.LastConflict}
	o := job.Outcome{Record: r, Verdict: v}
	if f.state == job.StateLeased {
		o.Verdict.Disposition, o.Verdict.StartWork = job.Reclaimed, true
		o.Lease = &job.Lease{Token: r.Work.Token, Generation: 1 << 60, Expires: time.Now(), Remaining: time.Hour}
	} else {
		o.Record.Body = job.Body{}
	}
	return o
}

func (f *foreign) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	outcomes := make([]job.Outcome, len(ds))
	for i, d := range ds {
		outcomes[i] = f.RecordOne(ctx, d)
	}
	return outcomes
}

func (f *foreign) Get(_ context.Context, jobID string, withBody bool) (job.Record, error) {
	r := f.record(jobID)
	if !withBody {
		r.Body = job.Body{}
	}
	return r, f.err
}

func (f *foreign) Claim(_ context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	var claimed []job.Claimed
	bytes := 0
	for i := range min(f.claimable, req.Max) {
		r := f.record(fmt.Sprint(i))
		if bytes += len(r.Body.Data); i > 0 && bytes > req.MaxBytes {
			break
		}
		claimed = append(claimed, job.Claimed{Record: r, Lease: job.Lease{Token: r.Work.Token, Expires: time.Now()}, Granted: true})
	}
	return claimed, f.err
}

func (f *foreign) ChangeLeases(_ context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]job.LeaseOutcome, len(changes))
	for i, c := range changes {
		if c.Kind == job.Releasing {
			f.released = append(f.released, c.Release)
		}
		out[i] = job.LeaseOutcome{Lease: job.Lease{Token: strings.Repeat("x", f.text), Expires: time.Now()}, Err: f.err}
	}
	return out
}

func (f *foreign) Standings(context.Context, []string) (map[string]job.Standing, error) {
	return nil, nil
}

func (f *foreign) Resume(context.Context, job.Delivery) job.Outcome {
	return job.Outcome{Err: job.ErrNotFound}
}

func (f *foreign) List(_ context.Context, q job.ListQuery) (job.Page, error) {
	page := job.Page{Next: job.Place{Seen: 1, JobID: "next"}, Jobs: []job.Record{f.record(strings.Repeat("i", f.text))}}
	for range q.Size {
		r := f.record(strings.Repeat("i", job.MaxJobIDBytes))
		r.Body = job.Body{}
		page.Jobs = append(page.Jobs, r)
	}
	return page, f.err
}

func (f *foreign) Requeue(_ context.Context, q job.Requeue) (job.Record, bool, error) {
	return f.record(q.JobID), true, &job.StateError{Problem: strings.Repeat("x", f.text)}
}

func (f *foreign) expectation(id string) job.Expectation {
	text := strings.Repeat("x", f.text)
	return job.Expectation{JobID: id, StatusURL: text, Error: text, Token: "t"}
}

func (f *foreign) ListExpectations(_ context.Context, _ job.ExpectationFilter, _, _ string, size int) (page []job.Expectation, next string, err error) {
	for range size {
		page = append(page, f.expectation(strings.Repeat("i", job.MaxJobIDBytes)))
	}
	return page, "next", f.err
}

func (f *foreign) ClaimOverdue(_ context.Context, r job.OverdueRequest) (o job.Overdue, err error) {
	for range r.Max {
		o.Jobs = append(o.Jobs, f.expectation(strings.Repeat("i", job.MaxJobIDBytes)))
	}
	return o, f.err
}

func (f *foreign) Pauses(context.Context) (pauses []job.Pause, err error) {
	for range job.MaxPauses {
		pauses = append(pauses, job.Pause{Prefix: strings.Repeat("i", f.text), Reason: strings.Repeat("x", f.text)})
	}
	return pauses, f.err
}

func (f *foreign) Check(context.Context) error { return nil }

func (f *foreign) LongestDue(context.Context) (string, time.Duration, error) { return "", 0, nil }

func (f *foreign) CheckWork(context.Context) error { return nil }

// TestEveryResponseIsBounded sends the worst records through every RPC. The client has gRPC's default limits, so a response
// over them would fail with RESOURCE_EXHAUSTED.
func TestEveryResponseIsBounded(t *testing.T) {
	completed, leased := job.StateCompleted, job.StateLeased
	for name, f := range map[string]*foreign{
		"long texts":               {text: 20 << 10, state: completed},
		"one text over the limit":  {text: 5 << 20, state: completed},
		"to work on":               {text: 20 << 10, body: 20 << 10, state: leased, claimable: 100},
		"largest body":             {text: 20 << 10, body: job.MaxBodyBytes, state: leased, claimable: 100},
		"bodies that share a page": {text: 20 << 10, body: 1 << 20, state: leased, claimable: 100},
		"body over the limit":      {text: 20 << 10, body: 5 << 20, state: leased, claimable: 100},
		"long errors":              {err: &job.InvalidError{Field: "event", Problem: strings.Repeat("é", 32<<10)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Config{}, f)
			for _, c := range everyCall(s) {
				resp, err := c.call(t.Context())
				if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Internal || code == codes.Unavailable {
					t.Errorf("%s: %.200v", c.name, err)
				}
				if n := proto.Size(status.Convert(err).Proto()); n > 4<<10 {
					t.Errorf("%s: the error is %d bytes", c.name, n)
				}
				if n := proto.Size(resp); n >= grpcLimit {
					t.Errorf("%s: the response is %d bytes", c.name, n)
				}
			}
		})
	}
}

type namedCall struct {
	name string
	call func(context.Context) (proto.Message, error)
}

// everyCall has one call of each method.
func everyCall(s *running) []namedCall {
	batch := &joboncev1.BatchRecordDeliveriesRequest{}
	for i := range maxBatchItems {
		batch.Deliveries = append(batch.Deliveries, leased(fmt.Sprint(strings.Repeat("j", 250), i), strings.Repeat("r", job.MaxRequestIDBytes)))
	}
	w, admin, expectations := s.work(), s.admin(), s.expectations()
	return []namedCall{
		{"ListJobs", func(ctx context.Context) (proto.Message, error) {
			return admin.ListJobs(ctx, &joboncev1.ListJobsRequest{PageSize: job.MaxPageSize})
		}},
		{"RequeueJobs", func(ctx context.Context) (proto.Message, error) {
			return admin.RequeueJobs(ctx, &joboncev1.RequeueJobsRequest{MaxJobs: job.MaxPageSize,
				Filter: &joboncev1.JobFilter{State: joboncev1.WorkState_WORK_STATE_DEAD}})
		}},
		{"ListExpectations", func(ctx context.Context) (proto.Message, error) {
			return admin.ListExpectations(ctx, &joboncev1.ListExpectationsRequest{PageSize: job.MaxPageSize})
		}},
		{"ListClaimPauses", func(ctx context.Context) (proto.Message, error) {
			return admin.ListClaimPauses(ctx, &joboncev1.ListClaimPausesRequest{})
		}},
		{"ClaimOverdueJobs", func(ctx context.Context) (proto.Message, error) {
			return expectations.ClaimOverdueJobs(ctx, &joboncev1.ClaimOverdueJobsRequest{MaxJobs: job.MaxOverdueJobs, LeaseDuration: minute()})
		}},
		{"RecordDelivery", func(ctx context.Context) (proto.Message, error) { return s.RecordDelivery(ctx, leased("j", "r")) }},
		{"BatchRecordDeliveries", func(ctx context.Context) (proto.Message, error) { return s.BatchRecordDeliveries(ctx, batch) }},
		{"GetJob", func(ctx context.Context) (proto.Message, error) {
			return s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "j"})
		}},
		{"GetJob, full", func(ctx context.Context) (proto.Message, error) {
			return s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL})
		}},
		{"ClaimWork", func(ctx context.Context) (proto.Message, error) {
			return w.ClaimWork(ctx, &joboncev1.ClaimWorkRequest{MaxJobs: 100, LeaseDuration: minute()})
		}},
		{"RenewLease", func(ctx context.Context) (proto.Message, error) {
			return w.RenewLease(ctx, &joboncev1.RenewLeaseRequest{JobId: "j", LeaseToken: "t", LeaseDuration: minute()})
		}},
		{"CompleteWork", func(ctx context.Context) (proto.Message, error) {
			return w.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: "j", LeaseToken: "t"})
		}},
		{"ReleaseWork", func(ctx context.Context) (proto.Message, error) {
			return w.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: "t"})
		}},
	}
}

// Every text of a record has a limit that the API documents, and comes cut to it.
func TestForeignTextsAreCut(t *testing.T) {
	f := &foreign{text: 200 << 10, state: job.StateCompleted}
	s := start(t, Config{}, f)
	j := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j"})).GetJob()
	c, w := j.GetLastConflict(), j.GetWork()
	for _, text := range []struct {
		name, value string
		limit       int
	}{
		{"event", j.GetEvent(), 128}, {"status", j.GetStatus(), 64}, {"source", j.GetSource(), 64},
		{"content_type", j.GetContentType(), 128}, {"traceparent", j.GetTraceparent(), 54}, // at a character of two bytes
		{"stored_event", c.GetStoredEvent(), 128}, {"stored_status", c.GetStoredStatus(), 64},
		{"delivered_event", c.GetDeliveredEvent(), 128}, {"delivered_status", c.GetDeliveredStatus(), 64},
		{"result", w.GetResult(), 64 << 10}, {"last_error", w.GetLastError(), 4 << 10},
	} {
		if len(text.value) != text.limit || !utf8.ValidString(text.value) {
			t.Errorf("%s comes with %d bytes, want %d", text.name, len(text.value), text.limit)
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"aé", 3, "aé"}, {"a€b", 3, "a"}, {"a€b", 4, "a€"}, {"😀", 3, ""}, {"", 0, ""},
		{"\x80\x80\x80", 2, ""},
	} {
		if got := clip(c.text, c.limit); got != c.want {
			t.Errorf("%q cut to %d is %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}

// A job whose body no response can hold is not handed out: work must not start without it. Neither is one whose id no call
// takes. They come back like work that nobody gets done, and say why.
func TestUnfitWorkIsNotHandedOut(t *testing.T) {
	f := &foreign{body: job.MaxBodyBytes + 1, state: job.StateLeased, claimable: 1}
	s := start(t, Config{}, f)
	resp := must[*joboncev1.ClaimWorkResponse](t)(s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute()}))
	if len(resp.GetJobs()) != 0 {
		t.Errorf("%d jobs are handed out", len(resp.GetJobs()))
	}
	if len(f.released) != 1 || f.released[0].Dead || f.released[0].Delay != time.Minute ||
		!strings.Contains(f.released[0].Error, "the stored payload is 3145729 bytes") {
		t.Errorf("given back as %+v", f.released)
	}
	if lines := s.log.lines(t, "work cannot be handed out"); len(lines) != 1 || lines[0]["job_id"] != "0" {
		t.Errorf("logged: %v", lines)
	}
	_, err := s.RecordDelivery(t.Context(), leased("j", "r"))
	if status.Code(err) != codes.FailedPrecondition || details(t, err) != (told{reason: "PAYLOAD_TOO_LARGE"}) {
		t.Errorf("a lease on it: %v", err)
	}
	if err := unfit(&job.Record{JobID: strings.Repeat("x", job.MaxJobIDBytes+1)}); err == nil {
		t.Error("an id over the limit is handed out")
	}
}

// A batch carries results and bodies as long as they fit, and says of each that does not.
func TestBatchCarriesWhatFits(t *testing.T) {
	resultOf := func(n int) (*joboncev1.BatchRecordDeliveriesResponse, int) {
		f := &foreign{text: job.MaxResultBytes, state: job.StateCompleted}
		s := start(t, Config{}, f)
		req := &joboncev1.BatchRecordDeliveriesRequest{}
		for i := range n {
			req.Deliveries = append(req.Deliveries, text(fmt.Sprint(i), "{}"))
		}
		resp := must[*joboncev1.BatchRecordDeliveriesResponse](t)(s.BatchRecordDeliveries(t.Context(), req))
		with := 0
		for i, r := range resp.GetResults() {
			answer := r.GetResponse()
			if (len(answer.GetResult()) == job.MaxResultBytes) == answer.GetResultOmitted() {
				t.Errorf("of %d, number %d has %d bytes of result; left out: %t", n, i, len(answer.GetResult()), answer.GetResultOmitted())
			}
			if answer.GetJob().GetWork().GetResult() != "" {
				t.Errorf("of %d, number %d has its result twice", n, i)
			}
			if !answer.GetResultOmitted() {
				with++
			}
		}
		return resp, with
	}
	if _, with := resultOf(10); with != 10 {
		t.Errorf("%d of 10 results came along", with)
	}
	resp, with := resultOf(maxBatchItems)
	if n := proto.Size(resp); with < 20 || with == maxBatchItems || n > maxResponseBytes || n < maxResponseBytes-job.MaxResultBytes {
		t.Errorf("%d of %d results came along, in %d bytes", with, maxBatchItems, n)
	}
	empty := &foreign{state: job.StateCompleted}
	s := start(t, Config{}, empty)
	none := must[*joboncev1.BatchRecordDeliveriesResponse](t)(s.BatchRecordDeliveries(t.Context(),
		&joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{text("j", "{}")}}))
	if none.GetResults()[0].GetResponse().GetResultOmitted() {
		t.Error("a result that there is not is left out")
	}
}
