package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestRecordAndGet(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	ctx := t.Context()
	req := text("", `{"job_id":"j","event":"done","status":"OK"}`)
	req.RequestId, req.Source = "r1", "webhook"
	one, err := s.RecordDelivery(ctx, req)
	testenv.Must(t, err)
	j := one.GetJob()
	if one.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || !one.GetStartWork() || !one.GetFirstDelivery() ||
		one.GetDeliveries() != 1 || one.GetConflict() != nil || one.GetLease() != nil || one.GetHolderExpireTime() != nil {
		t.Errorf("first: got %v", one)
	}
	if j.GetJobId() != "j" || j.GetEvent() != "done" || j.GetStatus() != "OK" || j.GetSource() != "webhook" || j.GetBody() != nil ||
		j.GetFirstSeenTime() == nil || j.GetLastSeenTime() == nil || j.GetPayloadDroppedTime() != nil {
		t.Errorf("first: got the job %v", j)
	}
	untracked := &joboncev1.Work{State: joboncev1.WorkState_WORK_STATE_UNTRACKED, Mode: joboncev1.WorkMode_WORK_MODE_UNTRACKED}
	if !proto.Equal(j.GetWork(), untracked) {
		t.Errorf("first: got the work %v", j.GetWork())
	}

	replay, err := s.RecordDelivery(ctx, req)
	if err != nil || replay.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || !replay.GetStartWork() || replay.GetDeliveries() != 2 {
		t.Errorf("replay: got %v %v", replay, err)
	}

	other := text("j", `{"event":"failed"}`)
	dup, err := s.RecordDelivery(ctx, other)
	if err != nil || dup.GetDisposition() != joboncev1.Disposition_DISPOSITION_DUPLICATE || dup.GetStartWork() || dup.GetFirstDelivery() {
		t.Errorf("duplicate: got %v %v", dup, err)
	}
	c := dup.GetConflict()
	if c.GetKind() != joboncev1.ConflictKind_CONFLICT_KIND_EVENT || c.GetStoredEvent() != "done" || c.GetStoredStatus() != "OK" ||
		c.GetDeliveredEvent() != "failed" || c.GetDeliveredStatus() != "" || c.GetTime() == nil {
		t.Errorf("duplicate: got the conflict %v", c)
	}

	for _, view := range []joboncev1.JobView{joboncev1.JobView_JOB_VIEW_UNSPECIFIED, joboncev1.JobView_JOB_VIEW_BASIC} {
		got, err := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "j", View: view})
		if err != nil || got.GetJob().GetBody() != nil || !proto.Equal(got.GetJob().GetLastConflict(), c) || got.GetJob().GetConflicts() != 1 ||
			got.GetJob().GetDeliveries() != 3 {
			t.Errorf("%v: got %v %v", view, got, err)
		}
	}
	got, err := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL})
	if err != nil || got.GetJob().GetPayload() != req.GetPayload() {
		t.Errorf("full: got %v %v", got, err)
	}
}

// An empty body is not an absent one, and bytes stay bytes.
func TestBodyKinds(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	for _, req := range []*joboncev1.RecordDeliveryRequest{
		{JobId: "none"}, text("empty text", ""), raw("empty bytes", []byte{}), raw("bytes", []byte{0, 0xff}), text("text", "\x00é"),
	} {
		if _, err := s.RecordDelivery(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: req.GetJobId(), View: joboncev1.JobView_JOB_VIEW_FULL})
		testenv.Must(t, err)
		want := &joboncev1.Job{}
		switch b := req.GetBody().(type) {
		case *joboncev1.RecordDeliveryRequest_Payload:
			want.Body = &joboncev1.Job_Payload{Payload: b.Payload}
		case *joboncev1.RecordDeliveryRequest_PayloadBytes:
			want.Body = &joboncev1.Job_PayloadBytes{PayloadBytes: b.PayloadBytes}
		}
		if !proto.Equal(&joboncev1.Job{Body: got.GetJob().GetBody()}, want) {
			t.Errorf("%s: got %v", req.GetJobId(), got)
		}
	}
}

// A record that others wrote has neither work nor times beyond the first.
func TestForeignRecord(t *testing.T) {
	dropped := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	jobs := new(memoryJobs)
	jobs.put(&job.Record{JobID: "foreign", Deliveries: 4, BodyDropped: dropped, BodyEdited: true,
		Work: job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}})
	s := start(t, Config{}, jobs)
	got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "foreign"})
	testenv.Must(t, err)
	j := got.GetJob()
	if j.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_UNTRACKED || j.GetWork().GetMode() != joboncev1.WorkMode_WORK_MODE_UNTRACKED ||
		j.GetLastSeenTime() != nil || !j.GetPayloadDroppedTime().AsTime().Equal(dropped) || !j.GetPayloadEdited() {
		t.Errorf("got %v", j)
	}
}

func TestGetJobErrors(t *testing.T) {
	jobs := new(memoryJobs)
	jobs.put(&job.Record{JobID: "large", Body: job.Body{Kind: job.BodyText, Data: strings.Repeat("x", maxResponseBytes)}})
	jobs.put(&job.Record{JobID: "largest", Body: job.Body{Kind: job.BodyText, Data: strings.Repeat("x", job.MaxBodyBytes)}})
	s := start(t, Config{}, jobs)
	full := joboncev1.JobView_JOB_VIEW_FULL
	for _, tc := range []struct {
		req  *joboncev1.GetJobRequest
		code codes.Code
		want told
	}{
		{&joboncev1.GetJobRequest{JobId: "largest", View: full}, codes.OK, told{}},
		{&joboncev1.GetJobRequest{JobId: "large"}, codes.OK, told{}},
		{&joboncev1.GetJobRequest{JobId: "large", View: full}, codes.FailedPrecondition, told{reason: "PAYLOAD_TOO_LARGE"}},
		{&joboncev1.GetJobRequest{JobId: "absent"}, codes.NotFound, told{reason: "JOB_NOT_FOUND"}},
		{&joboncev1.GetJobRequest{}, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "job_id"}},
		{&joboncev1.GetJobRequest{JobId: "large\n"}, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "job_id"}},
		{&joboncev1.GetJobRequest{JobId: "large", View: 7}, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "view"}},
	} {
		_, err := s.GetJob(t.Context(), tc.req)
		if status.Code(err) != tc.code || details(t, err) != tc.want {
			t.Errorf("%v: got %v %+v", tc.req, err, details(t, err))
		}
	}
}

func TestTransportRetryNeedsRequestID(t *testing.T) {
	jobs := new(memoryJobs)
	s := start(t, Config{}, jobs)
	retry := metadata.AppendToOutgoingContext(t.Context(), attemptsHeader, "1")
	batchOf := func(req *joboncev1.RecordDeliveryRequest) *joboncev1.BatchRecordDeliveriesRequest {
		return &joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{req}}
	}
	without, with := text("a", "{}"), text("a", "{}")
	with.RequestId = "r"

	_, err := s.RecordDelivery(retry, without)
	if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD", field: "request_id"}) {
		t.Errorf("got %v", err)
	}
	batch, err := s.BatchRecordDeliveries(retry, batchOf(without))
	if e := batch.GetResults()[0].GetError(); err != nil || e.GetField() != "request_id" {
		t.Errorf("in a batch: got %v %v", batch, err)
	}
	if records, _ := jobs.size(); records != 0 {
		t.Error("it was stored")
	}
	if _, err := s.RecordDelivery(retry, with); err != nil {
		t.Errorf("with a request id: %v", err)
	}
	noRetry := metadata.AppendToOutgoingContext(t.Context(), attemptsHeader, "0")
	if _, err := s.RecordDelivery(noRetry, without); err != nil {
		t.Errorf("a first attempt: %v", err)
	}
}

func TestBatch(t *testing.T) {
	bad := job.Delivery{}
	jobs := &memoryJobs{onRecord: func(_ context.Context, d job.Delivery) error {
		if d.JobID == "broken" {
			bad = d
			return job.ErrOutcomeUnknown
		}
		return nil
	}}
	s := start(t, Config{}, jobs)
	resp, err := s.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{
		text("", `no id`), text("a", "{}"), text("broken", "{}"), text("b", "{}"), text("a", "{}"), text("c", strings.Repeat("x", job.DefaultMaxBodyBytes+1)),
	}})
	testenv.Must(t, err)
	var got []string
	for _, r := range resp.GetResults() {
		if e := r.GetError(); e != nil {
			got = append(got, fmt.Sprintf("%s %s %s", codes.Code(e.GetCode()), reasonName(e.GetReason()), e.GetField()))
			continue
		}
		got = append(got, fmt.Sprintf("%s %s", r.GetResponse().GetJob().GetJobId(), r.GetResponse().GetDisposition()))
	}
	want := []string{
		"InvalidArgument INVALID_FIELD job_id", "a DISPOSITION_FIRST", "Unavailable OUTCOME_UNKNOWN ", "b DISPOSITION_FIRST",
		"a DISPOSITION_DUPLICATE", "InvalidArgument PAYLOAD_TOO_LARGE payload",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if id := resp.GetResults()[2].GetError().GetRequestId(); id == "" || id != bad.RequestID {
		t.Errorf("to be retried with %q, recorded with %q", id, bad.RequestID)
	}
	if _, writes := jobs.size(); writes != 1 {
		t.Errorf("%d calls of the store, want 1", writes)
	}
}

func TestBatchBounds(t *testing.T) {
	jobs := new(memoryJobs)
	s := start(t, Config{}, jobs)
	many := func(n, size int) *joboncev1.BatchRecordDeliveriesRequest {
		req := new(joboncev1.BatchRecordDeliveriesRequest)
		for i := range n {
			req.Deliveries = append(req.Deliveries, text(fmt.Sprintf("job-%d", i), strings.Repeat("x", size)))
		}
		return req
	}
	for _, tc := range []struct {
		req    *joboncev1.BatchRecordDeliveriesRequest
		reason string
	}{
		{many(maxBatchItems+1, 1), "INVALID_FIELD"},
		{many(9, 1_000_000), "PAYLOAD_TOO_LARGE"},
	} {
		_, err := s.BatchRecordDeliveries(t.Context(), tc.req)
		if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: tc.reason, field: "deliveries"}) {
			t.Errorf("got %v %+v", err, details(t, err))
		}
	}
	if records, _ := jobs.size(); records != 0 {
		t.Errorf("%d records, want none", records)
	}
	for _, tc := range []struct{ n, size int }{{0, 0}, {maxBatchItems, 1}, {8, 1 << 20}} {
		resp, err := s.BatchRecordDeliveries(t.Context(), many(tc.n, tc.size))
		if err != nil || len(resp.GetResults()) != tc.n {
			t.Errorf("%d of %d bytes: got %d results, %v", tc.n, tc.size, len(resp.GetResults()), err)
		}
	}
}
