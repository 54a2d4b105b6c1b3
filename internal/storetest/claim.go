package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func queuedLife(t *testing.T, e Env) {
	want(t, record(t, e.Store, queued("j", "r1")), job.First, false, true, 1)
	want(t, record(t, e.Store, queued("j", "r1")), job.First, false, true, 2)
	want(t, record(t, e.Store, queued("j", "r2")), job.Pending, false, false, 3)
	want(t, record(t, e.Store, input("j", "r3")), job.Pending, false, false, 4)

	got := claim(t, e.Store, "c1", 5)
	if len(got) != 1 {
		t.Fatalf("claimed %d jobs, want 1", len(got))
	}
	checkLease(t, got[0].Lease, e)
	if r := got[0].Record; r.JobID != "j" || r.Body != queued("j", "").Body || r.Work.Attempts != 1 || r.Work.Mode != job.ModeQueued {
		t.Errorf("claimed %+v", r)
	}
	want(t, record(t, e.Store, queued("j", "r1")), job.First, false, true, 5)
	want(t, record(t, e.Store, leased("j", "r2")), job.InProgress, false, false, 6)
	if more := claim(t, e.Store, "c2", 5); len(more) != 0 {
		t.Errorf("claimed what is leased: %+v", more)
	}
	again := claim(t, e.Store, "c1", 5)
	if len(again) != 1 || again[0].Lease.Token != got[0].Lease.Token || again[0].Record.Body != got[0].Record.Body {
		t.Errorf("the same request got %+v", again)
	}
	testenv.Must(t, job.Complete(t.Context(), e.Store, "j", got[0].Lease.Token, ""))
	if again := claim(t, e.Store, "c1", 5); len(again) != 0 {
		t.Errorf("the same request got %d completed jobs", len(again))
	}
	// A delivery that asks for a lease takes queued work that is due.
	record(t, e.Store, queued("k", "r1"))
	o := record(t, e.Store, leased("k", "r2"))
	want(t, o, job.Reclaimed, true, false, 2)
	wantLease(t, o, e)
}

func claimsOldestFirst(t *testing.T, e Env) {
	var ids []string
	for i := range 7 {
		id := fmt.Sprintf("job-%d", 9-i)
		in := queued(id, "")
		in.Event = []string{"a", "b"}[i%2]
		in.Body = job.Body{}
		record(t, e.Store, in)
		ids = append(ids, id)
		e.Clock.Advance(time.Second)
	}
	record(t, e.Store, input("untracked", ""))
	names := func(got []job.Claimed) (out []string) {
		for _, c := range got {
			out = append(out, c.Record.JobID)
		}
		return out
	}
	type asked struct {
		n      int
		events []string
		want   []string
	}
	claims := []asked{
		{2, nil, ids[:2]},
		{2, []string{"b"}, []string{ids[3], ids[5]}},
		{1, []string{"b", "c"}, nil},
		{10, []string{"a", "c"}, []string{ids[2], ids[4], ids[6]}},
		{10, nil, nil},
	}
	if e.Shared { // what is claimed together comes in order all the same
		claims = []asked{
			{3, []string{"b"}, []string{ids[1], ids[3], ids[5]}},
			{1, []string{"b", "c"}, nil},
			{10, []string{"a", "c"}, []string{ids[0], ids[2], ids[4], ids[6]}},
			{10, nil, nil},
		}
	}
	for i, c := range claims {
		if diff := cmp.Diff(c.want, names(claim(t, e.Store, fmt.Sprint("c", i), c.n, c.events...))); diff != "" {
			t.Errorf("claim %d (-want +got):\n%s", i, diff)
		}
	}
}

func longestDue(t *testing.T, e Env) {
	due := func(wantID string, wantSince time.Duration) {
		t.Helper()
		id, since, err := e.Store.LongestDue(t.Context())
		if err != nil || id != wantID || since != wantSince {
			t.Errorf("%q has been due for %v, %v; want %q, %v", id, since, err, wantID, wantSince)
		}
	}
	record(t, e.Store, input("untracked", ""))
	record(t, e.Store, leased("held", ""))
	due("", 0)
	early := queued("early", "")
	early.Event, early.Body = "early", job.Body{} // to be claimed alone
	record(t, e.Store, early)
	due("early", 0)
	e.Clock.Advance(time.Second)
	record(t, e.Store, queued("late", ""))
	e.Clock.Advance(10 * time.Second)
	due("early", 11*time.Second)
	got := claim(t, e.Store, "c", 1, "early")
	due("late", 10*time.Second)
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "early", got[0].Lease.Token, job.Release{Delay: 2 * time.Hour}))
	late := claim(t, e.Store, "c2", 1)
	due("", 0)
	testenv.Must(t, job.Complete(t.Context(), e.Store, "late", late[0].Lease.Token, ""))
	e.Clock.Advance(time.Hour)
	id, since, err := e.Store.LongestDue(t.Context()) // a lease that lapsed
	if err != nil || id != "held" || since < time.Minute || since > time.Hour {
		t.Errorf("%q has been due for %v, %v; want held", id, since, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := e.Store.LongestDue(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	testenv.Must(t, e.Store.Close())
	if _, _, err := e.Store.LongestDue(t.Context()); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

// claimsUnderAPrefix: nobody gets a job outside of the prefix asked for, of none that is due and of none that the request
// holds already.
func claimsUnderAPrefix(t *testing.T, e Env) {
	for _, id := range []string{"shop:1", "shop", "shopping:1", "shop:eu:1", "Shop:1", ":1", "bank:shop:1", "shop:2", "shop;1", "caf\u00e9:1", ":", "a:b"} {
		record(t, e.Store, queued(id, ""))
		e.Clock.Advance(time.Millisecond)
	}
	under := func(request, prefix string, most int, want ...string) {
		t.Helper()
		got, err := e.Store.Claim(t.Context(), job.ClaimRequest{RequestID: request, Prefix: prefix, Max: most, Lease: lease, MaxBytes: 1 << 20})
		var ids []string
		for _, c := range got {
			ids = append(ids, c.Record.JobID)
		}
		slices.Sort(ids)
		slices.Sort(want)
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("claim of %d jobs under %q: %q, %v; want %q", most, prefix, ids, err, want)
		}
	}
	under("c1", "shop:eu:", 1, "shop:eu:1")
	under("c1", "shop:", 3, "shop:eu:1")
	under("c1", "bank:", 3, "bank:shop:1") // the same request, and what it holds is elsewhere
	under("c1", "", 9, "shop:eu:1", "bank:shop:1")
	under("c1", "nobody:", 1)
	record(t, e.Store, queued("shop:eu:2", ""))
	under("c2", "shop:", 9, "shop:1", "shop:2", "shop:eu:2")
	under("c2", "shop:eu:", 9, "shop:eu:2")
	under("c3", ":", 9, ":1", ":")
	under("c4", "caf\u00e9:", 9, "caf\u00e9:1")
	under("c5", "shop:", 9)
	under("c6", "", 9, "shop", "shopping:1", "Shop:1", "shop;1", "a:b")
	e.Clock.Advance(2 * lease)
	under("c7", "a:", 9, "a:b") // what has lapsed
	under("c7", "shop:eu:", 9, "shop:eu:1", "shop:eu:2")
}

// requestIDsAreTheirCallers: a request id replays for the caller that used it, and for nobody else but where one of the two
// had no caller.
func requestIDsAreTheirCallers(t *testing.T, e Env) {
	by := func(caller string, in job.Input) job.Input {
		in.Caller = caller
		return in
	}
	want(t, record(t, e.Store, by("a", input("untracked", "r"))), job.First, true, true, 1)
	want(t, record(t, e.Store, by("b", input("untracked", "r"))), job.Duplicate, false, false, 2)
	want(t, record(t, e.Store, by("a", input("untracked", "r"))), job.First, true, true, 3)
	want(t, record(t, e.Store, by("", input("untracked", "r"))), job.First, true, true, 4)
	want(t, record(t, e.Store, by("", input("of nobody", "r"))), job.First, true, true, 1)
	want(t, record(t, e.Store, by("b", input("of nobody", "r"))), job.First, true, true, 2)

	want(t, record(t, e.Store, by("a", queued("queued", "r"))), job.First, false, true, 1)
	want(t, record(t, e.Store, by("b", queued("queued", "r"))), job.Pending, false, false, 2)

	first := record(t, e.Store, by("a", leased("leased", "r")))
	want(t, first, job.First, true, true, 1)
	want(t, record(t, e.Store, by("b", leased("leased", "r"))), job.InProgress, false, false, 2)
	again := record(t, e.Store, by("a", leased("leased", "r")))
	want(t, again, job.First, true, true, 3)
	if again.Lease == nil || again.Lease.Token != first.Lease.Token {
		t.Errorf("the same call of the same caller has the lease %+v, want %+v", again.Lease, first.Lease)
	}
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "leased", first.Lease.Token, job.Release{}))
	e.Clock.Advance(time.Millisecond)
	want(t, record(t, e.Store, by("b", leased("leased", "r2"))), job.Reclaimed, true, false, 4)
	want(t, record(t, e.Store, by("a", leased("leased", "r2"))), job.InProgress, false, false, 5)

	claimed := func(caller string) (ids []string) {
		t.Helper()
		got, err := e.Store.Claim(t.Context(), job.ClaimRequest{RequestID: "c", Caller: caller, Max: 1, Lease: lease, MaxBytes: 1 << 20})
		testenv.Must(t, err)
		for _, c := range got {
			ids = append(ids, c.Record.JobID)
		}
		return ids
	}
	for i, c := range []struct{ caller, want string }{{"a", "queued"}, {"b", ""}, {"a", "queued"}, {"", "queued"}} {
		if got := strings.Join(claimed(c.caller), " "); got != c.want {
			t.Errorf("claim %d, by %q, gets %q, want %q", i, c.caller, got, c.want)
		}
	}
	record(t, e.Store, queued("late", ""))
	e.Clock.Advance(time.Millisecond)
	if got := claimed("b"); !slices.Equal(got, []string{"late"}) {
		t.Errorf("the other caller's claim gets %q, want what is due", got)
	}
	if r := get(t, e.Store, "late"); r.Work.Caller != "b" || r.Caller != "" {
		t.Errorf("kept as of %q, under a lease of %q", r.Caller, r.Work.Caller)
	}
	e.Clock.Advance(2 * lease)
	claim(t, e.Store, "c", 9) // by nobody: who held the leases before is not kept
	for _, id := range []string{"late", "leased"} {
		if r := get(t, e.Store, id); r.Work.State != job.StateLeased || r.Work.Caller != "" {
			t.Errorf("%s: %+v", id, r.Work)
		}
	}
}

func claimFitsTheReply(t *testing.T, e Env) {
	for i := range 4 {
		in := queued(fmt.Sprintf("job-%d", i), "")
		in.Body = job.Body{Kind: job.BodyText, Data: strings.Repeat("x", 600<<10)}
		record(t, e.Store, in)
		e.Clock.Advance(time.Second)
	}
	for i, want := range []int{1, 2, 1} {
		bytes := []int{100, 1300 << 10, 3 << 20}[i]
		got, err := e.Store.Claim(t.Context(), job.ClaimRequest{RequestID: fmt.Sprint(i), Max: 10, Lease: lease, MaxBytes: bytes})
		if err != nil || len(got) != want {
			t.Errorf("claim within %d bytes: %d jobs, %v; want %d", bytes, len(got), err, want)
		}
	}
}

func attemptsRunOut(t *testing.T, e Env) {
	record(t, e.Store, leased("by delivery", ""))
	record(t, e.Store, queued("by claim", ""))
	for n := range int32(MaxAttempts) {
		if n > 0 {
			o := record(t, e.Store, leased("by delivery", ""))
			want(t, o, job.Reclaimed, true, false, int64(n)+1)
		}
		if got := claim(t, e.Store, fmt.Sprint("c", n), 1); len(got) != 1 || got[0].Record.Work.Attempts != n+1 {
			t.Fatalf("attempt %d: %+v", n+1, got)
		}
		wantState(t, e.Store, "by delivery", job.StateLeased, n+1)
		e.Clock.Advance(2 * lease)
	}
	record(t, e.Store, queued("behind", ""))
	o := record(t, e.Store, leased("by delivery", ""))
	want(t, o, job.Dead, false, false, MaxAttempts+1)
	// The dead one makes room for the next.
	if got := claim(t, e.Store, "last", 1); len(got) != 1 || got[0].Record.JobID != "behind" {
		t.Errorf("claimed %+v, want the job behind the dead one", got)
	}
	if got := claim(t, e.Store, "none", 1); len(got) != 0 { // by now it is dead also where the other was tried first
		t.Errorf("claimed %+v", got)
	}
	wantTold(t, e, "by claim: dead after 2 lapses", "by claim: leased after 1 lapses", "by claim: leased after 2 lapses",
		"by delivery: dead after 2 lapses", "by delivery: leased after 1 lapses", "by delivery: leased after 2 lapses")
	for _, id := range []string{"by delivery", "by claim"} {
		if w := wantState(t, e.Store, id, job.StateDead, MaxAttempts); w.Error == "" || w.Token != "" {
			t.Errorf("%s: dead with %+v", id, w)
		}
	}
}

// toldOnce: of a job that died is told once, and of a lease that lapsed with the next one.
func toldOnce(t *testing.T, e Env) {
	given := *record(t, e.Store, leased("given up", "")).Lease
	kept := *record(t, e.Store, leased("kept", "")).Lease
	for range 2 {
		testenv.Must(t, job.GiveBack(t.Context(), e.Store, "given up", given.Token, job.Release{Dead: true}))
	}
	testenv.Must(t, job.Complete(t.Context(), e.Store, "kept", kept.Token, ""))
	wantTold(t, e, "given up: dead after 0 lapses")
	lapsed := *record(t, e.Store, leased("lapsed", "")).Lease
	e.Clock.Advance(2 * lease)
	again := record(t, e.Store, leased("lapsed", "r2"))
	record(t, e.Store, leased("lapsed", "r2")) // the same call
	if _, err := job.Renew(t.Context(), e.Store, "lapsed", again.Lease.Token, lease); err != nil {
		t.Fatal(err)
	}
	if err := job.Complete(t.Context(), e.Store, "lapsed", lapsed.Token, ""); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("%v, want ErrLeaseLost", err)
	}
	wantTold(t, e, "lapsed: leased after 1 lapses")
	testenv.Must(t, job.GiveBack(t.Context(), e.Store, "lapsed", again.Lease.Token, job.Release{}))
	e.Clock.Advance(time.Millisecond)
	record(t, e.Store, leased("lapsed", "r3")) // a release is a word of the holder
	wantTold(t, e)
}

func wantTold(t *testing.T, e Env, want ...string) {
	t.Helper()
	if got := e.Watched.take(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func unclaimedWorkIsFree(t *testing.T, e Env) {
	for i := range 3 {
		record(t, e.Store, queued(fmt.Sprint("job-", i), ""))
	}
	got := claim(t, e.Store, "c1", 3)
	if len(got) != 3 {
		t.Fatalf("claimed %d", len(got))
	}
	testenv.Must(t, job.Complete(t.Context(), e.Store, got[2].Record.JobID, got[2].Lease.Token, ""))
	for range 2 { // repeated, it changes nothing
		testenv.Must(t, e.Store.Unclaim(t.Context(), got))
	}
	wantState(t, e.Store, got[2].Record.JobID, job.StateCompleted, 1)
	again := claim(t, e.Store, "c2", 3)
	if len(again) != 2 {
		t.Fatalf("claimed %d again, want 2", len(again))
	}
	for _, c := range again {
		before := got[slices.IndexFunc(got, func(g job.Claimed) bool { return g.Record.JobID == c.Record.JobID })]
		if c.Record.Work.Attempts != 1 || c.Lease.Generation <= before.Lease.Generation || c.Lease.Token == before.Lease.Token {
			t.Errorf("after it was given back: %+v, %+v", c.Record.Work, c.Lease)
		}
		lost(t, "Complete what was given back", func() error {
			return job.Complete(t.Context(), e.Store, c.Record.JobID, before.Lease.Token, "")
		})
	}
}

// toldLeasesStay: what a repeated call was told of, the first call cannot give back, nor the second what it only found.
func toldLeasesStay(t *testing.T, e Env) {
	record(t, e.Store, queued("j", ""))
	first := claim(t, e.Store, "c1", 1)
	second := claim(t, e.Store, "c1", 1)
	if len(first) != 1 || len(second) != 1 || !first[0].Granted || second[0].Granted || first[0].Lease.Token != second[0].Lease.Token {
		t.Fatalf("claimed %+v, then %+v", first, second)
	}
	for _, claims := range [][]job.Claimed{first, second} {
		testenv.Must(t, e.Store.Unclaim(t.Context(), claims))
		wantState(t, e.Store, "j", job.StateLeased, 1)
	}
	if _, err := job.Renew(t.Context(), e.Store, "j", second[0].Lease.Token, lease); err != nil {
		t.Errorf("the lease that the second call was told of: %v", err)
	}
}

// raceForTheWork has many callers want the same free work, by delivery and by claim: each job goes to one of them.
func raceForTheWork(t *testing.T, e Env) {
	const workers = 6
	ids := jobIDs(12)
	for _, id := range ids {
		record(t, e.Store, queued(id, ""))
	}
	var mu sync.Mutex
	holders := map[string][]job.Lease{}
	got := func(id string, l job.Lease) {
		mu.Lock()
		defer mu.Unlock()
		holders[id] = append(holders[id], l)
	}
	together(workers, func(w int) {
		if w%2 == 0 {
			for i := 0; ; i++ {
				c, err := e.Store.Claim(t.Context(), job.ClaimRequest{RequestID: fmt.Sprintf("c-%d-%d", w, i), Max: 3, Lease: lease, MaxBytes: 1 << 20})
				testenv.OK(t, err)
				for _, one := range c {
					got(one.Record.JobID, one.Lease)
				}
				if len(c) == 0 {
					return
				}
			}
		}
		for _, id := range ids {
			o := e.Store.Record(t.Context(), []job.Delivery{check(t, leased(id, ""))})[0]
			if o.Err != nil {
				t.Error(o.Err)
			}
			if o.Lease != nil != o.Verdict.StartWork {
				t.Errorf("%s: start %t, lease %+v", id, o.Verdict.StartWork, o.Lease)
			}
			if o.Lease != nil {
				got(id, *o.Lease)
			}
		}
	})
	for _, id := range ids {
		if len(holders[id]) != 1 {
			t.Errorf("%s was leased to %d callers", id, len(holders[id]))
		}
		wantState(t, e.Store, id, job.StateLeased, 1)
	}
}

func workBatch(t *testing.T, e Env) {
	out := e.Store.Record(t.Context(), []job.Delivery{
		check(t, leased("l", "r1")), check(t, queued("q", "r1")), check(t, leased("l", "r2")), check(t, leased("q", "r2")),
		check(t, leased("l", "r1")), check(t, input("q", "r3")), check(t, queued("q", "r1")),
	})
	want(t, out[0], job.First, true, true, 1)
	want(t, out[1], job.First, false, true, 1)
	want(t, out[2], job.InProgress, false, false, 2)
	want(t, out[3], job.Reclaimed, true, false, 2)
	want(t, out[4], job.First, true, true, 3)
	// Lanes may have begun a batch after the first of q. Then this one is decided beside the claim.
	beside := job.InProgress
	if out[5].Verdict.Disposition == job.Pending {
		beside = job.Pending
	}
	want(t, out[5], beside, false, false, 3)
	want(t, out[6], job.First, false, true, 4)
	if a, b := wantLease(t, out[0], e), wantLease(t, out[4], e); a.Token != b.Token {
		t.Errorf("the replay in one batch got another lease: %+v, %+v", a, b)
	}
	wantLease(t, out[3], e)
}
