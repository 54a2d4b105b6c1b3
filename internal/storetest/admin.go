package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// pages reads a list to its end, and checks that each page keeps to its bounds.
func pages(t *testing.T, s job.Store, q job.ListQuery, between func()) (ids []string, examined int) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatalf("List %+v: %v", q, err)
		}
		if len(page.Jobs) > q.Size || page.Examined > q.Size*job.ExaminedPerJob {
			t.Fatalf("%d jobs, %d examined, for a page of %d", len(page.Jobs), page.Examined, q.Size)
		}
		for i := range page.Jobs {
			ids = append(ids, page.Jobs[i].JobID)
		}
		examined += page.Examined
		if page.Next == (job.Place{}) {
			return ids, examined
		}
		place, ok := job.ParsePlace(page.Next.String())
		if !ok || place != page.Next {
			t.Fatalf("%+v is written as %q", page.Next, page.Next.String())
		}
		if q.After = page.Next; between != nil {
			between()
		}
	}
}

func lists(t *testing.T, e Env) {
	began := job.Millis(e.Clock.Now())
	states := []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead}
	var newest, byID []string
	byState := map[job.WorkState][]string{}
	for i := range 40 {
		if i%4 == 0 { // several in one millisecond
			e.Clock.Advance(time.Minute)
		}
		state := states[i%len(states)]
		id := fmt.Sprintf("%c:%02d", 'a'+i%3, i)
		inState(t, e, id, state)
		byID, byState[state] = append(byID, id), append(byState[state], id)
	}
	newest = slices.Clone(byID)
	at := func(id string) time.Time { return get(t, e.Store, id).FirstSeen }
	slices.SortFunc(newest, func(a, b string) int {
		if c := at(b).Compare(at(a)); c != 0 {
			return c
		}
		return strings.Compare(b, a)
	})
	slices.Sort(byID)
	odd := plain("b:19", "other")
	odd.Event = "job.failed"
	record(t, e.Store, odd)
	e.Clock.Advance(2 * lease) // claims nothing, but what is leased has lapsed

	only := func(ids []string, keep func(string) bool) (out []string) {
		for _, id := range ids {
			if keep(id) {
				out = append(out, id)
			}
		}
		return out
	}
	in := func(state job.WorkState) func(string) bool {
		return func(id string) bool { return slices.Contains(byState[state], id) }
	}
	prefix := func(p string) func(string) bool { return func(id string) bool { return strings.HasPrefix(id, p) } }
	oldest := slices.Clone(newest)
	slices.Reverse(oldest)
	from, before := began.Add(3*time.Minute), began.Add(7*time.Minute)
	for name, c := range map[string]struct {
		q    job.ListQuery
		want []string
		most int // examined, by an index
	}{
		"newest first":      {job.ListQuery{}, newest, 40},
		"oldest first":      {job.ListQuery{Order: job.OldestFirst}, oldest, 40},
		"by id":             {job.ListQuery{Order: job.ByID}, byID, 40},
		"prefix":            {job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "b:"}}, only(byID, prefix("b:")), 13},
		"no such prefix":    {job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "b;"}}, nil, 0},
		"newest of prefix":  {job.ListQuery{Filter: job.Filter{Prefix: "b:"}}, only(newest, prefix("b:")), 40},
		"dead":              {job.ListQuery{Filter: job.Filter{State: job.StateDead}}, only(newest, in(job.StateDead)), 8},
		"leased, oldest":    {job.ListQuery{Order: job.OldestFirst, Filter: job.Filter{State: job.StateLeased}}, only(oldest, in(job.StateLeased)), 8},
		"untracked":         {job.ListQuery{Filter: job.Filter{State: job.StateUntracked}}, only(newest, in(job.StateUntracked)), 40},
		"dead, by id":       {job.ListQuery{Order: job.ByID, Filter: job.Filter{State: job.StateDead}}, only(byID, in(job.StateDead)), 40},
		"in conflict":       {job.ListQuery{Filter: job.Filter{Conflicts: true}}, []string{"b:19"}, 1},
		"completed, in one": {job.ListQuery{Filter: job.Filter{Conflicts: true, State: job.StateCompleted}}, nil, 1},
		"between": {job.ListQuery{Filter: job.Filter{SeenFrom: from, SeenBefore: before}},
			only(newest, func(id string) bool { return !at(id).Before(from) && at(id).Before(before) }), 16},
		"completed between": {job.ListQuery{Filter: job.Filter{State: job.StateCompleted, SeenFrom: from, SeenBefore: before}},
			only(newest, func(id string) bool {
				return in(job.StateCompleted)(id) && !at(id).Before(from) && at(id).Before(before)
			}), 4},
	} {
		for _, size := range []int{1, 3, 50} {
			q := c.q
			q.Size = size
			got, examined := pages(t, e.Store, q, nil)
			if !slices.Equal(got, c.want) || examined > c.most {
				t.Errorf("%s, %d a page: got %v, %d examined; want %v, %d", name, size, got, examined, c.want, c.most)
			}
		}
	}
	page, err := e.Store.List(t.Context(), job.ListQuery{Size: 1, Filter: job.Filter{State: job.StateCompleted}})
	testenv.Must(t, err)
	full := get(t, e.Store, page.Jobs[0].JobID)
	full.Body, full.Work.Result = job.Body{}, ""
	if got := page.Jobs[0]; got != full {
		t.Errorf("listed %+v, want %+v", got, full)
	}
	// A page looks at so many jobs and no more.
	page, err = e.Store.List(t.Context(), job.ListQuery{Size: 1, Filter: job.Filter{Prefix: "z"}})
	if err != nil || len(page.Jobs) > 0 || page.Examined != job.ExaminedPerJob || page.Next == (job.Place{}) {
		t.Errorf("a page that finds nothing: %+v, %v", page, err)
	}
	counts, err := e.Store.Count(t.Context(), "")
	testenv.Must(t, err)
	for _, state := range states {
		if counts.States[state] != (job.Count{N: 8}) {
			t.Errorf("%v: %+v", state, counts.States[state])
		}
	}
	if counts.Conflicts != (job.Count{N: 1}) {
		t.Errorf("conflicts %+v", counts.Conflicts)
	}
}

// countsUnderAPrefix: of the jobs under a prefix each counts once, and others do not.
func countsUnderAPrefix(t *testing.T, e Env) {
	states := []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead}
	for i := range 60 {
		inState(t, e, fmt.Sprint([]string{"bank:", "shop", "shop:", "shop:eu:", "shop9:", "shopping:"}[i/5%6], i), states[i%5])
	}
	odd := plain("shop:10", "other")
	odd.Event = "job.failed"
	record(t, e.Store, odd)
	for prefix, want := range map[string]struct{ each, conflicts int64 }{"shop:": {4, 1}, "shop:eu:": {2, 0}, "bank:": {2, 0}, "nobody:": {}} {
		got, err := e.Store.Count(t.Context(), prefix)
		testenv.Must(t, err)
		for _, state := range states {
			if got.States[state] != (job.Count{N: want.each}) {
				t.Errorf("%s %v: %+v, want %d", prefix, state, got.States[state], want.each)
			}
		}
		if len(got.States) != len(states) || got.Conflicts != (job.Count{N: want.conflicts}) {
			t.Errorf("%s: %+v", prefix, got)
		}
	}
}

// listsWhileOthersWrite: what is there from the start to the end comes exactly once, whatever comes, goes and changes meanwhile:
// 2,000 jobs, 100,000 in a long run.
func listsWhileOthersWrite(t *testing.T, e Env) {
	stay, size := 2000, 99
	if testenv.Long() {
		stay, size = 100_000, job.MaxPageSize
	}
	stays := func(n int) string { return fmt.Sprintf("stays-%06d", n*7%stay) }
	goes := func(n int) string { return fmt.Sprintf("goes-%06d", n) }
	const together = 64 // are seen in one millisecond
	var deliveries []job.Delivery
	for n := range stay {
		in := plain(stays(n), "r")
		if n%2 == 0 {
			in.Mode = job.ModeQueued
		}
		deliveries = append(deliveries, check(t, in))
		if n%8 == 0 {
			deliveries = append(deliveries, check(t, plain(goes(n/8), "r")))
		}
	}
	for some := range slices.Chunk(deliveries, together) {
		for _, o := range e.Store.Record(t.Context(), some) {
			testenv.Must(t, o.Err)
		}
		e.Clock.Advance(time.Millisecond)
	}
	n := 0
	for name, order := range map[string]job.Order{"newest first": job.NewestFirst, "oldest first": job.OldestFirst, "by id": job.ByID} {
		t.Run(name, func(t *testing.T) {
			before := n
			got, _ := pages(t, e.Store, job.ListQuery{Order: order, Size: size}, func() {
				n++
				record(t, e.Store, plain(fmt.Sprintf("comes-%06d", n), "r"))
				record(t, e.Store, leased(stays(n*97%stay), "other")) // is counted, and in conflict
				for i, c := range claim(t, e.Store, fmt.Sprint("claim ", n), 3) {
					if i > 0 {
						testenv.Must(t, job.Complete(t.Context(), e.Store, c.Record.JobID, c.Lease.Token, ""))
					}
				}
				gone := asRead(t, e, goes(n*97%(stay/8)))
				if deleted, err := deleteOne(t, e, job.Deletion{Expected: gone}); !deleted || err != nil {
					t.Errorf("%s: deleted %t, %v", gone.JobID, deleted, err)
				}
			})
			seen := make(map[string]int)
			for _, id := range got {
				if seen[id]++; seen[id] > 1 {
					t.Errorf("%s came %d times", id, seen[id])
				}
			}
			for i := range stay {
				if seen[stays(i)] != 1 {
					t.Errorf("%s came %d times", stays(i), seen[stays(i)])
				}
			}
			if n-before < stay/size {
				t.Errorf("others wrote %d times", n-before)
			}
		})
	}
}

func pausedClaims(t *testing.T, e Env) {
	pause := func(prefix, reason string) job.Pause {
		t.Helper()
		p, err := e.Store.Pause(t.Context(), prefix, reason)
		testenv.Must(t, err)
		return p
	}
	record(t, e.Store, queued("a:1", "r"))
	record(t, e.Store, queued("b:1", "r"))
	l := wantLease(t, record(t, e.Store, leased("a:2", "r")), e)
	since := job.Millis(e.Clock.Now())
	p := pause("a:", "the warehouse is closed")
	if p != (job.Pause{Prefix: "a:", Since: since, Reason: "the warehouse is closed"}) {
		t.Errorf("%+v", p)
	}
	e.Clock.Advance(time.Second)
	if again := pause("a:", "another reason"); again != p {
		t.Errorf("paused again: %+v", again)
	}
	// What runs goes on, and what comes is recorded, as ever.
	testenv.Must(t, func() error { _, err := job.Renew(t.Context(), e.Store, "a:2", l.Token, lease); return err }())
	want(t, record(t, e.Store, leased("a:3", "r")), job.First, true, true, 1)
	want(t, record(t, e.Store, queued("a:4", "r")), job.First, false, true, 1)
	want(t, record(t, e.Store, leased("a:1", "r2")), job.Pending, false, false, 2)
	if got := claim(t, e.Store, "c1", 10); len(got) != 1 || got[0].Record.JobID != "b:1" {
		t.Errorf("claimed %+v, want b:1", got)
	}
	e.Clock.Advance(2 * lease)
	want(t, record(t, e.Store, leased("a:2", "r2")), job.Pending, false, false, 2)
	want(t, record(t, e.Store, leased("b:1", "r2")), job.Reclaimed, true, false, 2)
	if got := claim(t, e.Store, "c2", 10); len(got) != 0 {
		t.Errorf("claimed %+v under the pause", got)
	}
	testenv.Must(t, job.Complete(t.Context(), e.Store, "a:2", l.Token, "done")) // lapsed, and nobody's else

	pause("", "everything")
	record(t, e.Store, queued("c:1", "r"))
	if got := claim(t, e.Store, "c3", 10); len(got) != 0 {
		t.Errorf("claimed %+v under the pause of all", got)
	}
	testenv.Must(t, e.Store.Close())
	e.Store = e.Reopen()
	if got := claim(t, e.Store, "c4", 10); len(got) != 0 {
		t.Errorf("claimed %+v after the restart", got)
	}
	pauses, err := e.Store.Pauses(t.Context())
	if err != nil || len(pauses) != 2 || pauses[0].Prefix != "" || pauses[1] != p {
		t.Errorf("pauses %+v, %v", pauses, err)
	}
	for _, c := range []struct {
		prefix string
		was    bool
		free   []string
	}{{"", true, []string{"c:1"}}, {"", false, nil}, {"a", false, nil}, {"a:", true, []string{"a:1", "a:3", "a:4"}}} {
		was, err := e.Store.Unpause(t.Context(), c.prefix)
		if err != nil || was != c.was {
			t.Errorf("resume %q: %t, %v", c.prefix, was, err)
		}
		var got []string
		for _, claimed := range claim(t, e.Store, fmt.Sprint("after", c), 10) {
			got = append(got, claimed.Record.JobID)
		}
		if slices.Sort(got); !slices.Equal(got, c.free) {
			t.Errorf("after %q was resumed: claimed %v, want %v", c.prefix, got, c.free)
		}
	}
	for i := range job.MaxPauses {
		pause(fmt.Sprintf("p%d:", i), "")
	}
	_, err = e.Store.Pause(t.Context(), "one too many", "")
	wrongState(t, err, "pauses already")
}

// pausedWorkIsNotDue: what is paused is neither due for long nor free, and is both once it is resumed; and what is due later than
// much that is paused is found, also when it becomes due meanwhile.
func pausedWorkIsNotDue(t *testing.T, e Env) {
	due := func(want string) {
		t.Helper()
		if id, _, err := e.Store.LongestDue(t.Context()); err != nil || id != want {
			t.Errorf("%q has been due for longest, %v; want %q", id, err, want)
		}
	}
	free := func(want ...string) {
		t.Helper()
		found, err := e.Store.Standings(t.Context(), []string{"a:1", "a:2", "b:1"})
		testenv.Must(t, err)
		var got []string
		for id, s := range found {
			if s.Free {
				got = append(got, id)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("free are %v, want %v", got, want)
		}
	}
	resume := func(prefix string) {
		t.Helper()
		_, err := e.Store.Unpause(t.Context(), prefix)
		testenv.Must(t, err)
	}
	pause := func(prefix string) {
		t.Helper()
		_, err := e.Store.Pause(t.Context(), prefix, "")
		testenv.Must(t, err)
	}
	record(t, e.Store, leased("a:1", "r"))
	e.Clock.Advance(time.Hour) // it lapses
	record(t, e.Store, queued("a:2", "r"))
	e.Clock.Advance(time.Minute)
	pause("a:")
	due("")
	free()
	record(t, e.Store, queued("b:1", "r"))
	e.Clock.Advance(time.Minute)
	due("b:1")
	free("b:1")
	pause("")
	due("")
	free()
	resume("")
	got := claim(t, e.Store, "c1", 10)
	if len(got) != 1 || got[0].Record.JobID != "b:1" {
		t.Errorf("claimed %+v, want b:1", got)
	}
	due("")
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "b:1", got[0].Lease.Token, job.Release{Delay: time.Minute}))
	e.Clock.Advance(time.Hour)
	record(t, e.Store, queued("a:3", "r"))
	e.Clock.Advance(time.Hour)
	due("b:1") // which became due after others were passed over, and before now
	if got := claim(t, e.Store, "c2", 10); len(got) != 1 || got[0].Record.JobID != "b:1" {
		t.Errorf("claimed %+v, want b:1", got)
	}
	resume("a:")
	due("a:1")
	free("a:1", "a:2")
	if got := claim(t, e.Store, "c3", 10); len(got) != 3 {
		t.Errorf("claimed %+v after all was resumed", got)
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
