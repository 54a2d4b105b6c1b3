package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

func itemAnswer(jobID string) *result {
	return &result{Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Response{
		Response: &response{StartWork: true, Job: &joboncev1.Job{JobId: jobID}},
	}}
}

func itemError(code codes.Code, reason joboncev1.ErrorReason, delay time.Duration) *result {
	item := &joboncev1.ItemError{Code: int32(code), Reason: reason, Message: "no"}
	if delay > 0 {
		item.RetryDelay = durationpb.New(delay)
	}
	return &result{Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Error{Error: item}}
}

// batchLog answers each delivery with the next of its job's results, an answer when they are used up. It notes what it
// was asked and when.
type batchLog struct {
	results map[string][]*result

	mu    sync.Mutex
	calls [][]string
	ids   map[string][]string // The request ids by job.
	times []time.Time
}

func (l *batchLog) batch(_ context.Context, req *batchRequest) (*batchResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ids == nil {
		l.ids = map[string][]string{}
	}
	resp := &batchResponse{}
	var jobs []string
	for _, d := range req.GetDeliveries() {
		job := d.GetJobId()
		jobs = append(jobs, job)
		if n := len(l.ids[job]); n < len(l.results[job]) {
			resp.Results = append(resp.Results, l.results[job][n])
		} else {
			resp.Results = append(resp.Results, itemAnswer(job))
		}
		l.ids[job] = append(l.ids[job], d.GetRequestId())
	}
	l.calls = append(l.calls, jobs)
	l.times = append(l.times, time.Now())
	return resp, nil
}

func deliveries(jobs ...string) []*request {
	var reqs []*request
	for _, job := range jobs {
		reqs = append(reqs, &request{JobId: job})
	}
	return reqs
}

func TestBatchRetriesOnlyWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := itemError(codes.ResourceExhausted, joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, time.Second)
		lost := itemError(codes.Unavailable, joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, 0)
		bad := itemError(codes.InvalidArgument, joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD, 0)
		log := &batchLog{results: map[string][]*result{"b": {lost, lost}, "c": {bad}, "d": {busy}}}
		c, _ := start(t, &fake{batch: log.batch})
		results, err := c.BatchRecordDeliveries(t.Context(), deliveries("a", "b", "c", "d", "e"))
		testenv.Must(t, err)
		if want := "[[a b c d e] [b d] [b]]"; fmt.Sprint(log.calls) != want {
			t.Errorf("sent %v, want %v", log.calls, want)
		}
		for i, job := range []string{"a", "b", "c", "d", "e"} {
			switch {
			case job == "c":
				if !errors.Is(results[i].Err, client.ErrInvalidField) || results[i].Response != nil {
					t.Errorf("c got %v", results[i])
				}
			case results[i].Err != nil || results[i].Response.GetJob().GetJobId() != job:
				t.Errorf("%s got %v", job, results[i])
			}
			ids := slices.Compact(slices.Clone(log.ids[job]))
			if len(ids) != 1 || ids[0] == "" {
				t.Errorf("the request ids of %s: %q", job, log.ids[job])
			}
		}
		if log.ids["a"][0] == log.ids["b"][0] {
			t.Error("two deliveries share a request id")
		}
		if delay := log.times[1].Sub(log.times[0]); delay < time.Second {
			t.Errorf("retried after %v; an item asked for 1s", delay)
		}
	})
}

func TestBatchItemFailsToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := itemError(codes.Unavailable, joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, 0)
		busy := itemError(codes.ResourceExhausted, joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, time.Hour)
		log := &batchLog{results: map[string][]*result{"b": {lost, busy}}}
		c, _ := start(t, &fake{batch: log.batch})
		results, err := c.BatchRecordDeliveries(t.Context(), deliveries("a", "b"))
		if err != nil || results[0].Err != nil {
			t.Fatalf("got %v, %v", results, err)
		}
		for _, want := range []error{client.ErrOverloaded, client.ErrOutcomeUnknown, context.DeadlineExceeded} {
			if !errors.Is(results[1].Err, want) {
				t.Errorf("%v does not match %v", results[1].Err, want)
			}
		}
		var e *client.Error
		if !errors.As(results[1].Err, &e) || e.RequestID != log.ids["b"][0] {
			t.Errorf("got the request id %q, sent %q", e.RequestID, log.ids["b"][0])
		}
	})
}

func TestBatchWholeCallFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		fail := error(unavailable)
		log := &batchLog{}
		f := &fake{batch: func(ctx context.Context, req *batchRequest) (*batchResponse, error) {
			for _, d := range req.GetDeliveries() {
				ids = append(ids, d.GetRequestId())
			}
			if fail != nil {
				err := fail
				if errors.Is(fail, unavailable) {
					fail = nil
				}
				return nil, err
			}
			return log.batch(ctx, req)
		}}
		c, _ := start(t, f)
		results, err := c.BatchRecordDeliveries(t.Context(), deliveries("a", "b"))
		if err != nil || results[1].Err != nil || results[1].Response.GetJob().GetJobId() != "b" {
			t.Errorf("got %v, %v", results, err)
		}
		if len(ids) != 4 || ids[0] != ids[2] || ids[1] != ids[3] {
			t.Errorf("the request ids changed with the retry: %q", ids)
		}

		ids, fail = nil, failure(codes.PermissionDenied, "PERMISSION_DENIED", "no", "", 0)
		results, err = c.BatchRecordDeliveries(t.Context(), deliveries("a", "b"))
		if !errors.Is(err, client.ErrPermissionDenied) || len(results) != 2 || len(ids) != 2 {
			t.Fatalf("got %v, %v after %d deliveries", results, err, len(ids))
		}
		for i, r := range results {
			var e *client.Error
			if !errors.As(r.Err, &e) || e.Code != codes.PermissionDenied || e.RequestID != ids[i] {
				t.Errorf("item %d got %v", i, r.Err)
			}
		}
	})
}

func TestBatchWithoutNeedOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &batchLog{}
		c, _ := start(t, &fake{batch: log.batch})
		if results, err := c.BatchRecordDeliveries(t.Context(), nil); err != nil || len(results) != 0 {
			t.Errorf("an empty batch got %v, %v", results, err)
		}
		reqs := []*request{nil, {JobId: "j", Event: "\xff"}}
		results, err := c.BatchRecordDeliveries(t.Context(), reqs)
		testenv.Must(t, err)
		var e *client.Error
		if !errors.Is(results[0].Err, client.ErrInvalidField) || !errors.As(results[1].Err, &e) || e.Field != "event" {
			t.Errorf("got %v", results)
		}
		if len(log.calls) != 0 {
			t.Errorf("called with %v", log.calls)
		}
		// What cannot be sent holds up nothing else.
		results, err = c.BatchRecordDeliveries(t.Context(), append(reqs, deliveries("a")...))
		if err != nil || results[1].Err == nil || results[2].Err != nil || results[2].Response == nil {
			t.Errorf("got %v, %v", results, err)
		}
	})
}

func TestBatchReplyBreaksTheContract(t *testing.T) {
	for name, reply := range map[string][]*result{
		"too few": {itemAnswer("a")}, "too many": {itemAnswer("a"), itemAnswer("b"), itemAnswer("c")}, "no outcome": {itemAnswer("a"), {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				c, _ := start(t, &fake{batch: func(context.Context, *batchRequest) (*batchResponse, error) {
					calls++
					return &batchResponse{Results: reply}, nil
				}})
				results, _ := c.BatchRecordDeliveries(t.Context(), deliveries("a", "b"))
				if err := results[1].Err; status.Code(err) != codes.Internal || !errors.Is(err, client.ErrOutcomeUnknown) || calls != 1 {
					t.Errorf("got %v after %d calls", err, calls)
				}
			})
		})
	}
}
