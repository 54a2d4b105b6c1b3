package job_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// held is work under a lease with the token "t" that runs until later.
func held() job.Work {
	return job.Work{
		State: job.StateLeased, Mode: job.ModeLeased, Due: later, Granted: time.Minute, Token: "t", Generation: 7, Attempts: 2,
		Lapses: 1, RequestID: "r", RequestFingerprint: "f", Error: "earlier",
	}
}

// ended is what becomes of held once nobody holds it any more.
func ended(state job.WorkState, f func(*job.Work)) job.Work {
	w := job.Work{State: state, Mode: job.ModeLeased, Token: "t", Generation: 7, Attempts: 2, Lapses: 1, Error: "earlier"}
	f(&w)
	return w
}

func wantWork(t *testing.T, got, want job.Work) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func wantLost(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("got %v, want ErrLeaseLost", err)
	}
}

func TestClaim(t *testing.T) {
	w := held()
	w.ClaimID = "old"
	got := w.Claim(job.Grant{Token: "u", Duration: time.Hour, RequestID: "q", Fingerprint: "g", ClaimID: "c", MaxAttempts: 3}, later)
	wantWork(t, got, job.Work{
		State: job.StateLeased, Mode: job.ModeLeased, Due: job.Millis(later.Add(time.Hour)), Granted: time.Hour, Token: "u",
		Generation: later.UnixMilli(), Attempts: 3, Lapses: 2, RequestID: "q", RequestFingerprint: "g", ClaimID: "c", Error: "earlier",
	})
	wantWork(t, w, func() job.Work { w := held(); w.ClaimID = "old"; return w }()) // it is not changed in place
}

// TestGenerationGrows whatever the clock does.
func TestGenerationGrows(t *testing.T) {
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	var w job.Work
	last := int64(0)
	for i, c := range []struct {
		now  time.Time
		want int64
	}{
		{at(0), noon.UnixMilli()},
		{at(0), noon.UnixMilli() + 1},                        // in the same millisecond
		{at(time.Second), noon.UnixMilli() + 1000},           // the clock went on
		{at(-time.Hour), noon.UnixMilli() + 1001},            // it was set back
		{at(-time.Hour), noon.UnixMilli() + 1002},            //
		{time.Unix(-1, 0), noon.UnixMilli() + 1003},          // to before 1970
		{at(24 * time.Hour), at(24 * time.Hour).UnixMilli()}, // and is right again
	} {
		w = w.Claim(job.Grant{Token: "t", Duration: time.Minute}, c.now)
		if w.Generation != c.want || w.Generation <= last {
			t.Errorf("claim %d: generation %d after %d, want %d", i+1, w.Generation, last, c.want)
		}
		last = w.Generation
	}
}

func TestClaimPastTheAttempts(t *testing.T) {
	for _, c := range []struct {
		max  int
		dead bool
	}{{0, false}, {1, true}, {2, true}, {3, false}} {
		got := held().Claim(job.Grant{Token: "u", Duration: time.Minute, RequestID: "q", ClaimID: "c", MaxAttempts: c.max}, later)
		if !c.dead {
			if got.State != job.StateLeased || got.Attempts != 3 {
				t.Errorf("at most %d attempts: %+v", c.max, got)
			}
			continue
		}
		// The old token proves nothing any more, and why the work was last not done stays.
		wantWork(t, got, ended(job.StateDead, func(w *job.Work) { w.Token = "" }))
	}
	w := held()
	w.Error = ""
	if got := w.Claim(job.Grant{MaxAttempts: 1}, later); got.State != job.StateDead || got.Error == "" {
		t.Errorf("dead without a reason: %+v", got)
	}
}

func TestRenew(t *testing.T) {
	for _, now := range []time.Time{noon, later, later.Add(time.Hour)} { // running, lapsing, long lapsed
		got, err := held().Renew("t", time.Hour, now)
		testenv.Must(t, err)
		want := held()
		want.Due, want.Granted = job.Millis(now.Add(time.Hour)), time.Hour
		wantWork(t, got, want)
	}
	// It never makes the lease shorter, nor leaves it as it is.
	got, err := held().Renew("t", time.Second, noon)
	testenv.Must(t, err)
	want := held()
	want.Due, want.Granted = want.Due.Add(time.Millisecond), want.Granted+time.Millisecond
	wantWork(t, got, want)
}

func TestComplete(t *testing.T) {
	done, err := held().Complete("t", "result")
	testenv.Must(t, err)
	want := ended(job.StateCompleted, func(w *job.Work) { w.Result, w.Error, w.Lapses = "result", "", 0 })
	wantWork(t, done, want)
	again, err := done.Complete("t", "another")
	if err != nil {
		t.Errorf("repeated: %v", err)
	}
	wantWork(t, again, want)
}

func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		r    job.Release
		want job.Work
	}{
		"at once": {job.Release{Error: "why"}, ended(job.StateQueued, func(w *job.Work) { w.Due, w.Error, w.Lapses = job.Millis(noon), "why", 0 })},
		"later": {job.Release{Delay: time.Minute}, ended(job.StateQueued, func(w *job.Work) {
			w.Due, w.Granted, w.Error, w.Lapses = job.Millis(later), time.Minute, "", 0
		})},
		"given up": {job.Release{Dead: true, Error: "why"}, ended(job.StateDead, func(w *job.Work) { w.Error, w.Lapses = "why", 0 })},
		"not begun": {job.Release{NotStarted: true}, ended(job.StateQueued, func(w *job.Work) {
			w.Due, w.Attempts, w.Lapses = job.Millis(noon), w.Attempts-1, 0
		})},
		"no grounds": {job.Release{Dead: true}, ended(job.StateDead, func(w *job.Work) { w.Error, w.Lapses = "", 0 })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := held().Release("t", c.r, noon)
			testenv.Must(t, err)
			wantWork(t, got, c.want)
			for _, r := range []job.Release{c.r, {Delay: time.Hour, Error: "another"}, {Dead: true}, {NotStarted: true}} {
				again, err := got.Release("t", r, later)
				if err != nil {
					t.Errorf("repeated: %v", err)
				}
				wantWork(t, again, c.want)
			}
		})
	}
}

func TestUnclaim(t *testing.T) {
	w := held()
	w.ClaimID = "c"
	got, err := w.Unclaim("t", w.Due, noon)
	testenv.Must(t, err)
	wantWork(t, got, ended(job.StateQueued, func(w *job.Work) { w.Token, w.Due, w.Attempts = "", job.Millis(noon), 1 }))
	_, err = got.Unclaim("t", got.Due, later)
	wantLost(t, err) // and the attempt is not taken back twice
}

// TestWhoHolds has every operation in every state, by the token of the latest lease, by an older one and by none.
func TestWhoHolds(t *testing.T) {
	states := map[string]job.Work{
		"untracked": {State: job.StateUntracked, Mode: job.ModeUntracked},
		"queued":    {State: job.StateQueued, Mode: job.ModeQueued, Due: noon},
		"released":  ended(job.StateQueued, func(w *job.Work) { w.Due = noon }),
		"leased":    held(),
		"completed": ended(job.StateCompleted, func(w *job.Work) { w.Result = "result" }),
		"given up":  ended(job.StateDead, func(*job.Work) {}),
		"used up":   ended(job.StateDead, func(w *job.Work) { w.Token = "" }),
		"unknown":   {State: job.StateUnknown, Due: noon, Token: "t"},
		"unclaimed": ended(job.StateQueued, func(w *job.Work) { w.Token, w.Due = "", noon }),
	}
	ops := map[string]func(w job.Work, token string) (job.Work, error){
		"renew":    func(w job.Work, token string) (job.Work, error) { return w.Renew(token, time.Hour, noon) },
		"complete": func(w job.Work, token string) (job.Work, error) { return w.Complete(token, "other") },
		"release":  func(w job.Work, token string) (job.Work, error) { return w.Release(token, job.Release{}, noon) },
		"give up": func(w job.Work, token string) (job.Work, error) {
			return w.Release(token, job.Release{Dead: true}, noon)
		},
		"unclaim": func(w job.Work, token string) (job.Work, error) { return w.Unclaim(token, w.Due, noon) },
	}
	// What the latest token may still do; true where that changes the work.
	may := map[string]map[string]bool{
		"leased":    {"renew": true, "complete": true, "release": true, "give up": true, "unclaim": true},
		"completed": {"complete": false},
		"released":  {"release": false, "give up": false},
		"given up":  {"release": false, "give up": false},
	}
	for state, w := range states {
		for name, op := range ops {
			for _, token := range []string{"t", "older", ""} {
				t.Run(state+"/"+name+"/"+token, func(t *testing.T) {
					got, err := op(w, token)
					changes, ok := may[state][name]
					if ok = ok && token == "t"; !ok {
						wantLost(t, err)
						wantWork(t, got, w)
						return
					}
					testenv.OK(t, err)
					if changed := got != w; changed != changes {
						t.Errorf("changed: %t, want %t", changed, changes)
					}
				})
			}
		}
	}
}

func TestLease(t *testing.T) {
	w := held()
	for now, remaining := range map[time.Time]time.Duration{noon: time.Minute, later: 0, later.Add(time.Hour): 0} {
		want := job.Lease{Token: "t", Generation: 7, Expires: later, Remaining: remaining}
		if got := w.Lease(now); got != want {
			t.Errorf("as of %v: %+v, want %+v", now, got, want)
		}
	}
}

// TestAnchor: only a due time that no clock within the allowance can have set is measured anew, and never at once.
func TestAnchor(t *testing.T) {
	const allowance = 2 * time.Second
	for _, c := range []struct {
		state job.WorkState
		ahead time.Duration // of what was granted, which is a minute
		want  bool
	}{
		{job.StateLeased, 0, false},
		{job.StateLeased, -time.Hour, false}, // long lapsed
		{job.StateLeased, allowance, false},
		{job.StateLeased, allowance + time.Millisecond, true},
		{job.StateLeased, 24 * time.Hour, true},
		{job.StateQueued, allowance, false},
		{job.StateQueued, time.Hour, true},
		{job.StateUnknown, time.Hour, false},
	} {
		w := held()
		w.State, w.Due = c.state, later.Add(c.ahead)
		got, anchored := w.Anchor(allowance, noon)
		want := w
		if c.want {
			want.Due = job.Millis(later)
		}
		if wantWork(t, got, want); anchored != c.want {
			t.Errorf("%v, %v ahead: anchored %t, want %t", c.state, c.ahead, anchored, c.want)
		}
	}
	// However often it is told again, a lease stays within what was granted.
	w := held()
	for range 100 {
		w = w.Retell()
	}
	if _, anchored := w.Anchor(0, noon); anchored {
		t.Error("a lease that was told again counts as granted by a clock that was ahead")
	}
}
