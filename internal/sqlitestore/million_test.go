package sqlitestore

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/retention"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestMillionJobs measures what operators do among a million jobs, for docs/operations.md: 98 in 100 are finished, one in a
// thousand is dead. What it holds is how many entries are looked at, not the time.
func TestMillionJobs(t *testing.T) {
	if !testenv.Long() {
		t.Skip("only in a long run")
	}
	const jobs = 1_000_000
	clock := testenv.NewClock()
	s, err := Open(t.Context(), t.TempDir(), Options{Now: clock.Now, Logger: slog.New(slog.DiscardHandler)})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	began := clock.Now().UnixMilli()
	fill(t, s, jobs, began)
	s.readerDB.SetMaxOpenConns(1)
	clock.Advance(24 * time.Hour)
	measure := func(what string, most int, f func() (examined int, err error)) {
		t.Helper()
		start, before := time.Now(), pagesRead(t, s)
		examined, err := f()
		t.Logf("%-32s %10v %8d examined, %8d pages of the file", what, time.Since(start).Round(100*time.Microsecond), examined, pagesRead(t, s)-before)
		if err != nil || examined > most {
			t.Errorf("%s: %d examined, %v; want %d at most", what, examined, err, most)
		}
	}
	list := func(q job.ListQuery) func() (int, error) {
		q.Size = job.DefaultPageSize
		return func() (int, error) {
			page, err := s.List(t.Context(), q)
			return page.Examined, err
		}
	}
	deep := job.Place{Seen: began + jobs/10, JobID: "x"}
	const page = job.DefaultPageSize
	measure("newest first", page, list(job.ListQuery{}))
	measure("newest first, deep", page, list(job.ListQuery{After: deep}))
	for _, state := range []job.WorkState{job.StateQueued, job.StateCompleted, job.StateDead, job.StateUntracked} {
		measure("newest "+state.String(), page, list(job.ListQuery{Filter: job.Filter{State: state}}))
	}
	measure("dead, deep", page, list(job.ListQuery{Filter: job.Filter{State: job.StateDead}, After: deep}))
	measure("in conflict", page, list(job.ListQuery{Filter: job.Filter{Conflicts: true}}))
	measure("by time", page, list(job.ListQuery{Filter: job.Filter{SeenBefore: time.UnixMilli(began + jobs/2)}}))
	measure("by id and prefix", page, list(job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "shop:"}}))
	measure("a prefix, newest first", 2*page+1, list(job.ListQuery{Filter: job.Filter{Prefix: "bank:"}}))
	measure("one that finds nothing", page*job.ExaminedPerJob, list(job.ListQuery{Filter: job.Filter{Prefix: "none:"}}))
	measure("count", 0, func() (int, error) { _, err := s.Count(t.Context(), ""); return 0, err })
	keeper := retention.New(retention.Config{Policy: retention.Policy{Payload: 24*time.Hour - 100*time.Second}, Now: clock.Now, Logger: slog.New(slog.DiscardHandler)}, s)
	pass := func() (int, error) { r, err := keeper.Pass(t.Context()); t.Logf("%+v", r); return r.Examined, err }
	measure("retention, 98,900 payloads", 100_000, pass)
	measure("retention, nothing to do", 10, pass)
}

// fill writes jobs that were first seen one a millisecond from a time on: half of them untracked, one in a hundred queued, one in a
// thousand dead, one in five thousand in conflict, and the others completed.
func fill(t *testing.T, s *Store, jobs int, from int64) {
	t.Helper()
	_, err := s.writer.ExecContext(t.Context(), `INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen, last_seen,
			deliveries, body_kind, work_mode, work_state, work_due, work_granted, conflicts, conflict_kind, conflict_event, conflict_status, conflict_time, text)
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
		SELECT printf('%s:%08x', iif(i % 2, 'bank', 'shop'), i * 2654435761 % 4294967296), 'job.completed', 'OK', x'01', 'r', 'webhook', ?2 + i, ?2 + i, 1, 1,
			iif(i % 2, 'untracked', 'queued'), CASE WHEN i % 2 THEN 'untracked' WHEN i % 1000 = 0 THEN 'dead' WHEN i % 100 = 2 THEN 'queued' ELSE 'completed' END,
			iif(i % 100 = 2, ?2 + i, NULL), iif(i % 100 = 2, 0, NULL), i % 5000 = 0, iif(i % 5000 = 0, 1, NULL), iif(i % 5000 = 0, 'e', NULL),
			iif(i % 5000 = 0, 's', NULL), iif(i % 5000 = 0, ?2, NULL), printf('%0*d', 300, i) FROM n`, jobs, from)
	testenv.Must(t, err)
}
