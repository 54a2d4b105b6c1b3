package sqlitestore

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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
	_, err = s.writer.ExecContext(t.Context(), `INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen, last_seen,
			deliveries, body_kind, work_mode, work_state, work_due, work_granted, conflicts, conflict_kind, conflict_event, conflict_status, conflict_time, text)
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
		SELECT printf('%s:%08x', iif(i % 2, 'bank', 'shop'), i * 2654435761 % 4294967296), 'job.completed', 'OK', x'01', 'r', 'webhook', ?2 + i, ?2 + i, 1, 1,
			iif(i % 2, 'untracked', 'queued'), CASE WHEN i % 2 THEN 'untracked' WHEN i % 1000 = 0 THEN 'dead' WHEN i % 100 = 2 THEN 'queued' ELSE 'completed' END,
			iif(i % 100 = 2, ?2 + i, NULL), iif(i % 100 = 2, 0, NULL), i % 5000 = 0, iif(i % 5000 = 0, 1, NULL), iif(i % 5000 = 0, 'e', NULL),
			iif(i % 5000 = 0, 's', NULL), iif(i % 5000 = 0, ?2, NULL), printf('%0*d', 300, i) FROM n`, jobs, began)
	testenv.Must(t, err)
	clock.Advance(24 * time.Hour)
	measure := func(what string, most int, f func() (examined int, err error)) {
		t.Helper()
		start := time.Now()
		examined, err := f()
		t.Logf("%-32s %10v %8d examined", what, time.Since(start).Round(100*time.Microsecond), examined)
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
	for _, state := range []job.WorkState{job.StateQueued, job.StateCompleted, job.StateDead} {
		measure("newest "+state.String(), page, list(job.ListQuery{Filter: job.Filter{State: state}}))
	}
	measure("newest untracked", 2*page, list(job.ListQuery{Filter: job.Filter{State: job.StateUntracked}}))
	measure("dead, deep", page, list(job.ListQuery{Filter: job.Filter{State: job.StateDead}, After: deep}))
	measure("in conflict", page, list(job.ListQuery{Filter: job.Filter{Conflicts: true}}))
	measure("by time", page, list(job.ListQuery{Filter: job.Filter{SeenBefore: time.UnixMilli(began + jobs/2)}}))
	measure("by id and prefix", page, list(job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "shop:"}}))
	measure("a prefix, newest first", 2*page+1, list(job.ListQuery{Filter: job.Filter{Prefix: "bank:"}}))
	measure("one that finds nothing", page*job.ExaminedPerJob, list(job.ListQuery{Filter: job.Filter{Prefix: "none:"}}))
	measure("count", 0, func() (int, error) { _, err := s.Count(t.Context(), ""); return 0, err })
	keeper := retention.New(retention.Config{Policy: retention.Policy{Payload: 24*time.Hour - 100*time.Second}, Now: clock.Now, Logger: slog.New(slog.DiscardHandler)}, s)
	pass := func() (int, error) { r, err := keeper.Pass(t.Context()); t.Logf("%+v", r); return r.Examined, err }
	measure("retention, 98,900 payloads", 160_000, pass)
	measure("retention, nothing to do", 10, pass)
}

// TestRecordingWithTheListIndexes compares recording with the indexes of lists and without: five runs of each by turns.
func TestRecordingWithTheListIndexes(t *testing.T) {
	if !testenv.Long() {
		t.Skip("only in a long run")
	}
	run := func(without bool) float64 {
		s, err := Open(context.Background(), t.TempDir(), Options{Logger: slog.New(slog.DiscardHandler)})
		testenv.Must(t, err)
		defer func() { testenv.OK(t, s.Close()) }()
		if without {
			_, err := s.writer.ExecContext(t.Context(), "DROP INDEX jobs_seen; DROP INDEX jobs_state; DROP INDEX jobs_conflict")
			testenv.Must(t, err)
		}
		const batches, size = 150, 100
		start := time.Now()
		for b := range batches {
			ds := make([]job.Delivery, size)
			for i := range ds {
				ds[i], err = job.Input{JobID: fmt.Sprintf("job-%08x", uint32(b*size+i)*2654435761), Event: "job.completed", Status: "OK", Mode: job.ModeQueued,
					Body: job.Body{Kind: job.BodyText, Data: fmt.Sprintf(`{"n":"%0300d"}`, i)}}.Delivery(1 << 20)
				testenv.Must(t, err)
			}
			for _, o := range s.Record(t.Context(), ds) {
				testenv.Must(t, o.Err)
			}
		}
		return batches * size / time.Since(start).Seconds()
	}
	var ratios []float64
	for range 5 {
		with, without := run(false), run(true)
		ratios = append(ratios, with/without)
	}
	slices.Sort(ratios)
	t.Logf("with the indexes, recording is at %.3f of its speed without (%.3f)", ratios[2], ratios)
}
