package job_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// lifeOf returns the records of a job in every state that our own transitions lead to.
func lifeOf(t *testing.T) map[string]job.Record {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := func(mode job.WorkMode, body string) job.Record {
		in := job.Input{JobID: "j", Mode: mode, Body: job.Body{Kind: job.BodyText, Data: body}}
		if lease := time.Minute; mode == job.ModeLeased {
			in.Lease = &lease
		}
		d, err := in.Delivery(1 << 20)
		testenv.Must(t, err)
		r := d.NewRecord(now)
		r.Deliveries = 1
		return r
	}
	with := func(w job.Work, err error) job.Record {
		testenv.Must(t, err)
		r := record(job.ModeLeased, "body")
		r.Work = w
		return r
	}
	leased := record(job.ModeLeased, "body")
	grant := job.Grant{Token: "t2", Duration: time.Minute, ClaimID: "c", MaxAttempts: 1}
	queued := record(job.ModeQueued, "")
	claimed := queued
	claimed.Work = claimed.Work.Claim(grant, now)
	dropped := record(job.ModeUntracked, "body")
	dropped.Body, dropped.BodyDropped = job.Body{}, now
	omitted := record(job.ModeQueued, "")
	omitted.Body, omitted.BodyOmitted, omitted.Work.Requeues = job.Body{}, 2<<20, 3
	conflict := record(job.ModeUntracked, "body")
	conflict.Conflicts, conflict.LastConflict = 1, &job.Conflict{Kind: job.ConflictBody, Time: now}
	token := leased.Work.Token
	return map[string]job.Record{
		"untracked": record(job.ModeUntracked, "body"), "bodyless": record(job.ModeUntracked, ""), "leased": leased,
		"queued": queued, "left out": omitted, "claimed": claimed, "dropped": dropped, "conflict": conflict,
		"renewed":   with(leased.Work.Renew(token, time.Hour, now)),
		"completed": with(leased.Work.Complete(token, "done")),
		"released":  with(leased.Work.Release(token, job.Release{Error: "e"}, now)),
		"given up":  with(leased.Work.Release(token, job.Release{Dead: true}, now)),
		"unclaimed": with(leased.Work.Unclaim(token, leased.Work.Due, now)),
		"used up":   with(leased.Work.Claim(grant, now.Add(time.Hour)), nil),
		"retold":    with(leased.Work.Retell(), nil),
	}
}

func TestOwnRecordsHaveNoFaults(t *testing.T) {
	for name, r := range lifeOf(t) {
		if faults := r.Faults(); len(faults) > 0 {
			t.Errorf("%s: %q", name, faults)
		}
	}
}

// TestFaults spoils records in one respect each.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		of, want string
		spoil    func(*job.Record)
	}{
		{"untracked", "job_id", func(r *job.Record) { r.JobID = "a\nb" }},
		{"untracked", "0 deliveries", func(r *job.Record) { r.Deliveries = 0 }},
		{"untracked", "before it was first seen", func(r *job.Record) { r.LastSeen = r.FirstSeen.Add(-1) }},
		{"untracked", "conflicts", func(r *job.Record) { r.Conflicts = 1 }},
		{"conflict", "conflicts", func(r *job.Record) { r.LastConflict = nil }},
		{"untracked", "SHA-256", func(r *job.Record) { r.Body.Data = "bodY" }},
		{"untracked", "SHA-256", func(r *job.Record) { r.Fingerprint = "" }},
		{"untracked", "no payload", func(r *job.Record) { r.Body = job.Body{} }},
		{"untracked", "was left out", func(r *job.Record) { r.BodyOmitted = 7 }},
		{"bodyless", "was left out", func(r *job.Record) { r.BodyOmitted = -7 }},
		{"queued", "requeues", func(r *job.Record) { r.Work.Requeues = -1 }},
		{"dropped", "was dropped", func(r *job.Record) { r.Body = job.Body{Kind: job.BodyText, Data: "body"} }},
		{"untracked", "work mode", func(r *job.Record) { r.Work.Mode = job.ModeLeased }},
		{"queued", "work mode", func(r *job.Record) { r.Work.Mode = job.ModeUntracked }},
		{"queued", "due", func(r *job.Record) { r.Work.Due = time.Time{} }},
		{"completed", "due", func(r *job.Record) { r.Work.Due = r.FirstSeen }},
		{"leased", "without a token", func(r *job.Record) { r.Work.Token = "" }},
		{"leased", "without a token", func(r *job.Record) { r.Work.Generation = 0 }},
		{"leased", "without a token", func(r *job.Record) { r.Work.Attempts = 0 }},
		{"released", "holds its lease", func(r *job.Record) { r.Work.RequestID = "r" }},
		{"completed", "holds its lease", func(r *job.Record) { r.Work.ClaimID = "c" }},
		{"queued", "does not know", func(r *job.Record) { r.Work.State = job.StateUnknown }},
		{"queued", "attempts", func(r *job.Record) { r.Work.Attempts = -1 }},
	} {
		r, ok := lifeOf(t)[c.of]
		if !ok {
			t.Fatalf("no record %q", c.of)
		}
		c.spoil(&r)
		if faults := r.Faults(); !strings.Contains(strings.Join(faults, "; "), c.want) {
			t.Errorf("%s, spoilt: %q, want %q", c.of, faults, c.want)
		}
	}
}
