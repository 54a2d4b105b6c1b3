package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

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
