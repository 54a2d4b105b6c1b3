package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

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
