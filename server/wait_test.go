package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// othersJobs is a store in which others work on jobs: nobody tells this process.
type othersJobs struct {
	job.Worker // panics where it is not overridden

	mu      sync.Mutex
	state   map[string]job.Standing
	looks   int
	asked   int // for how many jobs the latest look was
	resumed int
	broken  error
	// toldAgain: the leases were granted to the same calls, sent before.
	toldAgain bool
	// granted is told of each lease, before its caller is.
	granted   func()
	unclaimed []job.Claimed
}

func (o *othersJobs) Standings(_ context.Context, ids []string) (map[string]job.Standing, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	o.asked = len(ids)
	found := make(map[string]job.Standing)
	for _, id := range ids {
		if s, ok := o.state[id]; ok {
			found[id] = s
		}
	}
	return found, o.broken
}

func (o *othersJobs) Resume(_ context.Context, d job.Delivery) job.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resumed++
	if o.broken != nil {
		return job.Outcome{Err: o.broken}
	}
	s := o.state[d.JobID]
	out := job.Outcome{Record: job.Record{JobID: d.JobID, Work: job.Work{State: s.State, Generation: s.Generation}}}
	switch {
	case s.State == job.StateCompleted:
		out.Verdict.Disposition, out.Record.Work.Result = job.Completed, "the result"
	case s.State == job.StateDead:
		out.Verdict.Disposition = job.Dead
	case s.Free && d.Mode == job.ModeLeased && d.EventUnread == job.UnreadNothing:
		s = job.Standing{State: job.StateLeased, Generation: s.Generation + 1}
		o.state[d.JobID] = s
		out.Verdict.Disposition, out.Verdict.Leased, out.Lease = job.Reclaimed, true, &job.Lease{Token: "t", Generation: s.Generation}
		if !o.toldAgain {
			out.Granted = out.Lease
		}
		if o.granted != nil {
			o.granted()
		}
	case s.State == job.StateLeased && !s.Free:
		out.Verdict.Disposition = job.InProgress
	default:
		out.Verdict.Disposition = job.Pending
	}
	return out
}

func (o *othersJobs) Unclaim(_ context.Context, claims []job.Claimed) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unclaimed = append(o.unclaimed, claims...)
	return nil
}

func (o *othersJobs) set(id string, s job.Standing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state[id] = s
}

var heldOnce = job.Standing{State: job.StateLeased, Generation: 1}

func inProgress(id string) job.Outcome {
	return job.Outcome{
		Record:  job.Record{JobID: id, Work: job.Work{State: heldOnce.State, Generation: heldOnce.Generation}},
		Verdict: job.Verdict{Disposition: job.InProgress},
	}
}

// TestWaits: what a waiting delivery is told, by what becomes of its job after two seconds.
func TestWaits(t *testing.T) {
	leased, queued := job.ModeLeased, job.ModeQueued
	for name, tc := range map[string]struct {
		mode    job.WorkMode
		unread  job.Unread
		becomes job.Standing
		want    job.Disposition
		whole   bool // it waits for as long as it may
	}{
		"completed":           {mode: queued, becomes: job.Standing{State: job.StateCompleted, Generation: 1}, want: job.Completed},
		"dead":                {mode: queued, becomes: job.Standing{State: job.StateDead, Generation: 1}, want: job.Dead},
		"free for it":         {mode: leased, becomes: job.Standing{State: job.StateLeased, Generation: 1, Free: true}, want: job.Reclaimed},
		"given back":          {mode: leased, becomes: job.Standing{State: job.StateQueued, Generation: 1, Free: true}, want: job.Reclaimed},
		"free for others":     {mode: queued, becomes: job.Standing{State: job.StateQueued, Generation: 1, Free: true}, want: job.Pending, whole: true},
		"free, event unread":  {mode: leased, unread: job.UnreadValue, becomes: job.Standing{State: job.StateQueued, Generation: 1, Free: true}, want: job.Pending, whole: true},
		"somebody else's":     {mode: leased, becomes: job.Standing{State: job.StateLeased, Generation: 2}, want: job.InProgress, whole: true},
		"nothing":             {mode: leased, becomes: heldOnce, want: job.InProgress, whole: true},
		"of an unknown state": {mode: queued, becomes: job.Standing{State: job.StateUnknown, Generation: 1}, want: job.Pending, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				jobs := &othersJobs{state: map[string]job.Standing{"j": heldOnce}}
				w := newWaits(jobs, 100, slog.Default(), t.Context())
				time.AfterFunc(2*time.Second, func() { jobs.set("j", tc.becomes) })
				start := time.Now()
				d := &job.Delivery{JobID: "j", Mode: tc.mode, EventUnread: tc.unread}
				o := w.await(t.Context(), d, inProgress("j"), 10*time.Second)
				took := time.Since(start)
				if o.Verdict.Disposition != tc.want || (took == 10*time.Second) != tc.whole || !tc.whole && took > 2*time.Second+pollEvery*2 {
					t.Errorf("got %v after %v", o.Verdict.Disposition, took)
				}
				if jobs.looks > 80 || jobs.resumed > 2 {
					t.Errorf("%d looks, and decided again %d times", jobs.looks, jobs.resumed)
				}
			})
		})
	}
}

// TestWaitsOn: somebody else is faster, and then the store fails: neither is an answer.
func TestWaitsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := &othersJobs{state: map[string]job.Standing{"j": heldOnce}}
		w := newWaits(jobs, 100, slog.New(slog.DiscardHandler), t.Context())
		got := make(chan job.Outcome, 1)
		go func() {
			got <- w.await(t.Context(), &job.Delivery{JobID: "j", Mode: job.ModeLeased}, inProgress("j"), time.Minute)
		}()
		time.Sleep(time.Second)
		w.changed("j") // but somebody has it by now
		jobs.set("j", job.Standing{State: job.StateLeased, Generation: 2})
		time.Sleep(time.Second)
		jobs.mu.Lock()
		jobs.broken, jobs.state["j"] = job.ErrUnavailable, job.Standing{State: job.StateLeased, Generation: 2, Free: true}
		jobs.mu.Unlock()
		time.Sleep(time.Second)
		w.changed("j")
		time.Sleep(time.Second)
		jobs.mu.Lock()
		jobs.broken = nil
		jobs.mu.Unlock()
		if o := <-got; o.Verdict.Disposition != job.Reclaimed || o.Lease.Generation != 3 {
			t.Errorf("got %+v", o)
		}
	})
}

// TestManyWait: half of the calls may wait, on no goroutine but their own, and one look serves them all. The next one is answered
// at once.
func TestManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = DefaultMaxCalls / 2
		jobs := &othersJobs{state: make(map[string]job.Standing)}
		w := newWaits(jobs, DefaultMaxCalls, slog.Default(), t.Context())
		before := runtime.NumGoroutine()
		var calls sync.WaitGroup
		var mu sync.Mutex
		got := make(map[job.Disposition]int)
		for i := range most {
			id := fmt.Sprint("job-", i)
			jobs.state[id] = heldOnce
			calls.Go(func() {
				o := w.await(t.Context(), &job.Delivery{JobID: id, Mode: job.ModeQueued}, inProgress(id), time.Minute)
				mu.Lock()
				defer mu.Unlock()
				got[o.Verdict.Disposition]++
			})
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > most {
			t.Errorf("%d calls wait on %d goroutines", most, n)
		}
		start := time.Now()
		if o := w.await(t.Context(), &job.Delivery{JobID: "job-0"}, inProgress("job-0"), time.Minute); o.Verdict.Disposition != job.InProgress || time.Since(start) != 0 {
			t.Errorf("one too many got %v after %v", o.Verdict.Disposition, time.Since(start))
		}
		time.Sleep(10 * time.Second)
		jobs.mu.Lock()
		if jobs.looks < 8 || jobs.looks > 70 || jobs.asked != most {
			t.Errorf("%d looks in 10 s, the latest for %d jobs", jobs.looks, jobs.asked)
		}
		for i := range most / 2 {
			jobs.state[fmt.Sprint("job-", i)] = job.Standing{State: job.StateCompleted, Generation: 1}
		}
		jobs.mu.Unlock()
		calls.Wait()
		if got[job.Completed] != most/2 || got[job.InProgress] != most/2 {
			t.Errorf("got %v", got)
		}
		if jobs.resumed != most/2 {
			t.Errorf("%d were decided again", jobs.resumed)
		}
		if len(w.byJob)+len(w.each)+w.n != 0 {
			t.Errorf("left behind: %v, %v, %d", w.byJob, w.each, w.n)
		}
	})
}

// TestOneCallerWaits: where callers are configured, one takes a quarter of the room at most.
func TestOneCallerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaits(&othersJobs{}, 16, slog.Default(), t.Context())
		var entered []*follower
		enter := func(caller string, want bool) {
			t.Helper()
			f := w.enter(caller, &job.Delivery{JobID: "j"}, &job.Work{})
			if (f != nil) != want {
				t.Errorf("%s may wait: %t", caller, f != nil)
			}
			if f != nil {
				entered = append(entered, f)
			}
		}
		for range 4 {
			enter("a", true)
		}
		enter("a", false)
		for range 4 {
			enter("b", true)
		}
		enter("c", false) // all is taken
		w.leave("a", "j", entered[0])
		enter("b", false)
		enter("a", true)
		for i, f := range entered[1:] {
			w.leave(map[bool]string{true: "b", false: "a"}[i >= 3 && i < 7], "j", f)
		}
		if len(w.byJob)+len(w.each)+w.n != 0 {
			t.Errorf("left behind: %v, %v, %d", w.byJob, w.each, w.n)
		}
	})
}

// TestGrantedToNobody: a lease that is granted to a caller that has left is given back as if it had not been; one that the same
// call was granted before, which was sent again, is not.
func TestGrantedToNobody(t *testing.T) {
	for name, again := range map[string]bool{"granted": false, "told again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				jobs := &othersJobs{state: map[string]job.Standing{"j": {State: job.StateLeased, Generation: 1, Free: true}}, granted: leave, toldAgain: again}
				w := newWaits(jobs, 16, slog.Default(), t.Context())
				o := w.await(ctx, &job.Delivery{JobID: "j", Mode: job.ModeLeased}, inProgress("j"), time.Minute)
				if o.Verdict.Disposition != job.InProgress {
					t.Errorf("got %+v", o.Verdict)
				}
				var want []job.Claimed
				if !again {
					want = []job.Claimed{{Record: job.Record{JobID: "j"}, Lease: job.Lease{Token: "t", Generation: 2}, Granted: true}}
				}
				if diff := cmp.Diff(want, jobs.unclaimed); diff != "" {
					t.Errorf("given back (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// slowJobs is a store that says who has got the work once the caller has left, or much later.
type slowJobs struct{ *othersJobs }

func (s slowJobs) Resume(ctx context.Context, d job.Delivery) job.Outcome {
	o := s.othersJobs.Resume(ctx, d)
	select {
	case <-ctx.Done():
	case <-time.After(time.Hour):
	}
	return o
}

// TestRightsEndWhileWaiting: a caller whose rights end, and the minute after, while it waits is granted nothing more.
func TestRightsEndWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var token string
		callers := callersOf(t, &token, "- {name: a, token_sha256: SUM, allow: [record], expires: "+time.Now().Add(time.Second).UTC().Format(time.RFC3339)+"}")
		caller, err := callers.Who(t.Context(), auth.Shown{Authorization: []string{"Bearer " + token}})
		testenv.Must(t, err)
		time.Sleep(30 * time.Second)
		jobs := &othersJobs{state: map[string]job.Standing{"j": {State: job.StateLeased, Generation: 1, Free: true}}}
		w := newWaits(slowJobs{jobs}, 16, slog.Default(), t.Context())
		o := w.await(auth.WithCaller(t.Context(), caller), &job.Delivery{JobID: "j", Mode: job.ModeLeased}, inProgress("j"), time.Minute)
		if o.Verdict.Disposition != job.InProgress || len(jobs.unclaimed) != 1 || time.Now().After(caller.Expires.Add(time.Minute)) {
			t.Errorf("at %v got %v, and %d leases were given back", time.Now(), o.Verdict.Disposition, len(jobs.unclaimed))
		}
	})
}

// TestFailingLooks: that how the jobs stand cannot be read is said once, until it can.
func TestFailingLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logBuffer)
		jobs := &othersJobs{state: map[string]job.Standing{"j": heldOnce}}
		w := newWaits(jobs, 16, slog.New(slog.NewJSONHandler(log, nil)), t.Context())
		for i := range 10 {
			time.AfterFunc(time.Duration(i)*time.Second, func() {
				jobs.mu.Lock()
				defer jobs.mu.Unlock()
				if jobs.broken = nil; i%5 > 0 {
					jobs.broken = job.ErrUnavailable
				}
			})
		}
		w.await(t.Context(), &job.Delivery{JobID: "j"}, inProgress("j"), 20*time.Second)
		if lines := log.lines(t, "deliveries wait, and how their jobs stand cannot be read"); len(lines) != 2 || lines[0]["level"] != "WARN" {
			t.Errorf("%d lines: %v", len(lines), lines)
		}
	})
}

// instances are two services in front of one store. The store's clock is moved by hand.
func instances(t *testing.T) (here, there *running, clock *testenv.Clock) {
	jobs, clock := embedded(t)
	return start(t, Config{}, jobs), start(t, Config{}, jobs), clock
}

func waitFor(req *joboncev1.RecordDeliveryRequest, d time.Duration) *joboncev1.RecordDeliveryRequest {
	req.Wait = durationpb.New(d)
	return req
}

// answerTo makes a call that waits, and returns once it does.
func answerTo(t *testing.T, s *running, req *joboncev1.RecordDeliveryRequest) <-chan *joboncev1.RecordDeliveryResponse {
	t.Helper()
	got := make(chan *joboncev1.RecordDeliveryResponse, 1)
	go func() {
		resp, err := s.RecordDelivery(t.Context(), req)
		testenv.OK(t, err)
		got <- resp
	}()
	untilWaiting(s, 1)
	return got
}

// untilWaiting returns once as many calls wait.
func untilWaiting(s *running, n int) {
	w := s.server.waits
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.n
	}
	for count() != n {
		time.Sleep(time.Millisecond)
	}
}

// TestDeliveryWaits: a delivery waits for what becomes of its job, at the instance that it is told and at another one.
func TestDeliveryWaits(t *testing.T) {
	for name, across := range map[string]bool{"one instance": false, "across instances": true} {
		t.Run(name, func(t *testing.T) {
			here, there, clock := instances(t)
			if !across {
				there = here
			}
			rec := must[*joboncev1.RecordDeliveryResponse](t)
			first := rec(here.RecordDelivery(t.Context(), leased("j", "first")))
			waits := answerTo(t, here, waitFor(leased("j", "second"), time.Minute))
			must[*joboncev1.ReleaseWorkResponse](t)(there.work().ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{
				JobId: "j", LeaseToken: first.GetLease().GetToken(), Error: "not today",
			}))
			got := <-waits
			if got.GetDisposition() != joboncev1.Disposition_DISPOSITION_RECLAIMED || !got.GetStartWork() || got.GetDeliveries() != 2 ||
				got.GetLease().GetGeneration() <= first.GetLease().GetGeneration() || got.GetJob().GetPayload() == "" {
				t.Errorf("got %v", got)
			}
			waits = answerTo(t, here, waitFor(queued("j"), time.Minute))
			must[*joboncev1.CompleteWorkResponse](t)(there.work().CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{
				JobId: "j", LeaseToken: got.GetLease().GetToken(), Result: "done",
			}))
			if got := <-waits; got.GetDisposition() != joboncev1.Disposition_DISPOSITION_COMPLETED || got.GetResult() != "done" || got.GetDeliveries() != 3 {
				t.Errorf("got %v", got)
			}
			rec(here.RecordDelivery(t.Context(), leased("lapses", "first")))
			waits = answerTo(t, here, waitFor(leased("lapses", "second"), time.Minute))
			clock.Advance(time.Hour)
			if got := <-waits; got.GetDisposition() != joboncev1.Disposition_DISPOSITION_RECLAIMED || got.GetJob().GetWork().GetAttempts() != 2 {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestDeliveryDoesNotWait: where there is nothing to wait for, or no time.
func TestDeliveryDoesNotWait(t *testing.T) {
	here, _, _ := instances(t)
	rec := must[*joboncev1.RecordDeliveryResponse](t)
	rec(here.RecordDelivery(t.Context(), leased("j", "first")))
	for name, tc := range map[string]struct {
		req  *joboncev1.RecordDeliveryRequest
		want joboncev1.Disposition
	}{
		"first":           {waitFor(queued("new"), time.Minute), joboncev1.Disposition_DISPOSITION_FIRST},
		"the holder":      {waitFor(leased("j", "first"), time.Minute), joboncev1.Disposition_DISPOSITION_FIRST},
		"another event":   {waitFor(text("j", `{"event":"other"}`), time.Minute), joboncev1.Disposition_DISPOSITION_IN_PROGRESS},
		"a short wait":    {waitFor(leased("j", "second"), time.Millisecond), joboncev1.Disposition_DISPOSITION_IN_PROGRESS},
		"no wait":         {waitFor(leased("j", "second"), 0), joboncev1.Disposition_DISPOSITION_IN_PROGRESS},
		"another request": {waitFor(text("plain", ""), time.Minute), joboncev1.Disposition_DISPOSITION_FIRST},
	} {
		if got := rec(here.RecordDelivery(t.Context(), tc.req)); got.GetDisposition() != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := here.RecordDelivery(ctx, waitFor(leased("j", "third"), time.Minute)); err != nil || got.GetDisposition() != joboncev1.Disposition_DISPOSITION_IN_PROGRESS {
		t.Errorf("a wait that is longer than the call: %v, %v", got, err)
	}
	for _, d := range []*durationpb.Duration{durationpb.New(61 * time.Second), durationpb.New(-1), {Nanos: -1, Seconds: 1}} {
		_, err := here.RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j", Wait: d})
		if got := details(t, err); status.Code(err) != codes.InvalidArgument || got.field != "wait" {
			t.Errorf("%v: got %v", d, err)
		}
	}
	resp, err := here.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{
		Deliveries: []*joboncev1.RecordDeliveryRequest{waitFor(text("k", ""), time.Second), waitFor(text("k", ""), 0)},
	})
	testenv.Must(t, err)
	if e := resp.GetResults()[0].GetError(); e.GetReason() != joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD || e.GetField() != "wait" ||
		resp.GetResults()[1].GetResponse().GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST {
		t.Errorf("got %v", resp)
	}
}

// interruptedJobs is a store that lets something happen between granting a lease to a delivery that waits, and saying so.
type interruptedJobs struct {
	*batch.Store
	granted func(context.Context)
}

func (s *interruptedJobs) Resume(ctx context.Context, d job.Delivery) job.Outcome {
	o := s.Store.Resume(ctx, d)
	if o.Granted != nil {
		s.granted(ctx)
	}
	return o
}

// TestCallerLeavesAndComesAgain: a caller leaves while it is granted a lease, and the same call comes again, in whatever way, at
// another instance. The lease that it is told then is not taken back.
func TestCallerLeavesAndComesAgain(t *testing.T) {
	type answer = joboncev1.RecordDeliveryResponse
	for name, again := range map[string]func(*running) (*answer, error){
		"and would wait": func(r *running) (*answer, error) {
			return r.RecordDelivery(t.Context(), waitFor(leased("j", "second"), time.Minute))
		},
		"and does not wait": func(r *running) (*answer, error) { return r.RecordDelivery(t.Context(), leased("j", "second")) },
		"in a batch": func(r *running) (*answer, error) {
			resp, err := r.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{
				Deliveries: []*joboncev1.RecordDeliveryRequest{leased("j", "second")},
			})
			if err != nil {
				return nil, err
			}
			return resp.GetResults()[0].GetResponse(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			jobs, clock := embedded(t)
			interrupted := &interruptedJobs{Store: jobs}
			here, there := start(t, Config{}, interrupted), start(t, Config{}, jobs)
			must[*answer](t)(there.RecordDelivery(t.Context(), leased("j", "first")))
			var got *answer
			ctx, leave := context.WithCancel(t.Context())
			interrupted.granted = func(ctx context.Context) {
				leave()
				<-ctx.Done()
				var err error
				got, err = again(there)
				testenv.OK(t, err)
			}
			waits := make(chan error, 1)
			go func() {
				_, err := here.RecordDelivery(ctx, waitFor(leased("j", "second"), time.Minute))
				waits <- err
			}()
			untilWaiting(here, 1)
			clock.Advance(time.Hour)
			if err := <-waits; status.Code(err) != codes.Canceled {
				t.Errorf("who leaves got %v", err)
			}
			here.stop() // which waits for the first call to end
			testenv.OK(t, <-here.stopped)
			if got.GetDisposition() != joboncev1.Disposition_DISPOSITION_RECLAIMED || !got.GetStartWork() || got.GetJob().GetWork().GetAttempts() != 2 {
				t.Errorf("the second call got %v", got)
			}
			must[*joboncev1.CompleteWorkResponse](t)(there.work().CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{
				JobId: "j", LeaseToken: got.GetLease().GetToken(),
			}))
		})
	}
}

// TestStopEndsWaitingDeliveries: a server that stops keeps nobody waiting.
func TestStopEndsWaitingDeliveries(t *testing.T) {
	here, _, _ := instances(t)
	must[*joboncev1.RecordDeliveryResponse](t)(here.RecordDelivery(t.Context(), leased("j", "first")))
	waits := answerTo(t, here, waitFor(leased("j", "second"), time.Minute))
	here.stop()
	if got := <-waits; got.GetDisposition() != joboncev1.Disposition_DISPOSITION_IN_PROGRESS {
		t.Errorf("got %v", got)
	}
	testenv.OK(t, <-here.stopped)
}

// TestCallerLeaves: nothing is left behind by a caller that does not wait for its answer.
func TestCallerLeaves(t *testing.T) {
	here, _, _ := instances(t)
	must[*joboncev1.RecordDeliveryResponse](t)(here.RecordDelivery(t.Context(), leased("j", "first")))
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := here.RecordDelivery(ctx, waitFor(leased("j", "second"), time.Minute))
		ended <- err
	}()
	untilWaiting(here, 1)
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	untilWaiting(here, 0)
}
