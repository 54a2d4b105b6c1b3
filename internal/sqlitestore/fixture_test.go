package sqlitestore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// lives puts jobs into every state that there is, with small bodies and large ones. It does the same each time, but for
// the leases' tokens.
func lives(t *testing.T, s job.Store, clock *testenv.Clock, name string) {
	t.Helper()
	const lease, delay = 10 * time.Minute, time.Hour
	must := func(err error) {
		t.Helper()
		testenv.Must(t, err)
	}
	deliver := func(id string, mode job.WorkMode, body job.Body, event string) *job.Lease {
		t.Helper()
		in := job.Input{JobID: name + " " + id, Event: event, Status: "OK", Source: "webhook", RequestID: "request of " + id + event,
			Mode: mode, Body: body}
		if mode == job.ModeLeased {
			lease := lease
			in.Lease = &lease
		}
		d, err := in.Delivery(1 << 20)
		must(err)
		o := s.Record(t.Context(), []job.Delivery{d})[0]
		must(o.Err)
		return o.Lease
	}
	small := job.Body{Kind: job.BodyText, Data: `{"small":true}`}
	large := job.Body{Kind: job.BodyText, Data: `{"large":"` + strings.Repeat("body ", 1200) + `"}`}
	bytes := job.Body{Kind: job.BodyBytes, Data: "\xff\x00" + strings.Repeat("\xfe", 1600)}

	deliver("untracked", job.ModeUntracked, small, "a")
	deliver("untracked twice", job.ModeUntracked, large, "a")
	deliver("untracked twice", job.ModeUntracked, large, "a")
	deliver("in conflict", job.ModeUntracked, small, "a")
	deliver("in conflict", job.ModeUntracked, small, "b")
	deliver("without body", job.ModeUntracked, job.Body{}, "a")
	deliver("with an empty body", job.ModeUntracked, job.Body{Kind: job.BodyText}, "a")
	for _, mode := range []job.WorkMode{job.ModeLeased, job.ModeQueued} {
		grant := func(what string, body job.Body) (id string, held *job.Lease) {
			t.Helper()
			clock.Advance(time.Second)
			what = fmt.Sprint(what, " ", mode)
			held = deliver(what, mode, body, name)
			if mode == job.ModeQueued {
				claimed, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "claim of " + name + what, Max: 1, Lease: lease,
					Events: []string{name}, MaxBytes: 1 << 20})
				must(err)
				held = &claimed[0].Lease
			}
			return name + " " + what, held
		}
		grant("running", large)
		id, held := grant("completed", bytes)
		must(job.Complete(t.Context(), s, id, held.Token, "the result"))
		id, held = grant("given up", small)
		must(job.GiveBack(t.Context(), s, id, held.Token, job.Release{Error: "hopeless", Dead: true}))
		id, held = grant("given back", large)
		must(job.GiveBack(t.Context(), s, id, held.Token, job.Release{Error: "not now", Delay: delay}))
	}
	deliver("queued", job.ModeQueued, large, "a")
}

// writeLives makes a data directory with jobs in every state. The file is as after a clean end, or as after a crash: with
// part of it in the write-ahead log alone.
func writeLives(t *testing.T, dir string, crashed bool) {
	t.Helper()
	clock := testenv.NewClock()
	data := filepath.Join(t.TempDir(), "data")
	s := open(t, data, clock)
	lives(t, s, clock, "first")
	if crashed {
		testenv.Must(t, s.Close())
		s = open(t, data, clock)
	}
	clock.Advance(time.Minute)
	lives(t, s, clock, "second")
	files := []string{"", "-wal"}
	if !crashed {
		testenv.Must(t, s.Close())
		files = files[:1]
	}
	testenv.Must(t, os.MkdirAll(dir, 0o700))
	for _, suffix := range files {
		data, err := os.ReadFile(sqlitestore.File(data) + suffix)
		testenv.Must(t, err)
		write(t, sqlitestore.File(dir)+suffix, data)
	}
}

// TestMakeFixture makes the fixtures of the present schema, when asked to. Do so before the schema is changed.
func TestMakeFixture(t *testing.T) {
	dir := os.Getenv("JOBONCE_TEST_MAKE_FIXTURE")
	if dir == "" {
		t.Skip("only with JOBONCE_TEST_MAKE_FIXTURE=testdata/vN, before the schema is changed")
	}
	writeLives(t, filepath.Join(dir, "closed"), false)
	writeLives(t, filepath.Join(dir, "crashed"), true)
}
