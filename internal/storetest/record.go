package storetest

import (
	"errors"
	"strings"
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
	in := input("j", "request")
	o := record(t, e.Store, in)
	d := check(t, in)
	wantRecord := d.NewRecord(e.Clock.Now())
	wantRecord.Deliveries = 1
	if diff := cmp.Diff(wantRecord, get(t, e.Store, "j")); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	wantRecord.Body = job.Body{}
	if diff := cmp.Diff(wantRecord, o.Record); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
	wantRecord.Deliveries = 2
	if diff := cmp.Diff(wantRecord, record(t, e.Store, input("j", "")).Record); diff != "" {
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
