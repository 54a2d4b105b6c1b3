package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

const day = 24 * time.Hour

// world is a real store with a clock that is moved by hand.
type world struct {
	*sqlitestore.Store
	t     *testing.T
	clock *testenv.Clock
}

func newWorld(t *testing.T) *world {
	clock := testenv.NewClock()
	s, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Now: clock.Now, Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	return &world{s, t, clock}
}

func (w *world) keeper(p Policy, store Store) *Keeper {
	return New(Config{Policy: p, Now: w.clock.Now, Logger: slog.New(slog.DiscardHandler), pause: func(context.Context) error { return nil }}, store)
}

// record records a job and brings its work into a state.
func (w *world) record(id string, state job.WorkState) {
	w.t.Helper()
	lease := time.Minute
	in := job.Input{JobID: id, Body: job.Body{Kind: job.BodyText, Data: "body of " + id}}
	switch state {
	case job.StateUntracked:
	case job.StateQueued:
		in.Mode = job.ModeQueued
	default:
		in.Mode, in.Lease = job.ModeLeased, &lease
	}
	d, err := in.Delivery(1 << 20)
	testenv.Must(w.t, err)
	o := w.Record(w.t.Context(), []job.Delivery{d})[0]
	testenv.Must(w.t, o.Err)
	switch state {
	case job.StateCompleted:
		testenv.Must(w.t, job.Complete(w.t.Context(), w.Store, id, o.Lease.Token, "result"))
	case job.StateDead:
		testenv.Must(w.t, job.GiveBack(w.t.Context(), w.Store, id, o.Lease.Token, job.Release{Dead: true}))
	}
}

// has tells what is there of a job: "all", "decision" without its payload, or "nothing".
func (w *world) has(id string) string {
	w.t.Helper()
	r, err := w.Get(w.t.Context(), id, true)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return "nothing"
	case err != nil:
		w.t.Fatal(err)
	case r.Body.Data == "":
		return "decision"
	}
	return "all"
}

var states = []job.WorkState{job.StateUntracked, job.StateQueued, job.StateLeased, job.StateCompleted, job.StateDead}

func TestPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		want   []string // after 10 days and after 40, in the order of the states
	}{
		"none":             {Policy{}, []string{"all all all all all", "all all all all all"}},
		"payloads":         {Policy{Payload: 7 * day}, []string{"decision all all decision all", "decision all all decision all"}},
		"jobs":             {Policy{Job: 30 * day}, []string{"all all all all all", "nothing all all nothing all"}},
		"both":             {Policy{Payload: 7 * day, Job: 30 * day}, []string{"decision all all decision all", "nothing all all nothing all"}},
		"dead":             {Policy{Dead: 7 * day}, []string{"all all all all decision", "all all all all decision"}},
		"dead and jobs":    {Policy{Dead: 7 * day, Job: 30 * day}, []string{"all all all all decision", "nothing all all nothing nothing"}},
		"dead longer":      {Policy{Dead: 60 * day, Job: 30 * day}, []string{"all all all all all", "nothing all all nothing all"}},
		"payloads, longer": {Policy{Payload: 20 * day}, []string{"all all all all all", "decision all all decision all"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.keeper(c.policy, w.Store)
			for _, state := range states {
				w.record(state.String(), state)
			}
			for i, after := range []time.Duration{10 * day, 30 * day} {
				w.clock.Advance(after)
				for range 2 { // the second pass finds nothing to do
					_, err := k.Pass(t.Context())
					testenv.Must(t, err)
				}
				var got []string
				for _, state := range states {
					got = append(got, w.has(state.String()))
				}
				if got := fmt.Sprint(got); got != "["+c.want[i]+"]" {
					t.Errorf("after %v more: %s, want %s", after, got, c.want[i])
				}
			}
		})
	}
}

// TestComesAgain: a job that is delivered again is as old as that, and is found when it has become old anew.
func TestComesAgain(t *testing.T) {
	w := newWorld(t)
	k := w.keeper(Policy{Payload: 7 * day}, w.Store)
	w.record("a", job.StateUntracked)
	w.record("b", job.StateUntracked)
	w.clock.Advance(6 * day)
	w.record("b", job.StateUntracked)
	w.clock.Advance(2 * day)
	r, err := k.Pass(t.Context())
	if err != nil || r.Payloads != 1 || w.has("a") != "decision" || w.has("b") != "all" {
		t.Errorf("%+v, %v: a has %s, b %s", r, err, w.has("a"), w.has("b"))
	}
	w.clock.Advance(10 * day)
	if r, err := k.Pass(t.Context()); err != nil || r.Payloads != 1 || w.has("b") != "decision" {
		t.Errorf("%+v, %v: b has %s", r, err, w.has("b"))
	}
}

// between is a store in which something happens between the look and the deletion.
type between struct {
	*sqlitestore.Store
	happens func()
	sizes   []int
}

func (b *between) Delete(ctx context.Context, ds []job.Deletion) []job.DeleteOutcome {
	b.sizes = append(b.sizes, len(ds))
	if b.happens != nil {
		b.happens()
	}
	return b.Store.Delete(ctx, ds)
}

// TestRaces: what happens to a job after retention has looked at it keeps it.
func TestRaces(t *testing.T) {
	for _, kind := range []Policy{{Payload: day}, {Job: day}} {
		w := newWorld(t)
		w.record("a", job.StateUntracked)
		w.record("c", job.StateCompleted)
		w.clock.Advance(2 * day)
		k := w.keeper(kind, &between{Store: w.Store, happens: func() {
			w.record("a", job.StateUntracked)
			r, err := w.Get(t.Context(), "c", false)
			testenv.Must(t, err)
			_, _, err = w.Requeue(t.Context(), job.Requeue{Expected: job.ExpectedOf(&r)})
			if err != nil && !errors.Is(err, job.ErrWrongState) {
				t.Error(err)
			}
		}})
		if r, err := k.Pass(t.Context()); err != nil || r.Payloads+r.Jobs != 0 || w.has("a") != "all" || w.has("c") != "all" {
			t.Errorf("%+v: %+v, %v: a has %s, c %s", kind, r, err, w.has("a"), w.has("c"))
		}
	}
}

// TestParts: much is done in small parts, of which each looks at a bounded number of jobs, and once.
func TestParts(t *testing.T) {
	w := newWorld(t)
	const jobs = 5*part + 7
	var ds []job.Delivery
	for i := range jobs {
		d, err := job.Input{JobID: fmt.Sprint("job-", i), Body: job.Body{Kind: job.BodyText, Data: "x"}}.Delivery(10)
		testenv.Must(t, err)
		ds = append(ds, d)
	}
	for _, o := range w.Record(t.Context(), ds) {
		testenv.Must(t, o.Err)
	}
	w.clock.Advance(2 * day)
	store := &between{Store: w.Store}
	k := w.keeper(Policy{Payload: day}, store)
	told := 0
	k.cfg.Dropped = func(payloads, jobs int) { told += payloads }
	r, err := k.Pass(t.Context())
	if err != nil || r.Payloads != jobs || told != jobs || r.Examined > jobs+len(k.rules) || slices.Max(store.sizes) > part {
		t.Errorf("%+v, %v; told of %d, in parts of %v", r, err, told, store.sizes)
	}
	if r, err := k.Pass(t.Context()); err != nil || r.Examined > 1 {
		t.Errorf("the next pass: %+v, %v", r, err)
	}
}

// refusing is a store that refuses the deletions of some jobs.
type refusing struct {
	*sqlitestore.Store
	refuses func(d job.Deletion) bool
	err     error
	refused int
}

func (s *refusing) Delete(ctx context.Context, ds []job.Deletion) []job.DeleteOutcome {
	out := make([]job.DeleteOutcome, len(ds))
	for i := range ds {
		if s.refuses(ds[i]) {
			out[i].Err = s.err
			s.refused++
		} else {
			out[i] = s.Store.Delete(ctx, ds[i:i+1])[0]
		}
	}
	return out
}

// TestRefusedJobs: what the store refuses of one job, or of one kind, holds up neither the jobs behind it nor the other rules, and is told
// once. It is tried again the next day; what failed for a reason that passes, at once.
func TestRefusedJobs(t *testing.T) {
	one := func(d job.Deletion) bool { return d.JobID == "untracked" }
	for name, c := range map[string]struct {
		refuses func(d job.Deletion) bool
		err     error
		want    []string // in the order of the states
	}{
		"a payload": {one, errors.New("a validator"), []string{"all", "decision", "decision"}},
		"unusable":  {one, fmt.Errorf("%w: odd", job.ErrRecordUnusable), []string{"all", "decision", "decision"}},
		"unknown":   {one, fmt.Errorf("%w: strange", job.ErrOutcomeUnknown), []string{"all", "decision", "decision"}},
		"moving":    {one, fmt.Errorf("%w: it changes all the time", job.ErrUnavailable), []string{"all", "decision", "decision"}},
		"removals": {func(d job.Deletion) bool { return d.Kind == job.DeleteJob }, errors.New("not authorized"),
			[]string{"decision", "decision", "decision"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			finished := []job.WorkState{job.StateUntracked, job.StateCompleted, job.StateDead}
			for _, state := range finished {
				w.record(state.String(), state)
			}
			for i := range part {
				w.record(fmt.Sprint("behind", i), job.StateUntracked)
			}
			policy := Policy{Payload: day, Dead: day}
			if name == "removals" {
				policy.Job = day
			}
			store := &refusing{Store: w.Store, refuses: c.refuses, err: c.err}
			k := w.keeper(policy, store)
			w.clock.Advance(2 * day)
			_, err := k.Pass(t.Context())
			if !errors.Is(err, c.err) {
				t.Errorf("the pass: %v, want %v", err, c.err)
			}
			var got []string
			for _, state := range finished {
				got = append(got, w.has(state.String()))
			}
			if last := fmt.Sprint("behind", part-1); !slices.Equal(got, c.want) || w.has(last) != "decision" {
				t.Errorf("%v, and %s behind; want %v", got, w.has(last), c.want)
			}
			before, soon := store.refused, name == "unknown" || name == "moving" // which may pass
			if _, err := k.Pass(t.Context()); store.refused > before != soon && name != "removals" {
				t.Errorf("tried again at once: %t, %v", store.refused > before, err)
			}
			store.refuses = func(job.Deletion) bool { return false }
			if !soon {
				w.clock.Advance(day)
			}
			if _, err := k.Pass(t.Context()); err != nil || w.has("untracked") == "all" {
				t.Errorf("in the end: %v, %s", err, w.has("untracked"))
			}
		})
	}
}

// TestRunEnds runs until its context ends.
func TestRunEnds(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.keeper(Policy{Payload: day}, w.Store).Run(ctx)
	}()
	cancel()
	<-done
	w.keeper(Policy{}, w.Store).Run(t.Context()) // has nothing to do
}
