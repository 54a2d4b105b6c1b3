package sqlitestore_test

import (
	"bytes"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// oldDirs are data directories that the versions before left, one after a clean end and one after a crash.
func oldDirs(t *testing.T) (dirs []string) {
	t.Helper()
	dirs, err := filepath.Glob("testdata/v*/*")
	if err != nil || len(dirs) < 2 {
		t.Fatalf("the files of older versions are missing: %v, %v", dirs, err)
	}
	return dirs
}

// copyDir copies the files of a data directory into a new one.
func copyDir(t *testing.T, from string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	entries, err := os.ReadDir(from)
	testenv.Must(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		testenv.Must(t, err)
		write(t, filepath.Join(dir, e.Name()), data)
	}
	return dir
}

// wantLives wants what lives made, which the present version makes in the same way, but for what schema 1 did not keep.
func wantLives(t *testing.T, got []job.Record) {
	t.Helper()
	fresh := t.TempDir()
	writeLives(t, fresh, false)
	want := records(t, fresh)
	for _, all := range [][]job.Record{want, got} {
		for i := range all {
			w := &all[i].Work
			if w.Token != "" {
				w.Token = "some token" // is random
			}
			if w.Lapses = 0; w.Granted != 0 || w.State == job.StateQueued {
				w.Granted = job.MaxLease
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the old file holds (-want +got):\n%s", diff)
	}
}

// copies are those of older files that stand beside the present one.
func copies(dir string) []string {
	found, err := filepath.Glob(sqlitestore.File(dir) + ".schema*")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	return found
}

// TestUpgrade opens files of every older schema: all that they hold stays, and so does a copy of them as they were.
func TestUpgrade(t *testing.T) {
	for _, old := range oldDirs(t) {
		t.Run(old, func(t *testing.T) {
			dir := copyDir(t, old)
			var log bytes.Buffer
			clock := testenv.NewClock()
			clock.Advance(2 * time.Minute) // past all that lives does: work that is due too far ahead is anchored anew
			opts := sqlitestore.Options{Now: clock.Now, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			s, err := sqlitestore.Open(t.Context(), dir, opts)
			testenv.Must(t, err)
			record(t, s, "after the upgrade")
			testenv.Must(t, s.Close())
			if v := verify(t, sqlitestore.File(dir)); v.Old || len(v.Findings) > 0 {
				t.Errorf("upgraded: %+v", v)
			}
			all := records(t, dir)
			if len(all) == 0 || all[len(all)-1].JobID != "after the upgrade" {
				t.Fatalf("%d jobs, without the last", len(all))
			}
			wantLives(t, all[:len(all)-1])

			kept := copies(dir)
			if len(kept) != 1 || !strings.Contains(log.String(), kept[0]) || !strings.Contains(log.String(), "forgets every decision") {
				t.Fatalf("copies %v; logged %s", kept, &log)
			}
			if v := verify(t, kept[0]); !v.Old || len(v.Findings) > 0 {
				t.Errorf("the copy: %+v", v)
			}
			if info, err := os.Stat(kept[0]); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the copy has mode %v, %v", info.Mode(), err)
			}
			wantLives(t, records(t, restore(t, kept[0])))
			open(t, dir, nil)
			if again := copies(dir); !slices.Equal(again, kept) {
				t.Errorf("the next start left copies %v", again)
			}
		})
	}
}

// TestOldFileIsOnlyRead: whatever only looks at a file of an older schema does so, and leaves it as it is.
func TestOldFileIsOnlyRead(t *testing.T) {
	for _, old := range oldDirs(t) {
		t.Run(old, func(t *testing.T) {
			dir := copyDir(t, old)
			file, backup := sqlitestore.File(dir), filepath.Join(t.TempDir(), "backup")
			before := sum(t, file)
			if v := verify(t, file); !v.Old || len(v.Findings) > 0 {
				t.Errorf("check: %+v", v)
			}
			testenv.Must(t, sqlitestore.Backup(t.Context(), dir, backup, func(int64, int64) {}))
			if v := verify(t, backup); !v.Old || len(v.Findings) > 0 {
				t.Errorf("check of the backup: %+v", v)
			}
			wantLives(t, records(t, dir))
			wantLives(t, records(t, restore(t, backup)))
			if sum(t, file) != before || len(copies(dir)) > 0 {
				t.Errorf("the file changed, or was upgraded: %v", copies(dir))
			}
		})
	}
}

// TestUpgradeThatFails leaves the old file as it was, says what the matter is, and leaves no copies behind.
func TestUpgradeThatFails(t *testing.T) {
	refused := func(t *testing.T, dir, why string) {
		t.Helper()
		s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
		if err == nil {
			_ = s.Close()
			t.Fatal("opened")
		}
		if !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), sqlitestore.File(dir)) || len(copies(dir)) > 0 {
			t.Errorf("%v, want %q; copies %v", err, why, copies(dir))
		}
		if v := verify(t, sqlitestore.File(dir)); !v.Old || v.Jobs == 0 {
			t.Errorf("the file: %+v", v)
		}
	}
	t.Run("a step that cannot be done", func(t *testing.T) {
		dir := copyDir(t, "testdata/v1/closed")
		execSQL(t, sqlitestore.File(dir), "CREATE TABLE file (x)") // which the step makes, after others
		refused(t, dir, "schema 1, and cannot be upgraded")
		execSQL(t, sqlitestore.File(dir), "DROP TABLE file")
		record(t, open(t, dir, nil), "j")
	})
	t.Run("no space for the copy", func(t *testing.T) {
		dir := tmpfs(t, 160)
		data, err := os.ReadFile("testdata/v1/closed/jobonce.db")
		testenv.Must(t, err)
		write(t, sqlitestore.File(dir), data)
		refused(t, dir, "the disk is full")
		remount(t, dir, 0, sizeOption(4<<10))
		record(t, open(t, dir, nil), "j")
	})
}

// TestUnknownStateStays: work in a state that only a newer version knows, or without all of its fields, starts nothing, is
// never claimed or changed, and holds nothing up.
func TestUnknownStateStays(t *testing.T) {
	for _, spoiled := range []string{
		"work_state = 'paused'", "work_state = 'queued', work_due = NULL", "work_attempts = 5000000000", "work_lapses = -5000000000",
		"body_kind = 700", "bytes = NULL", "text = NULL, bytes = NULL, body_kind = 1",
	} {
		t.Run(spoiled, func(t *testing.T) {
			dir, clock := t.TempDir(), testenv.NewClock()
			s := open(t, dir, clock)
			queue := func(id string) job.Outcome {
				d, err := job.Input{JobID: id, Mode: job.ModeQueued, Body: job.Body{Kind: job.BodyBytes, Data: id}}.Delivery(1 << 20)
				testenv.Must(t, err)
				return s.Record(t.Context(), []job.Delivery{d})[0]
			}
			for _, id := range []string{"a", "b", "c", "d"} {
				if o := queue(id); o.Err != nil {
					t.Fatal(o.Err)
				}
				clock.Advance(1)
			}
			path := sqlitestore.File(dir)
			execSQL(t, path, "UPDATE jobs SET "+spoiled+" WHERE job_id IN ('a', 'b', 'c')")
			work := "SELECT group_concat(concat_ws(' ', job_id, work_state, work_due, work_attempts, work_generation, work_token, body_kind)) FROM jobs WHERE job_id < 'd'"
			before := queryText(t, path, work)
			claimed, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 2, Lease: 1e9, MaxBytes: 1 << 20})
			if err != nil || len(claimed) != 1 || claimed[0].Record.JobID != "d" {
				t.Errorf("claimed %+v, %v; want d", claimed, err)
			}
			o := queue("a")
			if o.Verdict.StartWork || o.Err == nil && o.Verdict.Disposition != job.Pending ||
				o.Err != nil && !errors.Is(o.Err, job.ErrRecordUnusable) {
				t.Errorf("delivered again: %+v, %v", o.Verdict, o.Err)
			}
			_ = job.Complete(t.Context(), s, "a", "token", "")
			want := int64(3)
			if strings.HasSuffix(spoiled, "work_due = NULL") {
				want = 0 // never due
			}
			if s.Tend(60); s.Unclaimable() != want {
				t.Errorf("%d count as work that nobody can claim, want %d", s.Unclaimable(), want)
			}
			if after := queryText(t, path, work); after != before {
				t.Errorf("changed from\n%s to\n%s", before, after)
			}
		})
	}
}

// TestUpgradeAfterKills: what starts that were killed while they copied have left does not pile up.
func TestUpgradeAfterKills(t *testing.T) {
	dir := copyDir(t, "testdata/v1/closed")
	for _, name := range []string{".jobonce.db.schema1-20260314T150926.535Z.1.part", ".jobonce.db.schema1-20260314T150926.535Z.1.part-journal"} {
		write(t, filepath.Join(dir, name), []byte("half a copy"))
	}
	record(t, open(t, dir, nil), "j")
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if kept := copies(dir); len(kept) != 1 {
		t.Errorf("copies %v", kept)
	}
}

// interrupt copies a database into a new data directory as a crash leaves it within a statement: part of the change is in
// the file, and the rollback journal says how to take it back.
func interrupt(t *testing.T, path, statement string) (dir string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	testenv.Must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	// Without a cache every page goes to the file as soon as it was changed.
	for _, query := range []string{"PRAGMA journal_mode = DELETE", "PRAGMA cache_size = 1", "BEGIN", statement} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	dir = t.TempDir()
	for _, suffix := range []string{"", "-journal"} {
		data, err := os.ReadFile(path + suffix)
		testenv.Must(t, err)
		write(t, sqlitestore.File(dir)+suffix, data)
	}
	return dir
}

// TestInterruptedChange opens a file of ours that was left within a change, such as that to the mode in which it is served.
func TestInterruptedChange(t *testing.T) {
	data, _ := backupFile(t)
	path := filepath.Join(t.TempDir(), "backup")
	write(t, path, data)
	dir := interrupt(t, path, "UPDATE jobs SET deliveries = 77; UPDATE large_bodies SET text = 'x' || text")
	if v, err := sqlitestore.Verify(t.Context(), sqlitestore.File(dir), func(int64, int64) {}); err == nil {
		t.Errorf("verified within a change: %+v", v)
	}
	s := open(t, dir, nil)
	for _, id := range []string{"job-0", "job-19"} {
		if r, err := s.Get(t.Context(), id, false); err != nil || r.Deliveries != 1 {
			t.Errorf("%s: %d deliveries, %v; the change was not taken back", id, r.Deliveries, err)
		}
	}
	if v := verify(t, sqlitestore.File(dir)); len(v.Findings) > 0 {
		t.Errorf("%+v", v)
	}
}

// TestInterruptedForeignChange leaves another program's file within its change: that is not ours to take back.
func TestInterruptedForeignChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "foreign")
	execSQL(t, path, `CREATE TABLE jobs (x);
		INSERT INTO jobs SELECT hex(randomblob(1000)) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT i FROM n)`)
	dir := interrupt(t, path, "UPDATE jobs SET x = hex(randomblob(1000))")
	before := sum(t, sqlitestore.File(dir))
	s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, sqlitestore.ErrForeign) {
		t.Errorf("Open: %v, want ErrForeign", err)
	}
	if sum(t, sqlitestore.File(dir)) != before {
		t.Error("the file changed")
	}
}
