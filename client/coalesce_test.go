package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// crowd is a service that keeps single calls until it is told, so that others pile up behind them, and notes what comes.
type crowd struct {
	let chan struct{} // one for each single call that is to be answered

	mu      sync.Mutex
	singles []string
	batches [][]string
	answer  func(ctx context.Context, req *request) (*response, error)
}

func newCrowd() *crowd {
	return &crowd{let: make(chan struct{}, 1000), answer: func(_ context.Context, req *request) (*response, error) {
		return &response{StartWork: true, Job: &joboncev1.Job{JobId: req.GetJobId(), Work: &joboncev1.Work{}}}, nil
	}}
}

func (c *crowd) fake() *fake {
	f := &fake{}
	f.record = func(ctx context.Context, req *request) (*response, error) {
		c.mu.Lock()
		c.singles = append(c.singles, req.GetJobId())
		c.mu.Unlock()
		select {
		case <-c.let:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return c.answer(ctx, req)
	}
	f.batch = func(ctx context.Context, req *batchRequest) (*batchResponse, error) {
		var ids []string
		for _, d := range req.GetDeliveries() {
			ids = append(ids, d.GetJobId())
		}
		c.mu.Lock()
		c.batches = append(c.batches, ids)
		c.mu.Unlock()
		return (&fake{record: c.answer}).BatchRecordDeliveries(ctx, req)
	}
	return f
}

// hold has four calls under way, which is as many as go out on their own.
func (c *crowd) hold(t *testing.T, cl *client.Client) {
	ctx := context.WithoutCancel(t.Context())
	var held sync.WaitGroup
	for i := range 4 {
		held.Go(func() {
			if _, err := cl.RecordDelivery(ctx, &request{JobId: fmt.Sprint("held-", i)}); err != nil {
				t.Errorf("held: %v", err)
			}
		})
	}
	t.Cleanup(held.Wait)
	synctest.Wait()
	if len(c.singles) != 4 || len(c.batches) != 0 {
		t.Errorf("%d calls and %d batches are under way, want 4 calls", len(c.singles), len(c.batches))
	}
}

func (c *crowd) release() {
	for range 4 {
		c.let <- struct{}{}
	}
}

// outcome is what one caller got.
type outcome struct {
	resp *response
	err  error
}

func call(ctx context.Context, cl *client.Client, req *request) <-chan outcome {
	got := make(chan outcome, 1)
	go func() {
		resp, err := cl.RecordDelivery(ctx, req)
		got <- outcome{resp, err}
	}()
	synctest.Wait()
	return got
}

func TestWhatPilesUpGoesOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		cl, _ := start(t, c.fake())
		c.hold(t, cl)
		var got []<-chan outcome
		for i := range 300 {
			got = append(got, call(t.Context(), cl, &request{JobId: fmt.Sprint("job-", i)}))
		}
		c.release()
		for i, ch := range got {
			if o := <-ch; o.err != nil || o.resp.GetJob().GetJobId() != fmt.Sprint("job-", i) {
				t.Errorf("%d got %v, %v", i, o.resp, o.err)
			}
		}
		if len(c.singles) != 4 || len(c.batches) != 2 || max(len(c.batches[0]), len(c.batches[1])) != 256 {
			t.Errorf("%d calls, %d batches", len(c.singles), len(c.batches))
		}
	})
}

// TestWaitingGoesOutAlone: a wait has no place in a batch, not even one of 0.
func TestWaitingGoesOutAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		cl, _ := start(t, c.fake())
		c.hold(t, cl)
		var got []<-chan outcome
		for i, wait := range []time.Duration{0, 0, time.Second} {
			got = append(got, call(t.Context(), cl, &request{JobId: fmt.Sprint("job-", i), Wait: durationpb.New(wait)}))
		}
		c.release()
		for range got {
			c.let <- struct{}{}
		}
		for _, ch := range got {
			if o := <-ch; o.err != nil {
				t.Error(o.err)
			}
		}
		if len(c.singles) != 7 || len(c.batches) != 0 {
			t.Errorf("%d calls, %d batches; want 7, 0", len(c.singles), len(c.batches))
		}
	})
}

func TestFewCallersSendPlainCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		cl, _ := start(t, c.fake())
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 20 {
					c.let <- struct{}{}
					if _, err := cl.RecordDelivery(t.Context(), &request{JobId: fmt.Sprint(w, "-", i)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if len(c.singles) != 80 || len(c.batches) != 0 {
			t.Errorf("%d calls, %d batches; want 80, 0", len(c.singles), len(c.batches))
		}
	})
}

// TestBatchesAreBoundedInBytes, whatever field has them: what is too much for the service refuses a batch as a whole.
func TestBatchesAreBoundedInBytes(t *testing.T) {
	large := strings.Repeat("x", 3<<19) // 1.5 MiB
	for field, req := range map[string]*request{
		"payload":       {Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: large}},
		"payload_bytes": {Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte(large)}},
		"event":         {Event: large},
		"source":        {Source: large},
	} {
		t.Run(field, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd()
				cl, _ := start(t, c.fake())
				c.hold(t, cl)
				var got []<-chan outcome
				for i := range 5 {
					one := proto.CloneOf(req)
					one.JobId = fmt.Sprint(i)
					got = append(got, call(t.Context(), cl, one))
				}
				c.release()
				c.let <- struct{}{} // the odd one goes out on its own
				for _, ch := range got {
					if o := <-ch; o.err != nil {
						t.Error(o.err)
					}
				}
				if len(c.batches) != 2 || len(c.batches[0]) != 2 || len(c.batches[1]) != 2 || len(c.singles) != 5 {
					t.Errorf("batches %v, %d calls", c.batches, len(c.singles))
				}
			})
		})
	}
}

func TestWithoutBatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		cl, _ := start(t, c.fake(), client.WithoutBatching())
		c.hold(t, cl)
		got := call(t.Context(), cl, &request{JobId: "fifth"})
		if len(c.singles) != 5 {
			t.Errorf("%d calls are under way, want 5", len(c.singles))
		}
		c.release()
		c.let <- struct{}{}
		if o := <-got; o.err != nil {
			t.Error(o.err)
		}
	})
}

func TestEachOfABatchKeepsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		cl, _ := start(t, c.fake())
		c.hold(t, cl)
		early, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		req := &request{JobId: "early", RequestId: "mine"}
		waited := call(early, cl, req)
		patient := call(t.Context(), cl, &request{JobId: "patient"})
		o := <-waited
		var e *client.Error
		if !errors.As(o.err, &e) || e.Code != codes.DeadlineExceeded || e.OutcomeUnknown || e.RequestID != "mine" {
			t.Errorf("waited in vain: %+v", e)
		}
		c.release()
		c.let <- struct{}{} // one that waits alone goes out on its own
		if o := <-patient; o.err != nil {
			t.Error(o.err)
		}
		for _, b := range append(c.batches, c.singles) {
			for _, id := range b {
				if id == "early" {
					t.Error("what its caller gave up before it was sent was sent")
				}
			}
		}
	})
}

func TestLeavingABatchUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		f := c.fake()
		underWay, cancelled := make(chan struct{}), make(chan struct{})
		f.batch = func(ctx context.Context, _ *batchRequest) (*batchResponse, error) {
			close(underWay)
			<-ctx.Done()
			close(cancelled)
			return nil, ctx.Err()
		}
		cl, _ := start(t, f)
		c.hold(t, cl)
		ctx, cancel := context.WithCancel(t.Context())
		other, cancelOther := context.WithCancel(t.Context())
		req := &request{JobId: "a", Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("mine")}}
		a, b := call(ctx, cl, req), call(other, cl, &request{JobId: "b"})
		c.let <- struct{}{}
		<-underWay
		cancel()
		o := <-a
		var e *client.Error
		if !errors.As(o.err, &e) || e.Code != codes.Canceled || !errors.Is(o.err, client.ErrOutcomeUnknown) {
			t.Errorf("left under way: %v", o.err)
		}
		req.GetPayloadBytes()[0] = 'X' // the caller's own again
		synctest.Wait()
		select {
		case <-cancelled:
			t.Error("the batch was cancelled under the other caller")
		default:
		}
		cancelOther()
		<-b
		<-cancelled
		for range 3 {
			c.let <- struct{}{}
		}
		synctest.Wait()
	})
}

func TestErrorsOfABatchAreEachCallersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		tried := map[string][]string{}
		good := c.answer
		c.answer = func(ctx context.Context, req *request) (*response, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			tried[req.GetJobId()] = append(tried[req.GetJobId()], req.GetRequestId())
			switch {
			case req.GetJobId() == "bad":
				return nil, failure(codes.InvalidArgument, "INVALID_FIELD", "no", "event", 0)
			case req.GetJobId() == "again" && len(tried["again"]) == 1:
				return nil, unknown
			}
			return good(ctx, req)
		}
		cl, _ := start(t, c.fake())
		c.hold(t, cl)
		ok, bad, again := call(t.Context(), cl, &request{JobId: "ok"}), call(t.Context(), cl, &request{JobId: "bad"}),
			call(t.Context(), cl, &request{JobId: "again"})
		c.release()
		c.let <- struct{}{} // the second try goes out on its own
		if o := <-ok; o.err != nil {
			t.Errorf("ok: %v", o.err)
		}
		if o := <-bad; !errors.Is(o.err, client.ErrInvalidField) {
			t.Errorf("bad: %v", o.err)
		}
		if o := <-again; o.err != nil {
			t.Errorf("again: %v", o.err)
		}
		if len(tried["ok"]) != 1 || len(tried["bad"]) != 1 || len(tried["again"]) != 2 || tried["again"][0] != tried["again"][1] {
			t.Errorf("tried with request ids %v", tried)
		}
	})
}

// TestBatchedAnswersAreWhole: what a batch's answer lacks is read, and nothing else is.
func TestBatchedAnswersAreWhole(t *testing.T) {
	const completed, reclaimed = joboncev1.Disposition_DISPOSITION_COMPLETED, joboncev1.Disposition_DISPOSITION_RECLAIMED
	for name, test := range map[string]struct {
		answers map[string]*response // what the service answers, by job
		reads   []string             // the jobs that are read, in order
		want    map[string]string    // result or body, by job
	}{
		"results come along": {
			answers: map[string]*response{"a": {Disposition: completed, Result: "here"}, "b": {Disposition: completed}},
			want:    map[string]string{"a": "here", "b": ""},
		},
		"one is left out": {
			answers: map[string]*response{"a": {Disposition: completed, ResultOmitted: true}, "b": {Disposition: completed}},
			reads:   []string{"a"}, want: map[string]string{"a": "read", "b": ""},
		},
		"there are none": {
			answers: map[string]*response{"a": {Disposition: completed}, "b": {Disposition: completed}},
			want:    map[string]string{"a": "", "b": ""},
		},
		"bodies": {
			answers: map[string]*response{
				"a": {Disposition: reclaimed, Job: &joboncev1.Job{Body: &joboncev1.Job_Payload{Payload: "here"}}}, "b": {Disposition: reclaimed},
			},
			reads: []string{"b"}, want: map[string]string{"a": "here", "b": "read"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd()
				first := c.answer
				c.answer = func(ctx context.Context, req *request) (*response, error) {
					answer, ok := test.answers[req.GetJobId()]
					if !ok {
						return first(ctx, req)
					}
					if answer.Job == nil {
						answer.Job = &joboncev1.Job{}
					}
					answer.Job.JobId, answer.Job.Work = req.GetJobId(), &joboncev1.Work{}
					return answer, nil
				}
				f := c.fake()
				var mu sync.Mutex
				var reads []string
				f.get = func(_ context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
					mu.Lock()
					defer mu.Unlock()
					reads = append(reads, req.GetJobId())
					job := &joboncev1.Job{JobId: req.GetJobId(), Work: &joboncev1.Work{Result: "read"}}
					if req.GetView() == joboncev1.JobView_JOB_VIEW_FULL {
						job.Body = &joboncev1.Job_Payload{Payload: "read"}
					}
					return &joboncev1.GetJobResponse{Job: job}, nil
				}
				cl, _ := start(t, f)
				c.hold(t, cl)
				got := map[string]<-chan outcome{"a": call(t.Context(), cl, &request{JobId: "a"}), "b": call(t.Context(), cl, &request{JobId: "b"})}
				c.release()
				for id, ch := range got {
					o := <-ch
					found := o.resp.GetResult() + o.resp.GetJob().GetPayload()
					if o.err != nil || found != test.want[id] || o.resp.GetResult() != o.resp.GetJob().GetWork().GetResult() || o.resp.GetResultOmitted() {
						t.Errorf("%s: %v, %v; want %q", id, o.resp, o.err, test.want[id])
					}
				}
				if slices.Sort(reads); !slices.Equal(reads, test.reads) {
					t.Errorf("read %q, want %q", reads, test.reads)
				}
				if len(c.batches) != 1 {
					t.Errorf("batches %v", c.batches)
				}
			})
		})
	}
}

// TestBatchedAnswersAreWholeForThoseWhoRecord: a caller that may record, and not read jobs, is told by a call of its own what the
// batch's answer lacks.
func TestBatchedAnswersAreWholeForThoseWhoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		f := c.fake()
		alone := f.record
		f.record = func(ctx context.Context, req *request) (*response, error) {
			if strings.HasPrefix(req.GetJobId(), "held") {
				return alone(ctx, req)
			}
			return &response{Disposition: joboncev1.Disposition_DISPOSITION_RECLAIMED, Job: &joboncev1.Job{
				JobId: req.GetJobId(), Body: &joboncev1.Job_Payload{Payload: "of " + req.GetRequestId()},
			}}, nil
		}
		c.answer = func(_ context.Context, req *request) (*response, error) {
			return &response{Disposition: joboncev1.Disposition_DISPOSITION_RECLAIMED, Job: &joboncev1.Job{JobId: req.GetJobId()}}, nil
		}
		f.get = func(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			return nil, status.Error(codes.PermissionDenied, "may not read bodies")
		}
		cl, _ := start(t, f)
		c.hold(t, cl)
		one, two := call(t.Context(), cl, &request{JobId: "a", RequestId: "one"}), call(t.Context(), cl, &request{JobId: "b", RequestId: "two"})
		c.release()
		for want, got := range map[string]<-chan outcome{"of one": one, "of two": two} {
			if o := <-got; o.err != nil || o.resp.GetJob().GetPayload() != want {
				t.Errorf("got %v, %v; want %q", o.resp, o.err, want)
			}
		}
		if len(c.batches) != 1 {
			t.Errorf("batches %v", c.batches)
		}
	})
}

// TestLoneWaiterIsAnsweredInFull: one that waited alone goes out in a single call, whose answer lacks nothing.
func TestLoneWaiterIsAnsweredInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		f := c.fake()
		f.get = func(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			t.Error("the job is read")
			return &joboncev1.GetJobResponse{}, nil
		}
		cl, _ := start(t, f)
		c.hold(t, cl)
		c.answer = func(context.Context, *request) (*response, error) {
			return &response{Disposition: joboncev1.Disposition_DISPOSITION_COMPLETED, Job: &joboncev1.Job{Work: &joboncev1.Work{}}}, nil
		}
		alone := call(t.Context(), cl, &request{JobId: "a"})
		c.release()
		c.let <- struct{}{}
		if o := <-alone; o.err != nil {
			t.Error(o.err)
		}
	})
}

// TestMetadataGoesWithItsCall: a call that has metadata of its own is no part of a batch, which could not carry it.
func TestMetadataGoesWithItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		c.answer = func(ctx context.Context, req *request) (*response, error) {
			if got := metadata.ValueFromIncomingContext(ctx, "x-trace"); !slices.Equal(got, []string{req.GetJobId()}) && req.GetEvent() != "" {
				t.Errorf("%s came with %q", req.GetJobId(), got)
			}
			return &response{StartWork: true}, nil
		}
		cl, _ := start(t, c.fake())
		c.hold(t, cl)
		var got []<-chan outcome
		for i := range 10 {
			ctx, req := t.Context(), &request{JobId: fmt.Sprint("job-", i)}
			if i%2 == 0 {
				ctx, req.Event = metadata.AppendToOutgoingContext(ctx, "x-trace", req.GetJobId()), "traced"
			}
			got = append(got, call(ctx, cl, req))
		}
		for range 9 {
			c.let <- struct{}{}
		}
		for _, g := range got {
			if o := <-g; o.err != nil {
				t.Error(o.err)
			}
		}
		if len(c.singles) != 9 || len(c.batches) != 1 || len(c.batches[0]) != 5 {
			t.Errorf("single calls %q, batches %q", c.singles, c.batches)
		}
	})
}

// TestFailureAfterABatchedAnswer: when what an answer lacks cannot be read, the delivery is recorded all the same, and the
// error must not say otherwise, whatever it is.
func TestFailureAfterABatchedAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		disposition joboncev1.Disposition
		failure     error
	}{
		"completed, refused": {joboncev1.Disposition_DISPOSITION_COMPLETED, failure(codes.Unavailable, "STORE_UNAVAILABLE", "away", "", 0)},
		"reclaimed, refused": {joboncev1.Disposition_DISPOSITION_RECLAIMED, failure(codes.Unavailable, "STORE_UNAVAILABLE", "away", "", 0)},
		"reclaimed, too large": {
			joboncev1.Disposition_DISPOSITION_RECLAIMED, failure(codes.FailedPrecondition, "PAYLOAD_TOO_LARGE", "too large", "", 0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				crowd := newCrowd()
				crowd.answer = func(_ context.Context, req *request) (*response, error) {
					return &response{
						Disposition: c.disposition, Job: &joboncev1.Job{JobId: req.GetJobId(), Work: &joboncev1.Work{}}, ResultOmitted: true,
					}, nil
				}
				f := crowd.fake()
				f.get = func(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
					return nil, c.failure
				}
				cl, _ := start(t, f, client.WithoutRetry())
				crowd.hold(t, cl)
				one, two := call(t.Context(), cl, &request{JobId: "one"}), call(t.Context(), cl, &request{JobId: "two"})
				crowd.release()
				for _, got := range []<-chan outcome{one, two} {
					if o := <-got; !errors.Is(o.err, client.ErrOutcomeUnknown) {
						t.Errorf("the delivery is recorded, and the error says that it is not: %v", o.err)
					}
				}
			})
		})
	}
}
