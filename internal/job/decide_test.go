package job_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456, time.UTC)

func TestDecide(t *testing.T) {
	untracked := job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}
	base := job.Record{JobID: "j", Event: "e", Status: "s", RequestID: "r", Fingerprint: "f", Source: "webhook", Work: untracked}
	same := job.Delivery{JobID: "j", Event: "e", Status: "s", RequestID: "r", Fingerprint: "f", Source: "webhook"}
	record := func(f func(*job.Record)) job.Record { r := base; f(&r); return r }
	delivery := func(f func(*job.Delivery)) job.Delivery { d := same; f(&d); return d }
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
		"another call":              {base, delivery(func(d *job.Delivery) { d.RequestID = "q" }), duplicate},
		"creator without event":     {base, delivery(func(d *job.Delivery) { d.Event, d.Status = "", "" }), first},
		"creator from elsewhere":    {base, delivery(func(d *job.Delivery) { d.Source = "poll" }), first},
		"other body":                {base, delivery(func(d *job.Delivery) { d.Fingerprint = "g" }), conflict(job.ConflictBody, "e", "s")},
		"other body from elsewhere": {base, delivery(func(d *job.Delivery) { d.Fingerprint, d.Source = "g", "poll" }), duplicate},
		"no body":                   {base, delivery(func(d *job.Delivery) { d.Fingerprint = "" }), duplicate},
		"other event":               {base, delivery(func(d *job.Delivery) { d.Event = "x" }), conflict(job.ConflictEvent, "x", "s")},
		"other status":              {base, delivery(func(d *job.Delivery) { d.Status = "x" }), conflict(job.ConflictEvent, "e", "x")},
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

func TestNewRecordIsItsCreators(t *testing.T) {
	d, err := job.Input{JobID: "j", Body: job.Body{Kind: job.BodyText, Data: "x"}}.Delivery(1)
	testenv.Must(t, err)
	r := d.NewRecord(noon)
	if v := job.Decide(&r, &d, noon); v.Disposition != job.First || !v.StartWork || !v.FirstDelivery {
		t.Errorf("the record that a delivery makes is decided as %+v", v)
	}
	if !r.FirstSeen.Equal(noon.Truncate(time.Millisecond)) || !r.LastSeen.Equal(r.FirstSeen) {
		t.Errorf("seen %v, %v", r.FirstSeen, r.LastSeen)
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
