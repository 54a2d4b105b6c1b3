package job_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// The callers of the table: the call that made the record, the one that the running lease was granted to when that is
// another, and everybody else.
const (
	creator = "creator"
	holder  = "holder"
	other   = "other"
)

// storedStates are the rows of the table of dispositions, as far as a decision can tell them apart.
var storedStates = map[string]struct {
	mode job.WorkMode
	work job.Work
	// holds says which delivery the lease was granted to; empty when a ClaimWork call got it.
	holds string
}{
	"plain":                   {mode: job.ModeUntracked, work: job.Work{State: job.StateUntracked}},
	"unknown":                 {mode: job.ModeQueued, work: job.Work{State: job.StateUnknown, Due: noon}},
	"untracked":               {mode: job.ModeUntracked, work: job.Work{State: job.StateUntracked}},
	"queued, due":             {mode: job.ModeQueued, work: job.Work{State: job.StateQueued, Due: noon}},
	"queued, later":           {mode: job.ModeQueued, work: job.Work{State: job.StateQueued, Due: later}},
	"released, due":           {mode: job.ModeLeased, work: job.Work{State: job.StateQueued, Due: noon, Attempts: 1}},
	"released, later":         {mode: job.ModeLeased, work: job.Work{State: job.StateQueued, Due: later, Attempts: 1}},
	"leased by creator":       {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: later, Attempts: 1}, holds: creator},
	"leased by creator anew":  {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: later, Attempts: 2}, holds: creator},
	"leased by another":       {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: later, Attempts: 2}, holds: holder},
	"leased by a claim":       {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: later, Attempts: 2}},
	"queued, then by another": {mode: job.ModeQueued, work: job.Work{State: job.StateLeased, Due: later, Attempts: 1}, holds: holder},
	"queued, then by creator": {mode: job.ModeQueued, work: job.Work{State: job.StateLeased, Due: later, Attempts: 2}, holds: creator},
	"queued, then by a claim": {mode: job.ModeQueued, work: job.Work{State: job.StateLeased, Due: later, Attempts: 1}},
	"lapsed, of creator":      {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: noon, Attempts: 1}, holds: creator},
	"lapsed, of another":      {mode: job.ModeLeased, work: job.Work{State: job.StateLeased, Due: noon, Attempts: 2}, holds: holder},
	"lapsed, of a claim":      {mode: job.ModeQueued, work: job.Work{State: job.StateLeased, Due: noon, Attempts: 1}},
	"completed":               {mode: job.ModeLeased, work: job.Work{State: job.StateCompleted, Attempts: 1}},
	"dead":                    {mode: job.ModeQueued, work: job.Work{State: job.StateDead, Attempts: 2}},
}

var later = noon.Add(time.Minute)

// cells are the cells of the table. Alternatives are separated by "|", and an empty column stands for all; each
// combination belongs to exactly one line. The answer is the disposition, and then
//
//	start     the caller is to start the work
//	lease     the caller gets the running lease
//	first     the caller's call made the record
//	claims    PENDING for as long as the claim has not come through; RECLAIMED, start and lease when it has, DEAD when no
//	          attempt is left
var cells = []struct{ state, caller, conflict, mode, want string }{
	{"plain", "", "", "", "DUPLICATE"},
	{"unknown", creator, "none", "", "PENDING first"},
	{"unknown", creator, "payload|event", "", "PENDING"},
	{"unknown", other, "", "", "PENDING"},

	{"untracked", creator, "none", "", "FIRST start first"},
	{"untracked", creator, "payload|event", "", "DUPLICATE"},
	{"untracked", other, "", "", "DUPLICATE"},

	{"queued, due|released, due", creator, "none", "", "FIRST first"},
	{"queued, due|released, due", creator, "payload", "leased", "claims"},
	{"queued, due|released, due", creator, "payload", "untracked|queued", "PENDING"},
	{"queued, due|released, due", creator, "event", "", "PENDING"},
	{"queued, due|released, due", other, "none|payload", "leased", "claims"},
	{"queued, due|released, due", other, "none|payload", "untracked|queued", "PENDING"},
	{"queued, due|released, due", other, "event", "", "PENDING"},
	{"queued, later|released, later", creator, "none", "", "FIRST first"},
	{"queued, later|released, later", creator, "payload|event", "", "PENDING"},
	{"queued, later|released, later", other, "", "", "PENDING"},

	{"leased by creator", creator, "none", "leased", "FIRST start lease first"},
	{"leased by creator anew", creator, "none", "leased", "RECLAIMED start lease first"},
	{"leased by creator|leased by creator anew", creator, "none", "untracked|queued", "IN_PROGRESS first"},
	{"leased by creator|leased by creator anew", creator, "payload|event", "", "IN_PROGRESS"},
	{"leased by creator|leased by creator anew", other, "", "", "IN_PROGRESS"},
	{"leased by another", creator, "none", "", "IN_PROGRESS first"},
	{"leased by another", creator, "payload|event", "", "IN_PROGRESS"},
	{"leased by another|queued, then by another", holder, "none|payload", "leased", "RECLAIMED start lease"},
	{"leased by another|queued, then by another", holder, "none|payload", "untracked|queued", "IN_PROGRESS"},
	{"leased by another|queued, then by another", holder, "event", "", "IN_PROGRESS"},
	{"leased by another|queued, then by another", other, "", "", "IN_PROGRESS"},
	{"leased by a claim", creator, "none", "", "IN_PROGRESS first"},
	{"leased by a claim", creator, "payload|event", "", "IN_PROGRESS"},
	{"leased by a claim|queued, then by a claim", other, "", "", "IN_PROGRESS"},
	{"queued, then by another|queued, then by a claim", creator, "none", "", "FIRST first"},
	{"queued, then by another|queued, then by a claim", creator, "payload|event", "", "IN_PROGRESS"},
	{"queued, then by creator", creator, "none", "leased", "RECLAIMED start lease first"},
	{"queued, then by creator", creator, "none", "untracked|queued", "FIRST first"},
	{"queued, then by creator", creator, "payload|event", "", "IN_PROGRESS"},
	{"queued, then by creator", other, "", "", "IN_PROGRESS"},

	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", creator, "none", "leased", "claims first"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", creator, "none", "untracked|queued", "PENDING first"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", creator, "payload", "leased", "claims"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", creator, "payload", "untracked|queued", "PENDING"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", "holder|other", "none|payload", "leased", "claims"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", "holder|other", "none|payload", "untracked|queued", "PENDING"},
	{"lapsed, of creator|lapsed, of another|lapsed, of a claim", "", "event", "", "PENDING"},

	{"completed", creator, "none", "", "COMPLETED first"},
	{"completed", creator, "payload|event", "", "COMPLETED"},
	{"completed", other, "", "", "COMPLETED"},
	{"dead", creator, "none", "", "DEAD first"},
	{"dead", creator, "payload|event", "", "DEAD"},
	{"dead", other, "", "", "DEAD"},
}

// TestDispositionTable goes through every combination of stored state, caller, conflict and mode of the delivery.
func TestDispositionTable(t *testing.T) {
	matches := func(column, value string) bool {
		return column == "" || slices.Contains(strings.Split(column, "|"), value)
	}
	for state := range storedStates {
		for _, caller := range []string{creator, holder, other} {
			if caller == holder && storedStates[state].holds != holder {
				continue
			}
			for _, conflict := range []string{"none", "payload", "event"} {
				for mode, m := range map[string]job.WorkMode{"untracked": job.ModeUntracked, "leased": job.ModeLeased, "queued": job.ModeQueued} {
					t.Run(strings.Join([]string{state, caller, conflict, mode}, "/"), func(t *testing.T) {
						var want []string
						for _, c := range cells {
							if matches(c.state, state) && matches(c.caller, caller) && matches(c.conflict, conflict) && matches(c.mode, mode) {
								want = append(want, c.want)
							}
						}
						if len(want) != 1 {
							t.Fatalf("in %d lines of the table: %q", len(want), want)
						}
						checkCell(t, state, caller, conflict, m, want[0])
					})
				}
			}
		}
	}
}

// tableRecord is the stored record of a state. Its lease is held for the body that the holder delivered.
func tableRecord(state string) job.Record {
	s := storedStates[state]
	r := job.Record{
		JobID: "j", Event: "job.completed", Status: "OK", RequestID: creator, Fingerprint: "body", Source: "webhook",
		Deliveries: 3, Work: s.work,
	}
	if state == "plain" {
		r = job.Record{JobID: "j", Event: "job.completed", Status: "OK", Deliveries: 3, Work: s.work}
	}
	r.Work.Mode = s.mode
	if s.work.State == job.StateLeased {
		r.Work.Token, r.Work.Generation = "token", 7
		r.Work.RequestID, r.Work.RequestFingerprint = s.holds, "body"
		if s.holds == "" {
			r.Work.RequestFingerprint, r.Work.ClaimID = "", "claim"
		}
	}
	return r
}

func checkCell(t *testing.T, state, caller, conflict string, mode job.WorkMode, want string) {
	d := job.Delivery{
		JobID: "j", Event: "job.completed", Status: "OK", RequestID: caller, Fingerprint: "body", Source: "webhook",
		Mode: mode,
	}
	if mode == job.ModeLeased {
		d.Lease = time.Minute
	}
	r := tableRecord(state)
	wantKind := job.ConflictNone
	switch conflict {
	case "payload":
		d.Fingerprint = "other body"
		if caller == holder {
			r.Work.RequestFingerprint = d.Fingerprint // what it got the lease with
		}
		if wantKind = job.ConflictBody; state == "plain" {
			wantKind = job.ConflictNone // that record has no fingerprint to compare with
		}
	case "event":
		d.Status = "ERROR"
		wantKind = job.ConflictEvent
	}
	v := job.Decide(&r, &d, noon)
	kind := job.ConflictNone
	if v.Conflict != nil {
		kind = v.Conflict.Kind
	}
	if kind != wantKind {
		t.Errorf("conflict %d, want %d", kind, wantKind)
	}
	rest, claims := strings.CutPrefix(want, "claims")
	if !claims {
		if got := verdictText(v); got != want || v.Claim {
			t.Errorf("got %q, claim %t; want %q", got, v.Claim, want)
		}
		return
	}
	if got := verdictText(v); got != "PENDING"+rest || !v.Claim {
		t.Errorf("before the claim: got %q, claim %t; want %q and a claim", got, v.Claim, "PENDING"+rest)
	}
	for _, c := range []struct {
		max  int
		want string
	}{
		{0, "RECLAIMED start lease" + rest},
		{int(r.Work.Attempts) + 1, "RECLAIMED start lease" + rest},
		{max(1, int(r.Work.Attempts)), "DEAD" + rest},
	} {
		if c.max > int(r.Work.Attempts) && strings.HasPrefix(c.want, "DEAD") {
			continue // a job without attempts cannot have used up any
		}
		claimed := r
		claimed.Work = r.Work.Claim(d.Grant(c.max), noon)
		after := job.Decide(&claimed, &d, noon)
		if got := verdictText(after); got != c.want || after.Claim {
			t.Errorf("after a claim with at most %d attempts: got %q, claim %t; want %q", c.max, got, after.Claim, c.want)
		}
		if o := job.Answer(claimed, after, noon); (o.Lease != nil) != after.Leased || o.Lease != nil && o.Lease.Token != claimed.Work.Token {
			t.Errorf("the answer has the lease %+v", o.Lease)
		}
	}
}

// verdictText is a verdict in the words of the table.
func verdictText(v job.Verdict) string {
	names := map[job.Disposition]string{
		job.First: "FIRST", job.Duplicate: "DUPLICATE", job.Reclaimed: "RECLAIMED", job.Pending: "PENDING",
		job.InProgress: "IN_PROGRESS", job.Completed: "COMPLETED", job.Dead: "DEAD",
	}
	name, ok := names[v.Disposition]
	if !ok {
		name = fmt.Sprint("disposition ", v.Disposition)
	}
	words := []string{name}
	for _, w := range []struct {
		say  bool
		word string
	}{{v.StartWork, "start"}, {v.Leased, "lease"}, {v.FirstDelivery, "first"}} {
		if w.say {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

// TestNewRecord is the row of the table for no record: the one that a delivery makes is decided as its own.
func TestNewRecord(t *testing.T) {
	for mode, want := range map[job.WorkMode]string{
		job.ModeUntracked: "FIRST start first", job.ModeLeased: "FIRST start lease first", job.ModeQueued: "FIRST first",
	} {
		in := job.Input{JobID: "j", Mode: mode}
		if mode == job.ModeLeased {
			in.Lease = dur(time.Minute)
		}
		d, err := in.Delivery(0)
		testenv.Must(t, err)
		r := d.NewRecord(noon)
		if got := verdictText(job.Decide(&r, &d, noon)); got != want {
			t.Errorf("mode %d: got %q, want %q", mode, got, want)
		}
	}
}

// TestLeaseLapsesWhenItIsDue: at its very end a lease runs no more, and queued work is free from its due time on.
func TestLeaseLapsesWhenItIsDue(t *testing.T) {
	running, waiting := tableRecord("leased by creator"), tableRecord("queued, later")
	d := job.Delivery{JobID: "j", RequestID: other, Mode: job.ModeLeased}
	for _, c := range []struct {
		now  time.Time
		free bool
	}{{later.Add(-time.Nanosecond), false}, {later, true}, {later.Add(time.Hour), true}} {
		for _, r := range []job.Record{running, waiting} {
			if v := job.Decide(&r, &d, c.now); v.Claim != c.free || r.Work.Free(c.now) != c.free {
				t.Errorf("state %d, %v after it is due: claim %t, free %t; want %t",
					r.Work.State, c.now.Sub(later), v.Claim, r.Work.Free(c.now), c.free)
			}
		}
	}
}

// TestMissingRequestIDEqualsNothing: two calls without an id are not one call.
func TestMissingRequestIDEqualsNothing(t *testing.T) {
	r := tableRecord("leased by a claim")
	r.RequestID, r.Fingerprint = "", ""
	r.Work.RequestFingerprint = ""
	for _, mode := range []job.WorkMode{job.ModeUntracked, job.ModeLeased, job.ModeQueued} {
		if got := verdictText(job.Decide(&r, &job.Delivery{JobID: "j", Mode: mode}, noon)); got != "IN_PROGRESS" {
			t.Errorf("mode %d: got %q", mode, got)
		}
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456, time.UTC)

func TestDecide(t *testing.T) {
	untracked := job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}
	base := job.Record{JobID: "j", Event: "e", Status: "s", RequestID: "r", Fingerprint: "f", Source: "webhook", Work: untracked}
	same := job.Delivery{JobID: "j", Event: "e", Status: "s", RequestID: "r", Fingerprint: "f", Source: "webhook"}
	record := func(f func(*job.Record)) job.Record { r := base; f(&r); return r }
	delivery := func(f func(*job.Delivery)) job.Delivery { d := same; f(&d); return d }
	leftOut := func(n int64) func(*job.Record) { return func(r *job.Record) { r.Fingerprint, r.BodyOmitted = "", n } }
	sentLeftOut := func(n int64) func(*job.Delivery) {
		return func(d *job.Delivery) { d.Fingerprint, d.BodyOmitted = "", n }
	}
	first := job.Verdict{Disposition: job.First, StartWork: true, FirstDelivery: true}
	duplicate := job.Verdict{Disposition: job.Duplicate}
	conflict := func(k job.ConflictKind, event, status string) job.Verdict {
		return job.Verdict{Disposition: job.Duplicate,
			Conflict: &job.Conflict{Kind: k, Event: event, Status: status, Time: noon.Truncate(time.Millisecond)}}
	}
	for name, c := range map[string]struct {
		r    job.Record
		d    job.Delivery
		want job.Verdict
	}{
		"creator":                   {base, same, first},
		"the caller's":              {record(func(r *job.Record) { r.Caller = "a" }), delivery(func(d *job.Delivery) { d.Caller = "a" }), first},
		"another caller's":          {record(func(r *job.Record) { r.Caller = "a" }), delivery(func(d *job.Delivery) { d.Caller = "b" }), duplicate},
		"from before callers":       {base, delivery(func(d *job.Delivery) { d.Caller = "b" }), first},
		"callers no more":           {record(func(r *job.Record) { r.Caller = "a" }), same, first},
		"another call":              {base, delivery(func(d *job.Delivery) { d.RequestID = "q" }), duplicate},
		"creator without event":     {base, delivery(func(d *job.Delivery) { d.Event, d.Status = "", "" }), first},
		"creator from elsewhere":    {base, delivery(func(d *job.Delivery) { d.Source = "poll" }), first},
		"other body":                {base, delivery(func(d *job.Delivery) { d.Fingerprint = "g" }), conflict(job.ConflictBody, "e", "s")},
		"other body from elsewhere": {base, delivery(func(d *job.Delivery) { d.Fingerprint, d.Source = "g", "poll" }), duplicate},
		"no body":                   {base, delivery(func(d *job.Delivery) { d.Fingerprint = "" }), duplicate},
		"other event":               {base, delivery(func(d *job.Delivery) { d.Event = "x" }), conflict(job.ConflictEvent, "x", "s")},
		"other status":              {base, delivery(func(d *job.Delivery) { d.Status = "x" }), conflict(job.ConflictEvent, "e", "x")},
		"creator, left out":         {record(leftOut(7)), delivery(sentLeftOut(7)), first},
		"left out since":            {base, delivery(sentLeftOut(7)), duplicate},
		"another one was":           {record(leftOut(7)), delivery(sentLeftOut(8)), conflict(job.ConflictBody, "e", "s")},
		"of another source":         {record(leftOut(7)), delivery(func(d *job.Delivery) { sentLeftOut(8)(d); d.Source = "poll" }), duplicate},
		"no longer left out":        {record(leftOut(7)), same, duplicate},
		"other type or trace":       {base, delivery(func(d *job.Delivery) { d.ContentType, d.Traceparent = "text/xml", "t" }), first},
		"no request id anywhere": {record(func(r *job.Record) { r.RequestID = "" }),
			delivery(func(d *job.Delivery) { d.RequestID = "" }), duplicate},
		"record by a plain upsert": {job.Record{JobID: "j", Event: "e", Status: "s", Work: untracked}, same, duplicate},
		"its event differs": {job.Record{JobID: "j", Event: "e", Status: "s", Work: untracked},
			delivery(func(d *job.Delivery) { d.Event = "x" }), conflict(job.ConflictEvent, "x", "s")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, job.Decide(&c.r, &c.d, noon)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecideOnWhatCannotBeRead: a delivery that may hold another event, or another status, than a recorded one claims
// nothing. Everything else about its answer is as if it had said nothing.
func TestDecideOnWhatCannotBeRead(t *testing.T) {
	both := job.Record{Event: "e", Status: "s", Fingerprint: "f"}
	for name, c := range map[string]struct {
		r             job.Record
		event, status job.Unread
		body          string
		claims        bool
	}{
		"neither unread":         {both, job.UnreadNothing, job.UnreadNothing, "g", true},
		"event's value":          {both, job.UnreadValue, job.UnreadNothing, "g", false},
		"status's value":         {both, job.UnreadNothing, job.UnreadValue, "g", false},
		"the whole body":         {both, job.UnreadBody, job.UnreadBody, "g", false},
		"no event recorded":      {job.Record{Status: "s", Fingerprint: "f"}, job.UnreadValue, job.UnreadNothing, "g", true},
		"no status recorded":     {job.Record{Event: "e", Fingerprint: "f"}, job.UnreadNothing, job.UnreadValue, "g", true},
		"only status recorded":   {job.Record{Status: "s", Fingerprint: "f"}, job.UnreadBody, job.UnreadBody, "g", false},
		"neither recorded":       {job.Record{Fingerprint: "f"}, job.UnreadBody, job.UnreadBody, "g", true},
		"the stored body":        {both, job.UnreadBody, job.UnreadBody, "f", true},
		"no body stored":         {job.Record{Event: "e"}, job.UnreadBody, job.UnreadBody, "g", false},
		"no body stored or sent": {job.Record{Event: "e"}, job.UnreadNothing, job.UnreadNothing, "", true},
	} {
		for _, work := range []job.Work{{State: job.StateQueued, Due: noon}, {State: job.StateLeased, Due: noon, Token: "t", Attempts: 1}} {
			t.Run(name+", "+work.State.String(), func(t *testing.T) {
				r := c.r
				r.JobID, r.Work = "j", work
				d := job.Delivery{JobID: "j", RequestID: "r", Mode: job.ModeLeased, Lease: time.Minute, Fingerprint: c.body}
				plain := job.Decide(&r, &d, noon)
				d.EventUnread, d.StatusUnread = c.event, c.status
				got := job.Decide(&r, &d, noon)
				if !plain.Claim || got.Claim != c.claims {
					t.Errorf("claims %t, and read %t; want %t, true", got.Claim, plain.Claim, c.claims)
				}
				got.Claim = plain.Claim
				if diff := cmp.Diff(plain, got); diff != "" {
					t.Errorf("(-read +unread):\n%s", diff)
				}
			})
		}
	}
}
