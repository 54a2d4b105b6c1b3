package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wrongState wants an error that says how the state forbids it, with the text in it.
func wrongState(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, job.ErrWrongState) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want ErrWrongState that says %q", err, text)
	}
}

func requeue(t *testing.T, e Env, q job.Requeue) (job.Record, bool) {
	t.Helper()
	r, changed, err := e.Store.Requeue(t.Context(), q)
	if err != nil {
		t.Fatalf("Requeue %+v: %v", q, err)
	}
	return r, changed
}

// asRead is the job as it stands, for whoever changes it.
func asRead(t *testing.T, e Env, jobID string) job.Expected {
	t.Helper()
	r := get(t, e.Store, jobID)
	return job.ExpectedOf(&r)
}

// inState brings a job into a state.
func inState(t *testing.T, e Env, id string, state job.WorkState) (token string) {
	t.Helper()
	switch state {
	case job.StateUntracked:
		record(t, e.Store, input(id, "r"))
		return ""
	case job.StateQueued:
		record(t, e.Store, queued(id, "r"))
		return ""
	}
	token = record(t, e.Store, leased(id, "r")).Lease.Token
	switch state {
	case job.StateCompleted:
		testenv.Must(t, job.Complete(t.Context(), e.Store, id, token, "the result"))
	case job.StateDead:
		testenv.Must(t, job.GiveBack(t.Context(), e.Store, id, token, job.Release{Dead: true, Error: "hopeless"}))
	}
	return token
}

func requeued(t *testing.T, e Env) {
	for _, c := range []struct {
		name  string
		state job.WorkState
		lapse bool
		force bool
		want  string // how the state forbids it; empty when it does not
	}{
		{name: "completed", state: job.StateCompleted},
		{name: "dead", state: job.StateDead},
		{name: "lapsed", state: job.StateLeased, lapse: true},
		{name: "running", state: job.StateLeased, want: "a lease runs"},
		{name: "running, by force", state: job.StateLeased, force: true},
		{name: "untracked", state: job.StateUntracked, force: true, want: "not tracked"},
	} {
		token := inState(t, e, c.name, c.state)
		if e.Clock.Advance(time.Second); c.lapse {
			e.Clock.Advance(2 * lease)
		}
		q := job.Requeue{Expected: asRead(t, e, c.name), Force: c.force}
		if c.want != "" {
			_, _, err := e.Store.Requeue(t.Context(), q)
			wrongState(t, err, c.want)
			continue
		}
		before := get(t, e.Store, c.name)
		r, changed := requeue(t, e, q)
		now := job.Millis(e.Clock.Now())
		w := wantState(t, e.Store, c.name, job.StateQueued, 0)
		if !changed || w.Requeues != 1 || w.Lapses != 0 || w.Result != "" || !w.Due.Equal(now) || w.Generation != before.Work.Generation ||
			r.Work.Requeues != 1 || r.JobID != c.name || r.Body != (job.Body{}) {
			t.Errorf("%s: changed %t, stored %+v, returned %+v", c.name, changed, w, r)
		}
		// Its answer was lost.
		e.Clock.Advance(time.Second)
		if r, changed := requeue(t, e, q); changed || r.Work.Requeues != 1 || !r.Work.Due.Equal(now) {
			t.Errorf("%s: repeated: changed %t, %+v", c.name, changed, r.Work)
		}
		lost(t, "Complete", func() error { return job.Complete(t.Context(), e.Store, c.name, token, "late") })
		claimed := claim(t, e.Store, "claim of "+c.name, 10)
		if len(claimed) != 1 || claimed[0].Record.JobID != c.name || claimed[0].Lease.Generation <= before.Work.Generation ||
			claimed[0].Record.Body != before.Body {
			t.Errorf("%s: claimed %+v", c.name, claimed)
		}
		e.Clock.Advance(time.Second)
		_, _, err := e.Store.Requeue(t.Context(), q)
		wrongState(t, err, "moved on")
		for _, held := range claimed {
			testenv.Must(t, job.Complete(t.Context(), e.Store, held.Record.JobID, held.Lease.Token, ""))
		}
	}
	_, _, err := e.Store.Requeue(t.Context(), job.Requeue{Expected: job.Expected{JobID: "absent"}})
	if !errors.Is(err, job.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
}

// requeuedWaiting: what waits for its next attempt is due at once, and what is due already stays as it is.
func requeuedWaiting(t *testing.T, e Env) {
	record(t, e.Store, queued("fresh", "r"))
	if _, changed := requeue(t, e, job.Requeue{Expected: asRead(t, e, "fresh")}); changed {
		t.Error("fresh work was changed")
	}
	token := inState(t, e, "waits", job.StateLeased)
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "waits", token, job.Release{Delay: time.Hour, Error: "not now"}))
	e.Clock.Advance(time.Second)
	r, changed := requeue(t, e, job.Requeue{Expected: asRead(t, e, "waits")})
	if !changed || r.Work.Attempts != 0 || r.Work.Requeues != 1 || !r.Work.Due.Equal(job.Millis(e.Clock.Now())) {
		t.Errorf("changed %t, %+v", changed, r.Work)
	}
	stale := job.Requeue{Expected: asRead(t, e, "waits")}
	stale.FirstSeen = stale.FirstSeen.Add(-time.Millisecond)
	_, _, err := e.Store.Requeue(t.Context(), stale)
	wrongState(t, err, "another one")
}

// movedOn: work that was settled, given back or requeued since it was read is left alone, though its generation is the same; unless
// nobody says in which state it was.
func movedOn(t *testing.T, e Env) {
	type step struct {
		from, to job.WorkState
		move     func(id, token string) error
	}
	ctx := t.Context()
	giveBack := func(r job.Release) func(id, token string) error {
		return func(id, token string) error { return job.GiveBack(ctx, e.Store, id, token, r) }
	}
	again := func(id, _ string) error {
		_, _, err := e.Store.Requeue(ctx, job.Requeue{Expected: asRead(t, e, id)})
		return err
	}
	for _, c := range []step{
		{job.StateLeased, job.StateCompleted, func(id, token string) error { return job.Complete(ctx, e.Store, id, token, "done") }},
		{job.StateLeased, job.StateQueued, giveBack(job.Release{Delay: time.Hour, Error: "not now"})},
		{job.StateLeased, job.StateDead, giveBack(job.Release{Dead: true, Error: "hopeless"})},
		{job.StateCompleted, job.StateQueued, again},
		{job.StateDead, job.StateQueued, again},
	} {
		id := fmt.Sprint(c.from, " ", c.to)
		token := inState(t, e, id, c.from)
		e.Clock.Advance(time.Second)
		seen := asRead(t, e, id)
		testenv.Must(t, c.move(id, token))
		stands := get(t, e.Store, id)
		if stands.Work.State != c.to || stands.Work.Generation != seen.Generation {
			t.Fatalf("%s: %+v", id, stands.Work)
		}
		e.Clock.Advance(time.Second)
		q := job.Requeue{Expected: seen, Force: true}
		if _, changed, err := e.Store.Requeue(ctx, q); stands.Work.Attempts == 0 && (changed || err != nil) { // as it was to be
			t.Errorf("%s: requeued: %t, %v", id, changed, err)
		} else if stands.Work.Attempts > 0 {
			wrongState(t, err, "moved on")
		}
		for _, kind := range []job.DeleteKind{job.DeleteJob, job.ErasePayload} {
			_, err := deleteOne(t, e, job.Deletion{Expected: seen, Kind: kind, Force: true})
			wrongState(t, err, "moved on")
		}
		if now := get(t, e.Store, id); now != stands {
			t.Errorf("%s: %+v became %+v", id, stands, now)
		}
		q.State = job.StateUnknown
		requeue(t, e, q)
		if was, err := deleteOne(t, e, job.Deletion{Expected: q.Expected}); !was || err != nil {
			t.Errorf("%s: deleted %t, %v", id, was, err)
		}
	}
}

func deleteOne(t *testing.T, e Env, d job.Deletion) (bool, error) {
	t.Helper()
	o := e.Store.Delete(t.Context(), []job.Deletion{d})
	if len(o) != 1 {
		t.Fatalf("%d outcomes", len(o))
	}
	return o[0].Deleted, o[0].Err
}

func deleted(t *testing.T, e Env) {
	for _, state := range []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead} {
		id := state.String()
		token := inState(t, e, id, state)
		if state != job.StateUntracked && state != job.StateQueued {
			_, err := deleteOne(t, e, job.Deletion{Expected: asRead(t, e, id), Force: true})
			wrongState(t, err, "in this moment")
		}
		e.Clock.Advance(time.Second)
		d := job.Deletion{Expected: asRead(t, e, id)}
		if state == job.StateLeased {
			_, err := deleteOne(t, e, d)
			wrongState(t, err, "a lease runs")
			d.Force = true
		}
		other := d
		other.Generation++
		_, err := deleteOne(t, e, other)
		wrongState(t, err, "moved on")
		if was, err := deleteOne(t, e, d); !was || err != nil {
			t.Errorf("%s: deleted %t, %v", id, was, err)
		}
		if _, err := e.Store.Get(t.Context(), id, false); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("%s: Get after Delete: %v", id, err)
		}
		if was, err := deleteOne(t, e, d); was || err != nil { // its answer was lost
			t.Errorf("%s: deleted again %t, %v", id, was, err)
		}
		if token != "" {
			if err := job.Complete(t.Context(), e.Store, id, token, ""); !errors.Is(err, job.ErrNotFound) {
				t.Errorf("%s: Complete after Delete: %v", id, err)
			}
		}
		// The next job of the id is another one: an old deletion does not touch it, and its generation is higher.
		o := record(t, e.Store, leased(id, "r"))
		want(t, o, job.First, true, true, 1)
		if o.Lease.Generation <= d.Generation || o.Lease.Token == token {
			t.Errorf("%s: generation %d after %d", id, o.Lease.Generation, d.Generation)
		}
		_, err = deleteOne(t, e, d)
		wrongState(t, err, "another one")
	}
}

// erased: what may be somebody's data goes, and the decision stays.
func erased(t *testing.T, e Env) {
	large := strings.Repeat("somebody's data ", 500)
	for _, state := range []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead} {
		id := state.String()
		inState(t, e, id, state)
		other := input(id, "r2")
		other.Event, other.Body.Data = "job.failed", `{"other":"`+large+`"}`
		record(t, e.Store, other)
		e.Clock.Advance(time.Second)
		d := job.Deletion{Expected: asRead(t, e, id), Kind: job.ErasePayload}
		unfinished := state == job.StateQueued || state == job.StateLeased
		if unfinished {
			_, err := deleteOne(t, e, d)
			wrongState(t, err, "force")
			d.Force = true
		}
		e.Watched.take()
		if was, err := deleteOne(t, e, d); !was || err != nil {
			t.Fatalf("%s: erased %t, %v", id, was, err)
		}
		r := get(t, e.Store, id)
		if r.Body.Data != "" || r.BodyDropped.IsZero() || r.LastConflict != nil || r.Conflicts != 1 || r.Work.Result != "" || r.Work.Error != "" ||
			r.Fingerprint == "" || r.Event == "" || r.Work.Generation != d.Generation {
			t.Errorf("%s: %+v", id, r)
		}
		if want := map[bool]job.WorkState{false: state, true: job.StateDead}[unfinished]; r.Work.State != want {
			t.Errorf("%s became %v", id, r.Work.State)
		}
		if told := e.Watched.take(); (len(told) == 1) != unfinished {
			t.Errorf("%s: told %v", id, told)
		}
		if was, err := deleteOne(t, e, d); was || err != nil {
			t.Errorf("%s: erased again %t, %v", id, was, err)
		}
		if faults := r.Faults(); len(faults) > 0 {
			t.Errorf("%s: %v", id, faults)
		}
		// The decision stays.
		o := record(t, e.Store, leased(id, "r3"))
		if o.Verdict.StartWork || o.Verdict.FirstDelivery || o.Record.Deliveries != 3 {
			t.Errorf("%s: delivered again: %+v", id, o.Verdict)
		}
		q := job.Requeue{Expected: asRead(t, e, id)}
		if state != job.StateUntracked {
			_, _, err := e.Store.Requeue(t.Context(), q)
			wrongState(t, err, "dropped")
			q.Force = true
			requeue(t, e, q)
			if got := claim(t, e.Store, "after "+id, 10); len(got) != 1 || got[0].Record.Body.Data != "" || got[0].Record.BodyDropped.IsZero() {
				t.Errorf("%s: claimed without its body: %+v", id, got)
			}
		}
	}
}

// aged: what retention deletes is finished, and nothing has happened to it since it was read.
func aged(t *testing.T, e Env) {
	var all []job.Deletion
	for _, state := range []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead} {
		for _, kind := range []job.DeleteKind{job.DropPayload, job.DeleteJob} {
			id := fmt.Sprint(state, kind)
			inState(t, e, id, state)
			all = append(all, job.Deletion{Expected: asRead(t, e, id), Kind: kind})
		}
	}
	record(t, e.Store, plain("bodyless", "r"))
	all = append(all, job.Deletion{Expected: asRead(t, e, "bodyless"), Kind: job.DropPayload})
	e.Clock.Advance(24 * time.Hour)
	before := e.Clock.Now().Add(-time.Hour)
	for i := range all {
		all[i].ActiveBefore, all[i].Deliveries = before, 1
	}
	record(t, e.Store, input("untracked0", "again")) // it comes back meanwhile
	for i, o := range e.Store.Delete(t.Context(), all) {
		d := all[i]
		unfinished := strings.HasPrefix(d.JobID, "queued") || strings.HasPrefix(d.JobID, "leased")
		switch {
		case unfinished || d.JobID == "untracked0":
			wrongState(t, o.Err, "since")
			if get(t, e.Store, d.JobID).Body.Data == "" {
				t.Errorf("%s lost its body", d.JobID)
			}
		case d.JobID == "bodyless":
			if o.Deleted || o.Err != nil || !get(t, e.Store, d.JobID).BodyDropped.IsZero() {
				t.Errorf("%s: %+v", d.JobID, o)
			}
		case o.Err != nil || !o.Deleted:
			t.Errorf("%s: %+v", d.JobID, o)
		case d.Kind == job.DropPayload:
			r := get(t, e.Store, d.JobID)
			if r.Body.Data != "" || !r.BodyDropped.Equal(job.Millis(e.Clock.Now())) || r.Work.State == job.StateCompleted && r.Work.Result != "the result" {
				t.Errorf("%s: %+v", d.JobID, r)
			}
		default:
			if _, err := e.Store.Get(t.Context(), d.JobID, false); !errors.Is(err, job.ErrNotFound) {
				t.Errorf("%s is there: %v", d.JobID, err)
			}
		}
	}
}

// adminEnded: nothing is done for a caller that has left.
func adminEnded(t *testing.T, e Env) {
	record(t, e.Store, input("j", "r"))
	q := asRead(t, e, "j")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"Delete":  e.Store.Delete(ctx, []job.Deletion{{Expected: q}})[0].Err,
		"Requeue": func() error { _, _, err := e.Store.Requeue(ctx, job.Requeue{Expected: q}); return err }(),
		"Pause":   func() error { _, err := e.Store.Pause(ctx, "", ""); return err }(),
		"List":    func() error { _, err := e.Store.List(ctx, job.ListQuery{Size: 1}); return err }(),
	} {
		if !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	get(t, e.Store, "j")
}
