package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

const lease = LeaseTime

// leased is a delivery that asks for a lease, queued one whose work is for workers.
func leased(jobID, requestID string) job.Input {
	in := input(jobID, requestID)
	d := lease
	in.Mode, in.Lease = job.ModeLeased, &d
	return in
}

func queued(jobID, requestID string) job.Input {
	in := input(jobID, requestID)
	in.Mode = job.ModeQueued
	return in
}

func claim(t *testing.T, s job.Store, requestID string, n int, events ...string) []job.Claimed {
	t.Helper()
	got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: requestID, Max: n, Lease: lease, Events: events, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return got
}

// wantLease checks that an outcome carries a lease that runs for the usual time, and returns it.
func wantLease(t *testing.T, o job.Outcome, e Env) job.Lease {
	t.Helper()
	if o.Lease == nil {
		t.Fatal("no lease")
	}
	checkLease(t, *o.Lease, e)
	return *o.Lease
}

func checkLease(t *testing.T, l job.Lease, e Env) {
	t.Helper()
	if want := job.Millis(e.Clock.Now().Add(lease)); l.Token == "" || l.Generation == 0 || !l.Expires.Equal(want) {
		t.Errorf("lease %+v, want one until %v", l, want)
	}
	if l.Remaining <= lease-time.Millisecond || l.Remaining > lease {
		t.Errorf("remaining %v, want about %v", l.Remaining, lease)
	}
}

func state(t *testing.T, s job.Store, jobID string) job.Work {
	t.Helper()
	return get(t, s, jobID).Work
}

func wantState(t *testing.T, s job.Store, jobID string, want job.WorkState, attempts int32) job.Work {
	t.Helper()
	w := state(t, s, jobID)
	if w.State != want || w.Attempts != attempts {
		t.Errorf("%s: state %d after %d attempts, want %d after %d", jobID, w.State, w.Attempts, want, attempts)
	}
	if settled := want == job.StateCompleted || want == job.StateDead; settled != w.Due.IsZero() {
		t.Errorf("%s: due %v in state %d", jobID, w.Due, want)
	}
	return w
}

func leasedLife(t *testing.T, e Env) {
	o := record(t, e.Store, leased("j", "r1"))
	want(t, o, job.First, true, true, 1)
	l := wantLease(t, o, e)

	other := record(t, e.Store, leased("j", "r2"))
	want(t, other, job.InProgress, false, false, 2)
	if other.Lease != nil || !other.Record.Work.Due.Equal(l.Expires) {
		t.Errorf("to another: lease %+v, holder until %v; want none, %v", other.Lease, other.Record.Work.Due, l.Expires)
	}
	e.Clock.Advance(time.Second)
	again := record(t, e.Store, leased("j", "r1")) // its answer was lost
	want(t, again, job.First, true, true, 3)
	if again.Lease == nil || again.Lease.Token != l.Token || again.Lease.Generation != l.Generation ||
		!again.Lease.Expires.Equal(l.Expires) || again.Lease.Remaining >= l.Remaining {
		t.Errorf("replayed lease %+v, first %+v", again.Lease, l)
	}
	testenv.Must(t, job.Complete(t.Context(), e.Store, "j", l.Token, "done"))
	for i, in := range []job.Input{leased("j", "r1"), leased("j", "r2"), queued("j", "r3"), input("j", "r4")} {
		o := record(t, e.Store, in)
		want(t, o, job.Completed, false, i == 0, int64(4+i))
		if o.Record.Work.Result != "done" || o.Lease != nil {
			t.Errorf("after completion: %+v, lease %+v", o.Record.Work, o.Lease)
		}
	}
	wantState(t, e.Store, "j", job.StateCompleted, 1)
}

func lapsedLeaseIsReclaimed(t *testing.T, e Env) {
	first := wantLease(t, record(t, e.Store, leased("j", "r1")), e)
	e.Clock.Advance(lease - time.Second)
	want(t, record(t, e.Store, leased("j", "r2")), job.InProgress, false, false, 2)
	e.Clock.Advance(time.Second)
	want(t, record(t, e.Store, input("j", "r3")), job.Pending, false, false, 3)
	want(t, record(t, e.Store, queued("j", "r4")), job.Pending, false, false, 4)

	other := leased("j", "r5")
	other.Body.Data += " " // it differs, and is flagged; the stored event counts
	o := record(t, e.Store, other)
	want(t, o, job.Reclaimed, true, false, 5)
	second := wantLease(t, o, e)
	if second.Token == first.Token || second.Generation <= first.Generation {
		t.Errorf("second lease %+v after %+v", second, first)
	}
	if o.Record.Body != leased("j", "").Body {
		t.Errorf("the reclaimed job comes with body %+v", o.Record.Body)
	}
	replay := record(t, e.Store, other)
	want(t, replay, job.Reclaimed, true, false, 6)
	if replay.Lease == nil || replay.Lease.Token != second.Token || replay.Record.Body != o.Record.Body {
		t.Errorf("replay of the reclaim: %+v", replay)
	}
	want(t, record(t, e.Store, leased("j", "r5")), job.InProgress, false, false, 7) // same id, other body
	want(t, record(t, e.Store, leased("j", "r1")), job.InProgress, false, true, 8)  // the creator, too late

	// The first holder is fenced.
	lost(t, "Renew", func() error { _, err := job.Renew(t.Context(), e.Store, "j", first.Token, lease); return err })
	lost(t, "Complete", func() error { return job.Complete(t.Context(), e.Store, "j", first.Token, "") })
	lost(t, "Release", func() error { return job.GiveBack(t.Context(), e.Store, "j", first.Token, job.Release{}) })
	wantState(t, e.Store, "j", job.StateLeased, 2)
}

func lost(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := f(); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("%s: %v, want ErrLeaseLost", what, err)
	}
}

func lapsedLeaseStillHolds(t *testing.T, e Env) {
	for _, op := range []string{"renew", "complete", "release"} {
		l := wantLease(t, record(t, e.Store, leased(op, "")), e)
		e.Clock.Advance(2 * lease)
		var err error
		switch op {
		case "renew":
			var renewed job.Lease
			renewed, err = job.Renew(t.Context(), e.Store, op, l.Token, lease)
			checkLease(t, renewed, e)
			if renewed.Generation != l.Generation || renewed.Token != l.Token {
				t.Errorf("renewed %+v to %+v", l, renewed)
			}
			want(t, record(t, e.Store, leased(op, "")), job.InProgress, false, false, 2)
		case "complete":
			err = job.Complete(t.Context(), e.Store, op, l.Token, "")
		case "release":
			err = job.GiveBack(t.Context(), e.Store, op, l.Token, job.Release{})
		}
		if err != nil {
			t.Errorf("%s after the lease lapsed: %v", op, err)
		}
	}
}

func repeatedOperations(t *testing.T, e Env) {
	token := func(id string) string { return wantLease(t, record(t, e.Store, leased(id, "")), e).Token }
	ctx := t.Context()

	done := token("complete")
	for _, result := range []string{"first", "second"} {
		if err := job.Complete(ctx, e.Store, "complete", done, result); err != nil {
			t.Errorf("Complete: %v", err)
		}
	}
	if w := wantState(t, e.Store, "complete", job.StateCompleted, 1); w.Result != "first" {
		t.Errorf("the result is %q, want the first", w.Result)
	}
	lost(t, "Renew a completed job", func() error { _, err := job.Renew(ctx, e.Store, "complete", done, lease); return err })
	lost(t, "Release a completed job", func() error { return job.GiveBack(ctx, e.Store, "complete", done, job.Release{}) })

	back := token("release")
	if err := job.GiveBack(ctx, e.Store, "release", back, job.Release{Delay: time.Hour, Error: "why"}); err != nil {
		t.Errorf("Release: %v", err)
	}
	due := state(t, e.Store, "release").Due
	e.Clock.Advance(time.Minute)
	if err := job.GiveBack(ctx, e.Store, "release", back, job.Release{Error: "again"}); err != nil {
		t.Errorf("Release again: %v", err)
	}
	if w := wantState(t, e.Store, "release", job.StateQueued, 1); w.Error != "why" || !w.Due.Equal(due) {
		t.Errorf("the repeated release changed %+v", w)
	}
	lost(t, "Complete a released job", func() error { return job.Complete(ctx, e.Store, "release", back, "") })

	dead := token("dead")
	for range 2 {
		if err := job.GiveBack(ctx, e.Store, "dead", dead, job.Release{Dead: true, Error: "hopeless"}); err != nil {
			t.Errorf("Release dead: %v", err)
		}
	}
	if w := wantState(t, e.Store, "dead", job.StateDead, 1); w.Error != "hopeless" {
		t.Errorf("dead with %+v", w)
	}
	want(t, record(t, e.Store, leased("dead", "")), job.Dead, false, false, 2)

	for _, id := range []string{"absent", ""} {
		if err := job.Complete(ctx, e.Store, id, done, ""); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("Complete %q: %v", id, err)
		}
	}
	record(t, e.Store, input("untracked", ""))
	for _, tok := range []string{done, ""} {
		lost(t, "Complete an untracked job", func() error { return job.Complete(ctx, e.Store, "untracked", tok, "") })
	}
}

func notStarted(t *testing.T, e Env) {
	first := wantLease(t, record(t, e.Store, leased("j", "r1")), e)
	for range 2 { // the repetition changes nothing
		testenv.Must(t, job.GiveBack(t.Context(), e.Store, "j", first.Token, job.Release{NotStarted: true}))
		if w := wantState(t, e.Store, "j", job.StateQueued, 0); w.Generation != first.Generation || !w.Due.Equal(job.Millis(e.Clock.Now())) {
			t.Errorf("not started: %+v", w)
		}
	}
	next := claim(t, e.Store, "c", 1)
	if len(next) != 1 || next[0].Record.Work.Attempts != 1 || next[0].Lease.Generation <= first.Generation {
		t.Errorf("claimed %+v after generation %d", next, first.Generation)
	}
	lost(t, "GiveBack", func() error {
		return job.GiveBack(t.Context(), e.Store, "j", first.Token, job.Release{NotStarted: true})
	})
}

// manyChanges makes changes of every kind at once: each is decided by itself, and one with the token of another before it
// sees what that did.
func manyChanges(t *testing.T, e Env) {
	token := func(id string) string { return wantLease(t, record(t, e.Store, leased(id, "")), e).Token }
	a, b, c, d := token("a"), token("b"), token("c"), token("d")
	e.Clock.Advance(time.Second)
	out := e.Store.ChangeLeases(t.Context(), []job.LeaseChange{
		job.RenewLease("a", a, 2*lease), job.CompleteWork("b", b, "done"), job.ReleaseWork("c", c, job.Release{NotStarted: true}),
		job.CompleteWork("d", a, "not its token"), job.CompleteWork("absent", a, ""), job.CompleteWork("a", a, "after its renewal"),
		job.RenewLease("b", b, lease), job.CompleteWork("b", b, "again"), job.ReleaseWork("d", d, job.Release{Dead: true, Error: "why"}),
	})
	for i, want := range []error{nil, nil, nil, job.ErrLeaseLost, job.ErrNotFound, nil, job.ErrLeaseLost, nil, nil} {
		err := out[i].Err
		if i == 4 && errors.Is(err, job.ErrOutcomeUnknown) { // among others it may have been done, before the job was deleted
			err = job.Complete(t.Context(), e.Store, "absent", a, "")
		}
		if !errors.Is(err, want) {
			t.Errorf("change %d: %v, want %v", i, err, want)
		}
	}
	if l := out[0].Lease; l.Token != a || l.Remaining <= lease || l.Remaining > 2*lease {
		t.Errorf("renewed to %+v", l)
	}
	for id, want := range map[string]job.WorkState{"a": job.StateCompleted, "b": job.StateCompleted, "c": job.StateQueued, "d": job.StateDead} {
		if w := state(t, e.Store, id); w.State != want {
			t.Errorf("%s is %v, want %v", id, w.State, want)
		}
	}
	if w := state(t, e.Store, "b"); w.Result != "done" {
		t.Errorf("b has the result %q", w.Result)
	}
	if out := e.Store.ChangeLeases(t.Context(), nil); len(out) != 0 {
		t.Errorf("no changes have %d outcomes", len(out))
	}
}

func releasedWorkWaits(t *testing.T, e Env) {
	l := wantLease(t, record(t, e.Store, leased("j", "r1")), e)
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "j", l.Token, job.Release{Delay: time.Hour}))
	want(t, record(t, e.Store, leased("j", "r2")), job.Pending, false, false, 2)
	want(t, record(t, e.Store, leased("j", "r1")), job.First, false, true, 3)
	if got := claim(t, e.Store, "c1", 5); len(got) != 0 {
		t.Errorf("claimed %d before it was due", len(got))
	}
	e.Clock.Advance(time.Hour)
	o := record(t, e.Store, leased("j", "r2"))
	want(t, o, job.Reclaimed, true, false, 4)
	if next := wantLease(t, o, e); next.Generation <= l.Generation {
		t.Errorf("generation %d after %d", next.Generation, l.Generation)
	}
}

func otherEventNeverClaims(t *testing.T, e Env) {
	other := func(id, request string) job.Input {
		in := leased(id, request)
		in.Status, in.Body = "ERROR", job.Body{}
		return in
	}
	record(t, e.Store, leased("leased", "r1"))
	record(t, e.Store, queued("queued", "r1"))
	e.Clock.Advance(2 * lease)
	for _, id := range []string{"leased", "queued"} {
		o := record(t, e.Store, other(id, "r2"))
		want(t, o, job.Pending, false, false, 2)
		if o.Verdict.Conflict == nil || o.Verdict.Conflict.Kind != job.ConflictEvent || o.Lease != nil {
			t.Errorf("%s: conflict %+v, lease %+v", id, o.Verdict.Conflict, o.Lease)
		}
		if r := get(t, e.Store, id); r.Conflicts != 1 || r.Status != "OK" {
			t.Errorf("%s: %d conflicts, status %s", id, r.Conflicts, r.Status)
		}
	}
}

// grantedAndLapses: beside when work is due the store keeps how far ahead that was set, and how many holders in a row
// were not heard of again.
func grantedAndLapses(t *testing.T, e Env) {
	wantKept := func(what string, granted time.Duration, lapses int32) {
		t.Helper()
		if w := state(t, e.Store, "j"); w.Granted != granted || w.Lapses != lapses {
			t.Errorf("%s: granted %v after %d lapses, want %v after %d", what, w.Granted, w.Lapses, granted, lapses)
		}
	}
	record(t, e.Store, queued("j", "r1"))
	wantKept("queued", 0, 0)
	claim(t, e.Store, "c1", 1)
	wantKept("claimed", lease, 0)
	e.Clock.Advance(lease)
	o := record(t, e.Store, leased("j", "r2"))
	want(t, o, job.Reclaimed, true, false, 2)
	wantKept("reclaimed", lease, 1)
	if _, err := job.Renew(t.Context(), e.Store, "j", o.Lease.Token, 2*lease); err != nil {
		t.Fatal(err)
	}
	wantKept("renewed", 2*lease, 1)
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "j", o.Lease.Token, job.Release{Delay: time.Hour}))
	wantKept("released", time.Hour, 0)
	e.Clock.Advance(time.Hour)
	c := claim(t, e.Store, "c2", 1)
	testenv.Must(t, job.Complete(t.Context(), e.Store, "j", c[0].Lease.Token, ""))
	wantKept("completed", 0, 0)
}
