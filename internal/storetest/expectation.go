package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	overdueAfter = time.Minute
	giveUpAfter  = time.Hour
)

func expect(t *testing.T, s job.Store, id string) (job.Expectation, bool) {
	t.Helper()
	overdue, giveUp := overdueAfter, giveUpAfter
	req, err := job.NewExpectRequest(id, "https://provider.example/jobs/"+id, &overdue, &giveUp)
	testenv.Must(t, err)
	e, recorded, err := s.Expect(t.Context(), req)
	testenv.Must(t, err)
	return e, recorded
}

func claimOverdue(t *testing.T, s job.Store, most int) job.Overdue {
	t.Helper()
	return claimOverdueUnder(t, s, "", most)
}

func claimOverdueUnder(t *testing.T, s job.Store, prefix string, most int) job.Overdue {
	t.Helper()
	o, err := s.ClaimOverdue(t.Context(), job.OverdueRequest{Max: most, Lease: lease, Prefix: prefix})
	testenv.Must(t, err)
	return o
}

func listed(t *testing.T, s job.Store, which job.ExpectationFilter) (ids []string) {
	t.Helper()
	return listedUnder(t, s, which, "")
}

func listedUnder(t *testing.T, s job.Store, which job.ExpectationFilter, prefix string) (ids []string) {
	t.Helper()
	for after := ""; ; {
		page, next, err := s.ListExpectations(t.Context(), which, prefix, after, 3)
		testenv.Must(t, err)
		for _, e := range page {
			ids = append(ids, e.JobID)
		}
		if next == "" {
			return ids
		}
		after = next
	}
}

func expectations(t *testing.T, e Env) {
	began := job.Millis(e.Clock.Now())
	kept, recorded := expect(t, e.Store, "a")
	want := job.Expectation{JobID: "a", StatusURL: "https://provider.example/jobs/a", Created: began, Overdue: began.Add(overdueAfter),
		Due: began.Add(overdueAfter), GiveUp: began.Add(giveUpAfter)}
	if recorded || kept != want {
		t.Errorf("got %+v, recorded %t; want %+v", kept, recorded, want)
	}
	e.Clock.Advance(time.Second)
	if again, _ := expect(t, e.Store, "a"); again != want { // its answer was lost
		t.Errorf("repeated: %+v", again)
	}
	record(t, e.Store, input("b", "r"))
	if _, recorded := expect(t, e.Store, "b"); !recorded {
		t.Error("b is recorded")
	}
	if got := listed(t, e.Store, job.AllExpectations); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed %v", got)
	}
	if got := claimOverdue(t, e.Store, 10); len(got.Jobs) > 0 {
		t.Errorf("claimed %+v before it is overdue", got)
	}
	e.Clock.Advance(overdueAfter)
	if n, err := e.Store.CountOverdue(t.Context()); n != 1 || err != nil {
		t.Errorf("%d are overdue, %v", n, err)
	}
	got := claimOverdue(t, e.Store, 10)
	if len(got.Jobs) != 1 || got.Jobs[0].Token == "" || !got.Jobs[0].Leased || !got.Jobs[0].Due.Equal(job.Millis(e.Clock.Now().Add(lease))) {
		t.Fatalf("claimed %+v", got)
	}
	if other := claimOverdue(t, e.Store, 10); len(other.Jobs) > 0 {
		t.Errorf("claimed %+v twice", other)
	}
	first := got.Jobs[0].Token
	e.Clock.Advance(2 * lease) // the poller is dead
	second := claimOverdue(t, e.Store, 10).Jobs[0].Token
	report := func(token string, next *time.Duration) (job.Expectation, bool, error) {
		return e.Store.ReportPoll(t.Context(), job.PollReport{JobID: "a", Token: token, Next: next, Error: "503", Jitter: 0.5})
	}
	lost(t, "ReportPoll", func() error { _, _, err := report(first, nil); return err })
	lost(t, "ReportPoll", func() error { _, _, err := report("", nil); return err })
	for i, delay := range []time.Duration{15 * time.Second, 22500 * time.Millisecond, 33750 * time.Millisecond} {
		x, recorded, err := report(second, nil)
		if err != nil || recorded || x.Leased || x.Polls != int32(i+1) || x.Error != "503" || !x.Due.Equal(job.Millis(e.Clock.Now().Add(delay))) {
			t.Fatalf("report %d: %+v, %t, %v; want due after %v", i, x, recorded, err, delay)
		}
		e.Clock.Advance(time.Second)
		if again, _, err := report(second, nil); err != nil || again != x {
			t.Errorf("repeated: %+v, %v", again, err)
		}
		e.Clock.Advance(delay - 2*time.Second)
		if early := claimOverdue(t, e.Store, 1); len(early.Jobs) > 0 {
			t.Errorf("claimed %+v early", early)
		}
		e.Clock.Advance(time.Second)
		second = claimOverdue(t, e.Store, 1).Jobs[0].Token
	}
	putOff := job.PollReport{JobID: "a", Token: second, Error: "busy", Jitter: 0.5, PutOff: true}
	x, _, err := e.Store.ReportPoll(t.Context(), putOff)
	if delay := 50625 * time.Millisecond; err != nil || x.Leased || x.Polls != 3 || x.Error != "busy" || !x.Due.Equal(job.Millis(e.Clock.Now().Add(delay))) {
		t.Errorf("put off: %+v, %v", x, err)
	}
	e.Clock.Advance(time.Minute)
	second = claimOverdue(t, e.Store, 1).Jobs[0].Token
	hour := time.Hour // beyond the time at which it is given up
	if x, _, err := report(second, &hour); err != nil || !x.Due.Equal(x.GiveUp) {
		t.Errorf("%+v, %v", x, err)
	}
	e.Clock.Advance(time.Hour)
	given := claimOverdue(t, e.Store, 10)
	if len(given.Jobs) > 0 || len(given.GivenUp) != 1 || given.GivenUp[0].JobID != "a" || given.GivenUp[0].GivenUp.IsZero() || !given.GivenUp[0].Due.IsZero() {
		t.Errorf("given up: %+v", given)
	}
	e.Clock.Advance(time.Hour)
	if more := claimOverdue(t, e.Store, 10); len(more.Jobs)+len(more.GivenUp) > 0 {
		t.Errorf("after that: %+v", more)
	}
	if got := listed(t, e.Store, job.GivenUpExpectations); !slices.Equal(got, []string{"a"}) {
		t.Errorf("given up: %v", got)
	}
	if n, err := e.Store.CountOverdue(t.Context()); n != 0 || err != nil {
		t.Errorf("%d are overdue, %v", n, err)
	}
	testenv.Must(t, e.Store.CancelExpectation(t.Context(), "a"))
	if err := e.Store.CancelExpectation(t.Context(), "a"); !errors.Is(err, job.ErrNoExpectation) {
		t.Errorf("cancelled again: %v", err)
	}
	if _, _, err := report(second, nil); !errors.Is(err, job.ErrNoExpectation) {
		t.Errorf("reported after that: %v", err)
	}
}

// overdueInParts: what is due is handed out oldest first, in parts, and what is recorded is taken away.
func overdueInParts(t *testing.T, e Env) {
	var ids []string
	for i := range 12 {
		id := fmt.Sprintf("job-%02d", i*5%12)
		expect(t, e.Store, id)
		e.Clock.Advance(time.Second)
		if i%3 == 0 {
			record(t, e.Store, input(id, "r"))
		} else {
			ids = append(ids, id)
		}
	}
	if got := listed(t, e.Store, job.AllExpectations); len(got) != 12 || !slices.IsSorted(got) {
		t.Errorf("recording touched them: %v", got)
	}
	e.Clock.Advance(overdueAfter)
	if got := listed(t, e.Store, job.OverdueExpectations); len(got) != 12 {
		t.Errorf("overdue: %v", got)
	}
	var got []string
	removed := 0
	for {
		o := claimOverdue(t, e.Store, 5)
		for _, x := range o.Jobs {
			got = append(got, x.JobID)
		}
		if removed += o.Recorded; !o.More {
			break
		}
	}
	if !slices.Equal(got, ids) || removed != 4 {
		t.Errorf("claimed %v, %d were recorded; want %v, 4", got, removed, ids)
	}
	if got := listed(t, e.Store, job.AllExpectations); len(got) != 8 {
		t.Errorf("left %v", got)
	}
}

// overdueUnderAPrefix: a claim with a prefix hands out, removes and gives up what is under it and nothing else, however much else is
// due, and a list of a prefix has and tells nothing else.
func overdueUnderAPrefix(t *testing.T, e Env) {
	var want []string
	for i := range 40 {
		id := fmt.Sprint([]string{"bank:", "shop", "shop:", "shop:eu:", "shop9:", "shopping:", "zoo:", ""}[i%8], 40-i)
		expect(t, e.Store, id)
		e.Clock.Advance(time.Second)
		switch {
		case !strings.HasPrefix(id, "shop:"):
		case i == 10:
			record(t, e.Store, input(id, "r"))
		default:
			want = append(want, id)
		}
	}
	all := listed(t, e.Store, job.AllExpectations)
	under := listedUnder(t, e.Store, job.AllExpectations, "shop:")
	if mine := append(slices.Clone(want), "shop:30"); len(under) != len(mine) || !slices.IsSorted(under) || len(all) != 40 {
		t.Errorf("listed %v of %v", under, all)
	}
	for after, want := range map[string]int{"": 10, "a": 10, "shop:": 10, "shop:30": 7, "shop;": 0, "zoo:": 0} { // whatever a token says
		page, next, err := e.Store.ListExpectations(t.Context(), job.AllExpectations, "shop:", after, 20)
		if err != nil || len(page) != want || next != "" {
			t.Errorf("behind %q: %d, then %q, %v; want %d", after, len(page), next, err, want)
		}
	}
	e.Clock.Advance(overdueAfter)
	if got := claimOverdueUnder(t, e.Store, "shop:eu:", 10); len(got.Jobs) != 5 || got.More {
		t.Errorf("claimed %+v under shop:eu:", got)
	}
	if got := claimOverdueUnder(t, e.Store, "nobody:", 10); len(got.Jobs)+got.Recorded > 0 || got.More {
		t.Errorf("claimed %+v of nobody", got)
	}
	e.Clock.Advance(2 * lease)
	var got []string
	removed := 0
	for more := true; more; {
		o := claimOverdueUnder(t, e.Store, "shop:", 3)
		for _, x := range o.Jobs {
			got = append(got, x.JobID)
		}
		removed, more = removed+o.Recorded, o.More
	}
	// Those under shop:eu: were leased until later.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || removed != 1 {
		t.Errorf("claimed %v, %d were recorded; want %v, 1", got, removed, want)
	}
	e.Clock.Advance(giveUpAfter)
	given := claimOverdueUnder(t, e.Store, "shop:", 100)
	if len(given.GivenUp) != len(want) || len(given.Jobs) > 0 {
		t.Errorf("given up: %+v", given)
	}
	if got := listed(t, e.Store, job.GivenUpExpectations); !slices.Equal(got, want) {
		t.Errorf("given up: %v, want %v", got, want)
	}
}

// reportedBeforeRecorded: a poller reports before it records what it has heard. Nobody is told that the job is expected which was
// cancelled, was deleted, or is with another poller; and reported once more with the same token, a recorded one is expected no more.
func reportedBeforeRecorded(t *testing.T, e Env) {
	for name, c := range map[string]struct {
		meanwhile func(id string)
		err       error
		recorded  bool
	}{
		"nothing":   {func(string) {}, nil, false},
		"cancelled": {func(id string) { testenv.Must(t, e.Store.CancelExpectation(t.Context(), id)) }, job.ErrNoExpectation, false},
		"came":      {func(id string) { record(t, e.Store, input(id, "webhook")) }, nil, true},
		"came and deleted": {func(id string) {
			record(t, e.Store, input(id, "webhook"))
			was, err := deleteOne(t, e, job.Deletion{Expected: asRead(t, e, id)})
			if !was || err != nil {
				t.Errorf("deleted %t, %v", was, err)
			}
		}, job.ErrNoExpectation, false},
		"expected anew": {func(id string) {
			testenv.Must(t, e.Store.CancelExpectation(t.Context(), id))
			expect(t, e.Store, id)
		}, job.ErrLeaseLost, false},
		"claimed again": {func(string) {
			e.Clock.Advance(2 * lease)
			claimOverdue(t, e.Store, 100)
		}, job.ErrLeaseLost, false},
	} {
		expect(t, e.Store, name)
		e.Clock.Advance(overdueAfter)
		token := ""
		for _, x := range claimOverdue(t, e.Store, 100).Jobs {
			if x.JobID == name {
				token = x.Token
			}
		}
		c.meanwhile(name)
		next := lease
		report := func() (bool, error) {
			_, recorded, err := e.Store.ReportPoll(t.Context(), job.PollReport{JobID: name, Token: token, Next: &next})
			return recorded, err
		}
		if recorded, err := report(); token == "" || recorded != c.recorded || !errors.Is(err, c.err) {
			t.Errorf("%s: recorded %t, %v; want %t, %v", name, recorded, err, c.recorded, c.err)
		} else if err == nil && !recorded {
			record(t, e.Store, input(name, "poll"))
			if recorded, err := report(); !recorded || err != nil || slices.Contains(listed(t, e.Store, job.AllExpectations), name) {
				t.Errorf("%s: reported again: recorded %t, %v", name, recorded, err)
			}
		}
	}
}

// oneStart makes the webhook, the poll, the expectation, retention and a deletion meet in every order: each life of the job
// has one start. Without the long mode it takes one of seven orders, others each time.
func oneStart(t *testing.T, e Env) {
	steps := map[string]func(id string, tokens map[string]string) (start bool){
		"expect": func(id string, _ map[string]string) bool { expect(t, e.Store, id); return false },
		"webhook": func(id string, _ map[string]string) bool {
			return record(t, e.Store, input(id, "webhook")).Verdict.StartWork
		},
		"claim": func(id string, tokens map[string]string) bool {
			for _, x := range claimOverdue(t, e.Store, 100).Jobs {
				tokens[x.JobID] = x.Token
			}
			return false
		},
		"poll": func(id string, tokens map[string]string) (start bool) {
			if tokens[id] == "" {
				return false
			}
			in := input(id, "poll")
			in.Source = "poll"
			start = record(t, e.Store, in).Verdict.StartWork
			_, recorded, err := e.Store.ReportPoll(t.Context(), job.PollReport{JobID: id, Token: tokens[id]})
			if !errors.Is(err, job.ErrNoExpectation) && (err != nil || !recorded) {
				t.Errorf("%s: reported: recorded %t, %v", id, recorded, err)
			}
			return start
		},
		"retention": func(id string, _ map[string]string) bool {
			if r, err := e.Store.Get(t.Context(), id, false); err == nil {
				_, err := deleteOne(t, e, job.Deletion{Expected: job.ExpectedOf(&r), Kind: job.DropPayload, ActiveBefore: e.Clock.Now(),
					Deliveries: r.Deliveries})
				testenv.Must(t, err)
			}
			return false
		},
		"delete": func(id string, _ map[string]string) bool { return false }, // see below
	}
	n, every, first := 0, 7, int(testenv.Seed(t)%7)
	if testenv.Long() {
		every, first = 1, 0
	}
	for order := range permutations([]string{"expect", "webhook", "claim", "poll", "retention", "delete"}) {
		if n++; n%every != first {
			continue
		}
		id, tokens := fmt.Sprintf("order-%d", n), map[string]string{}
		starts, lives, there := 0, 0, false
		for _, step := range order {
			e.Clock.Advance(overdueAfter)
			if step == "delete" {
				if there {
					was, err := deleteOne(t, e, job.Deletion{Expected: asRead(t, e, id)})
					if err != nil || !was || slices.Contains(listed(t, e.Store, job.AllExpectations), id) {
						t.Errorf("%v: deleted %t, %v", order, was, err)
					}
					there = false
				}
				continue
			}
			if steps[step](id, tokens) {
				starts++
			}
			_, err := e.Store.Get(t.Context(), id, false)
			if err == nil && !there {
				lives, there = lives+1, true
			}
		}
		if starts != lives {
			t.Errorf("%v: %d starts in %d lives", order, starts, lives)
		}
		// What is recorded is expected no more, once somebody looks.
		if e.Clock.Advance(2 * lease); there {
			claimOverdue(t, e.Store, 100)
			if slices.Contains(listed(t, e.Store, job.AllExpectations), id) {
				t.Errorf("%v: still expected", order)
			}
		}
		if err := e.Store.CancelExpectation(t.Context(), id); err != nil && !errors.Is(err, job.ErrNoExpectation) {
			t.Error(err)
		}
	}
	if n != 720 {
		t.Errorf("%d orders", n)
	}
}

// permutations are those of the words.
func permutations(words []string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		var from func(n int) bool
		from = func(n int) bool {
			if n == len(words) {
				return yield(words)
			}
			for i := n; i < len(words); i++ {
				words[n], words[i] = words[i], words[n]
				if !from(n + 1) {
					return false
				}
				words[n], words[i] = words[i], words[n]
			}
			return true
		}
		from(0)
	}
}
