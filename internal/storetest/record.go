package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
)

func firstThenDuplicate(t *testing.T, e Env) {
	wantFirst(t, record(t, e.Store, input("j", "r1")), 1)
	for n := int64(2); n < 5; n++ {
		wantDuplicate(t, record(t, e.Store, input("j", "")), n)
	}
	wantFirst(t, record(t, e.Store, input("k", "r1")), 1)
	if r := get(t, e.Store, "j"); r.Deliveries != 4 || r.Conflicts != 0 || r.LastConflict != nil {
		t.Errorf("stored: deliveries %d, conflicts %d, %v; want 4, 0, none", r.Deliveries, r.Conflicts, r.LastConflict)
	}
}

func replayGetsTheSameAnswer(t *testing.T, e Env) {
	for _, in := range []job.Input{input("with body", "r"), plain("without", "r")} {
		wantFirst(t, record(t, e.Store, in), 1)
		wantFirst(t, record(t, e.Store, in), 2)
		other := in
		other.RequestID = "other"
		wantDuplicate(t, record(t, e.Store, other), 3)
		wantDuplicate(t, record(t, e.Store, other), 4)
		wantFirst(t, record(t, e.Store, in), 5)
	}
}

func reusedRequestIDIsAnotherCall(t *testing.T, e Env) {
	first := input("j", "r")
	wantFirst(t, record(t, e.Store, first), 1)
	for i, change := range []func(*job.Input){
		func(in *job.Input) { in.Body.Data += " " },
		func(in *job.Input) { in.Body = job.Body{} },
		func(in *job.Input) { in.Body = job.Body{}; in.Status = "ERROR" },
		func(in *job.Input) { in.Body = job.Body{}; in.Event = "job.failed" },
	} {
		in := first
		change(&in)
		wantDuplicate(t, record(t, e.Store, in), int64(i)+2)
	}
	noBody := plain("no body", "r")
	wantFirst(t, record(t, e.Store, noBody), 1)
	noBody.Event = "job.completed"
	wantFirst(t, record(t, e.Store, noBody), 2)
	noBody.Body = job.Body{Kind: job.BodyText, Data: "x"}
	wantDuplicate(t, record(t, e.Store, noBody), 3)
}

// leaseIsForLeasedDeliveries: a delivery that did not ask for a lease gets none, not even under the request id of the call that
// holds it. Whoever sent it would neither renew nor complete it.
func leaseIsForLeasedDeliveries(t *testing.T, e Env) {
	for _, c := range []struct {
		name   string
		made   job.Input
		others job.Disposition // what the other modes are told
	}{
		{"of the creator", leased("of the creator", "r"), job.InProgress},
		{"of another", leased("of another", "creator"), job.InProgress},
		{"of queued work", queued("of queued work", "creator"), job.InProgress},
		{"of the creator of queued work", queued("of the creator of queued work", "r"), job.First},
	} {
		t.Run(c.name, func(t *testing.T) {
			record(t, e.Store, c.made)
			again := leased(c.name, "r")
			claim(t, e.Store, c.name, 100) // whoever queued it claims it only once a lease of it has lapsed
			e.Clock.Advance(2 * lease)
			held := record(t, e.Store, again)
			if held.Lease == nil {
				t.Fatalf("got %v and no lease", held.Verdict.Disposition)
			}
			for name, in := range map[string]job.Input{"queued": queued(c.name, "r"), "untracked": input(c.name, "r")} {
				o := record(t, e.Store, in)
				if v := o.Verdict; v.Disposition != c.others || v.StartWork || o.Lease != nil || o.Record.Body != (job.Body{}) {
					t.Errorf("%s: got %v, start %t, lease %v, body %q; want %v", name, v.Disposition, v.StartWork, o.Lease, o.Record.Body.Data, c.others)
				}
			}
			if o := record(t, e.Store, again); o.Lease == nil || o.Lease.Token != held.Lease.Token {
				t.Errorf("the holder got %v, %v", o.Verdict.Disposition, o.Lease)
			}
		})
	}
}

func conflicts(t *testing.T, e Env) {
	e1 := job.Input{Event: "job.completed", Status: "OK", Source: "webhook", Body: job.Body{Kind: job.BodyText, Data: "a"}}
	cases := []struct {
		name          string
		first, second func(*job.Input)
		want          job.ConflictKind
	}{
		{"same", nil, nil, job.ConflictNone},
		{"event", nil, func(in *job.Input) { in.Event = "job.failed" }, job.ConflictEvent},
		{"status", nil, func(in *job.Input) { in.Status = "ERROR" }, job.ConflictEvent},
		{"event wins over payload", nil, func(in *job.Input) { in.Status = "ERROR"; in.Body.Data = "b" }, job.ConflictEvent},
		{"event across sources", nil, func(in *job.Input) { in.Status = "ERROR"; in.Source = "poll" }, job.ConflictEvent},
		{"no event", nil, func(in *job.Input) { in.Event, in.Status = "", "" }, job.ConflictNone},
		{"no event stored", func(in *job.Input) { in.Event = "" }, func(in *job.Input) { in.Event = "x" }, job.ConflictNone},
		{"payload", nil, func(in *job.Input) { in.Body.Data = "b" }, job.ConflictBody},
		{"same bytes, other kind", nil, func(in *job.Input) { in.Body.Kind = job.BodyBytes }, job.ConflictNone},
		{"other source", nil, func(in *job.Input) { in.Body.Data = "b"; in.Source = "poll" }, job.ConflictNone},
		{"no payload", nil, func(in *job.Input) { in.Body = job.Body{} }, job.ConflictNone},
		{"empty payload", nil, func(in *job.Input) { in.Body.Data = "" }, job.ConflictNone},
		{"no payload stored", func(in *job.Input) { in.Body = job.Body{} }, nil, job.ConflictNone},
		{"empty payload stored", func(in *job.Input) { in.Body.Data = "" }, nil, job.ConflictNone},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			first, second := e1, e1
			first.JobID, second.JobID = c.name, c.name
			if c.first != nil {
				c.first(&first)
			}
			if c.second != nil {
				c.second(&second)
			}
			wantFirst(t, record(t, e.Store, first), 1)
			e.Clock.Advance(time.Second)
			o := record(t, e.Store, second)
			wantDuplicate(t, o, 2)
			var conflict *job.Conflict
			if c.want != job.ConflictNone {
				conflict = &job.Conflict{Kind: c.want, Event: second.Event, Status: second.Status, Time: job.Millis(e.Clock.Now())}
			}
			if diff := cmp.Diff(conflict, o.Verdict.Conflict); diff != "" {
				t.Errorf("conflict of the answer (-want +got):\n%s", diff)
			}
			r := get(t, e.Store, c.name)
			if diff := cmp.Diff(conflict, r.LastConflict); diff != "" {
				t.Errorf("stored conflict (-want +got):\n%s", diff)
			}
			if n := r.Conflicts; n != 0 != (conflict != nil) || n > 1 {
				t.Errorf("stored count of conflicts is %d", n)
			}
			if r.Event != first.Event || r.Status != first.Status || r.Body.Data != first.Body.Data {
				t.Errorf("the first delivery changed: %+v", r)
			}
		})
	}
	t.Run("latest is kept", func(t *testing.T) {
		in := e1
		in.JobID = "many"
		record(t, e.Store, in)
		for _, status := range []string{"ERROR", "LOST", "CANCELED"} {
			in.Status = status
			record(t, e.Store, in)
		}
		if r := get(t, e.Store, "many"); r.Conflicts != 3 || r.LastConflict == nil || r.LastConflict.Status != "CANCELED" {
			t.Errorf("stored %d conflicts, the latest %+v; want 3, CANCELED", r.Conflicts, r.LastConflict)
		}
	})
}

func oddIDs(t *testing.T, e Env) {
	ids := oddJobIDs()
	for i, id := range ids {
		in := plain(id, "")
		in.Status = string(rune('A' + i%26))
		wantFirst(t, record(t, e.Store, in), 1)
	}
	for i, id := range ids {
		wantDuplicate(t, record(t, e.Store, plain(id, "")), 2)
		if r := get(t, e.Store, id); r.JobID != id || r.Status != string(rune('A'+i%26)) {
			t.Errorf("Get %q gave %q with status %q", id, r.JobID, r.Status)
		}
	}
}

func bodies(t *testing.T, e Env) {
	for _, c := range []struct {
		name string
		body job.Body
	}{
		{"none", job.Body{}},
		{"empty text", job.Body{Kind: job.BodyText}},
		{"empty bytes", job.Body{Kind: job.BodyBytes}},
		{"JSON", job.Body{Kind: job.BodyText, Data: "{ \"z\":1 ,\n \"a\":2 }\n"}},
		{"text", job.Body{Kind: job.BodyText, Data: "a=b&c=d"}},
		{"text with NUL", job.Body{Kind: job.BodyText, Data: "a\x00b\x00"}},
		{"bytes", job.Body{Kind: job.BodyBytes, Data: "\x00\xff\xfe\x80"}},
		{"bytes that are text", job.Body{Kind: job.BodyBytes, Data: `{"a":1}`}},
		{"1 MiB", job.Body{Kind: job.BodyText, Data: `{"s":"` + strings.Repeat("x", 1<<20-8) + `"}`}},
		{"3 MiB", job.Body{Kind: job.BodyBytes, Data: strings.Repeat("\xff", 3<<20)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := plain(c.name, "r")
			in.Body = c.body
			o := record(t, e.Store, in)
			wantFirst(t, o, 1)
			if o.Record.Body.Kind != job.BodyNone {
				t.Error("the answer carries the body")
			}
			wantFirst(t, record(t, e.Store, in), 2)
			if r := get(t, e.Store, c.name); r.Body != c.body {
				t.Errorf("the body came back as kind %d, %.80q", r.Body.Kind, r.Body.Data)
			}
			r, err := e.Store.Get(t.Context(), c.name, false)
			if err != nil || r.Body != (job.Body{}) {
				t.Errorf("without the body: %+v, %v", r.Body, err)
			}
		})
	}
}

func fieldsComeBack(t *testing.T, e Env) {
	for name, change := range map[string]func(*job.Input){
		"the usual": func(*job.Input) {},
		"of a body": func(in *job.Input) {
			in.ContentType, in.Traceparent = "application/json", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		},
		"without the body": func(in *job.Input) { in.ContentType, in.Body, in.BodyOmitted = "text/xml", job.Body{}, 1<<40 },
	} {
		t.Run(name, func(t *testing.T) { theseFieldsComeBack(t, e, name, change) })
	}
}

func theseFieldsComeBack(t *testing.T, e Env, id string, change func(*job.Input)) {
	in := input(id, "request")
	change(&in)
	o := record(t, e.Store, in)
	d := check(t, in)
	wantRecord := d.NewRecord(e.Clock.Now())
	wantRecord.Deliveries = 1
	if diff := cmp.Diff(wantRecord, get(t, e.Store, id)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	wantRecord.Body = job.Body{}
	if diff := cmp.Diff(wantRecord, o.Record); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
	wantRecord.Deliveries = 2
	in.RequestID, in.ContentType, in.Traceparent = "", "another", "" // the first delivery's stay, and that is no conflict
	if diff := cmp.Diff(wantRecord, record(t, e.Store, in).Record); diff != "" {
		t.Errorf("answered to the duplicate (-want +got):\n%s", diff)
	}
}

func times(t *testing.T, e Env) {
	start := job.Millis(e.Clock.Now())
	record(t, e.Store, input("j", ""))
	e.Clock.Advance(time.Minute + time.Microsecond)
	record(t, e.Store, input("j", ""))
	later := job.Millis(e.Clock.Now())
	e.Clock.Advance(-time.Hour)
	record(t, e.Store, input("j", ""))
	if r := get(t, e.Store, "j"); !r.FirstSeen.Equal(start) || !r.LastSeen.Equal(later) {
		t.Errorf("first seen %v, last seen %v; want %v, %v", r.FirstSeen, r.LastSeen, start, later)
	}
}

func notFound(t *testing.T, e Env) {
	record(t, e.Store, input("job", ""))
	for _, id := range []string{"jo", "job1", "JOB", "job ", "%", ""} {
		if _, err := e.Store.Get(t.Context(), id, true); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("Get %q: %v, want not found", id, err)
		}
	}
}

func emptyBatch(t *testing.T, e Env) {
	if out := e.Store.Record(t.Context(), nil); len(out) != 0 {
		t.Errorf("an empty batch gave %d outcomes", len(out))
	}
}

func batchKeepsOrder(t *testing.T, e Env) {
	// 97 and 256 share no factor, so the ids come in an order that is neither sorted nor reversed.
	const n = 256
	var batch []job.Delivery
	for i := range n {
		batch = append(batch, check(t, input(fmt.Sprintf("job-%03d", i*97%n), "")))
	}
	for round := int64(1); round <= 2; round++ {
		for i, o := range e.Store.Record(t.Context(), batch) {
			if o.Err != nil || o.Record.JobID != batch[i].JobID || o.Record.Deliveries != round {
				t.Fatalf("round %d, outcome %d is %q with %d deliveries, %v; want %q", round, i, o.Record.JobID,
					o.Record.Deliveries, o.Err, batch[i].JobID)
			}
			wantFirst(t, o, round) // the same request ids in both rounds
		}
	}
}

func batchHoldsOneIDTwice(t *testing.T, e Env) {
	out := e.Store.Record(t.Context(), []job.Delivery{
		check(t, input("twice", "r1")), check(t, input("other", "")), check(t, input("twice", "r2")),
		check(t, input("twice", "r1")), check(t, input("twice", "r3")),
	})
	wantFirst(t, out[0], 1)
	wantFirst(t, out[1], 1)
	wantDuplicate(t, out[2], 2)
	wantFirst(t, out[3], 3)
	wantDuplicate(t, out[4], 4)
	out = e.Store.Record(t.Context(), []job.Delivery{check(t, input("twice", "r4")), check(t, input("twice", "r1"))})
	wantDuplicate(t, out[0], 5)
	wantFirst(t, out[1], 6)
	if r := get(t, e.Store, "twice"); r.Deliveries != 6 || r.RequestID != "r1" {
		t.Errorf("stored %d deliveries, made by %q; want 6, r1", r.Deliveries, r.RequestID)
	}
}

// together runs f in n goroutines that start at once, and waits for them.
func together(n int, f func(worker int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for w := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			f(w)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// tally counts what concurrent callers were told.
type tally struct {
	mu         sync.Mutex
	first, dup map[string]int
	top        map[string]int64
	errs       []error
}

func newTally() *tally {
	return &tally{first: map[string]int{}, dup: map[string]int{}, top: map[string]int64{}}
}

func (c *tally) add(id string, o job.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case o.Err != nil:
		c.errs = append(c.errs, fmt.Errorf("%s: %w", id, o.Err))
	case o.Verdict.Disposition == job.First && o.Verdict.StartWork:
		c.first[id]++
	case o.Verdict.Disposition == job.Duplicate && !o.Verdict.StartWork:
		c.dup[id]++
	default:
		c.errs = append(c.errs, fmt.Errorf("%s: unexpected %+v", id, o.Verdict))
	}
	c.top[id] = max(c.top[id], o.Record.Deliveries)
}

// check holds the tally against one first per id and calls deliveries of each.
func (c *tally) check(t *testing.T, s job.Store, ids []string, calls int64) {
	t.Helper()
	for _, err := range c.errs {
		t.Error(err)
	}
	for _, id := range ids {
		if c.first[id] != 1 {
			t.Errorf("%s: %d were first", id, c.first[id])
		}
		if got := get(t, s, id).Deliveries; got != calls {
			t.Errorf("%s: %d deliveries stored, want %d", id, got, calls)
		}
		if c.top[id] != calls {
			t.Errorf("%s: the highest count answered is %d, want %d", id, c.top[id], calls)
		}
	}
}

func jobIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("job-%03d", i)
	}
	return ids
}

func raceOnManyIDs(t *testing.T, e Env) {
	const workers = 8
	ids, c := jobIDs(50), newTally()
	together(workers, func(int) {
		for _, id := range ids {
			c.add(id, e.Store.Record(t.Context(), []job.Delivery{check(t, input(id, ""))})[0])
		}
	})
	c.check(t, e.Store, ids, workers)
}

func raceOfBatches(t *testing.T, e Env) {
	const workers = 4
	ids, c := jobIDs(40), newTally()
	together(workers, func(w int) {
		var batch []job.Delivery
		for i := range ids { // each worker in an order of its own, so that batches overlap crosswise
			batch = append(batch, check(t, input(ids[(i*7+w*11)%len(ids)], "")))
		}
		for i, o := range e.Store.Record(t.Context(), batch) {
			c.add(batch[i].JobID, o)
		}
	})
	c.check(t, e.Store, ids, workers)
}

func raceOfOneRequest(t *testing.T, e Env) {
	const workers = 6
	ids := jobIDs(10)
	for _, id := range ids {
		out := make([]job.Outcome, workers)
		together(workers, func(w int) {
			out[w] = e.Store.Record(t.Context(), []job.Delivery{check(t, input(id, "the same"))})[0]
		})
		for _, o := range out {
			want(t, o, job.First, true, true, o.Record.Deliveries)
		}
		if got := get(t, e.Store, id).Deliveries; got != workers {
			t.Errorf("%s: %d deliveries stored, want %d", id, got, workers)
		}
	}
}
