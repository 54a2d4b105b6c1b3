package storetest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// standings: one look tells how many jobs stand, and says nothing of those that are not there.
func standings(t *testing.T, e Env) {
	record(t, e.Store, input("untracked", ""))
	record(t, e.Store, queued("queued", ""))
	done := record(t, e.Store, leased("done", ""))
	testenv.Must(t, job.Complete(t.Context(), e.Store, "done", done.Lease.Token, "result"))
	dead := record(t, e.Store, leased("dead", ""))
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "dead", dead.Lease.Token, job.Release{Dead: true}))
	delayed := record(t, e.Store, leased("delayed", ""))
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "delayed", delayed.Lease.Token, job.Release{Delay: time.Second}))
	held := record(t, e.Store, leased("held", ""))
	want := map[string]job.Standing{
		"untracked": {State: job.StateUntracked},
		"queued":    {State: job.StateQueued, Generation: get(t, e.Store, "queued").Work.Generation, Free: true},
		"done":      {State: job.StateCompleted, Generation: done.Lease.Generation},
		"dead":      {State: job.StateDead, Generation: dead.Lease.Generation},
		"delayed":   {State: job.StateQueued, Generation: delayed.Lease.Generation},
		"held":      {State: job.StateLeased, Generation: held.Lease.Generation},
	}
	ids := []string{"absent"}
	for id := range maps.Keys(want) {
		ids = append(ids, id)
	}
	look := func() {
		t.Helper()
		got, err := e.Store.Standings(t.Context(), ids)
		testenv.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	look()
	e.Clock.Advance(time.Hour)
	for _, id := range []string{"delayed", "held"} {
		s := want[id]
		s.Free = true
		want[id] = s
	}
	look()
	if got, err := e.Store.Standings(t.Context(), []string{"absent"}); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Store.Standings(ended, ids); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("cancelled: %v", err)
	}
	testenv.Must(t, e.Store.Close())
	if _, err := e.Store.Standings(t.Context(), ids); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

// resume: a delivery is decided again as if it came again, and neither it nor its conflict is counted.
func resume(t *testing.T, e Env) {
	first := record(t, e.Store, leased("j", "first"))
	late := leased("j", "late")
	late.Body.Data += " " // a conflict of bodies
	wants := func(in job.Input, want job.Disposition) job.Outcome {
		t.Helper()
		o := e.Store.Resume(t.Context(), check(t, in))
		if o.Err != nil || o.Verdict.Disposition != want || o.Record.Deliveries != 2 || o.Record.Conflicts != 1 {
			t.Fatalf("got %v of %d deliveries and %d conflicts, %v; want %v", o.Verdict.Disposition, o.Record.Deliveries, o.Record.Conflicts, o.Err, want)
		}
		return o
	}
	record(t, e.Store, late)
	wants(late, job.InProgress)
	wants(leased("j", "first"), job.First) // the holder
	e.Clock.Advance(time.Hour)
	asks := queued("j", "asks")
	wants(asks, job.Pending)
	o := wants(late, job.Reclaimed)
	lease := wantLease(t, o, e)
	if lease.Generation <= first.Lease.Generation || o.Record.Body.Data == "" || !o.Verdict.StartWork {
		t.Errorf("got %+v", o)
	}
	if again := wants(late, job.Reclaimed); again.Lease == nil || again.Lease.Token != lease.Token {
		t.Errorf("the holder got %+v", again)
	}
	wants(asks, job.InProgress)
	testenv.Must(t, job.Complete(t.Context(), e.Store, "j", lease.Token, "the result"))
	if o := wants(late, job.Completed); o.Record.Work.Result != "the result" || o.Lease != nil {
		t.Errorf("got %+v", o)
	}
	if o := e.Store.Resume(t.Context(), check(t, input("absent", "r"))); !errors.Is(o.Err, job.ErrNotFound) {
		t.Errorf("absent: %v", o.Err)
	}
	testenv.Must(t, e.Store.Close())
	if o := e.Store.Resume(t.Context(), check(t, late)); !errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("closed: %v", o.Err)
	}
}

// givenBackUnheard: a lease that a delivery was granted while it waited can be given back when its caller has left, but not once
// the same call, sent again, was told of it.
func givenBackUnheard(t *testing.T, e Env) {
	for name, again := range map[string]func(d job.Delivery) job.Outcome{
		"nobody was told": nil,
		"recorded again":  func(d job.Delivery) job.Outcome { return e.Store.Record(t.Context(), []job.Delivery{d})[0] },
		"waited again":    func(d job.Delivery) job.Outcome { return e.Store.Resume(t.Context(), d) },
	} {
		t.Run(name, func(t *testing.T) {
			record(t, e.Store, leased(name, "first"))
			d := check(t, leased(name, "late"))
			if o := e.Store.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil || o.Granted != nil {
				t.Fatalf("got %+v", o)
			}
			e.Clock.Advance(time.Hour)
			o := e.Store.Resume(t.Context(), d)
			if o.Err != nil || o.Lease == nil || o.Granted == nil || o.Granted.Token != o.Lease.Token {
				t.Fatalf("got %+v", o)
			}
			want := job.StateQueued
			if again != nil {
				want = job.StateLeased
				told := again(d)
				if told.Err != nil || told.Lease == nil || told.Lease.Token != o.Lease.Token || told.Granted != nil {
					t.Fatalf("again: got %+v", told)
				}
			}
			testenv.Must(t, e.Store.Unclaim(t.Context(), []job.Claimed{{Record: job.Record{JobID: name}, Lease: *o.Granted, Granted: true}}))
			work := get(t, e.Store, name).Work
			if attempts := map[job.WorkState]int32{job.StateQueued: 1, job.StateLeased: 2}[want]; work.State != want || work.Attempts != attempts {
				t.Errorf("the work is %v after %d attempts; want %v after %d", work.State, work.Attempts, want, attempts)
			}
			if want == job.StateLeased {
				_, err := job.Renew(t.Context(), e.Store, name, o.Lease.Token, lease)
				testenv.Must(t, err)
			}
		})
	}
}

// raceToResume: of many deliveries that wait for work, one gets it.
func raceToResume(t *testing.T, e Env) {
	const n = 20
	record(t, e.Store, leased("j", "first"))
	var waiting []job.Delivery
	for i := range n {
		in := leased("j", "late"+string(rune('a'+i)))
		record(t, e.Store, in)
		waiting = append(waiting, check(t, in))
	}
	e.Clock.Advance(time.Hour)
	outcomes := make(chan job.Outcome, n)
	for _, d := range waiting {
		go func() { outcomes <- e.Store.Resume(t.Context(), d) }()
	}
	granted := 0
	for range n {
		switch o := <-outcomes; {
		case o.Err != nil:
			t.Error(o.Err)
		case o.Verdict.Disposition == job.Reclaimed && o.Lease != nil:
			granted++
		case o.Verdict.Disposition != job.InProgress:
			t.Errorf("got %v", o.Verdict.Disposition)
		}
	}
	if granted != 1 {
		t.Errorf("the work was granted %d times", granted)
	}
}
