package sqlitestore_test

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

func record(t *testing.T, s job.Store, jobID string) job.Outcome {
	t.Helper()
	d, err := job.Input{JobID: jobID, Body: job.Body{Kind: job.BodyText, Data: "the body of " + jobID}}.Delivery(1 << 20)
	testenv.Must(t, err)
	o := s.Record(t.Context(), []job.Delivery{d})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	return o
}

// file makes a data directory with one job in it and returns the directory and its database file, closed.
func file(t *testing.T) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	s := open(t, dir, nil)
	record(t, s, "kept")
	testenv.Must(t, s.Close())
	path = filepath.Join(dir, "jobonce.db")
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("after Close there is still a write-ahead log (%v): the file alone is not the whole store", err)
	}
	return dir, path
}

func execSQL(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	testenv.Must(t, err)
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
	testenv.Must(t, db.Close())
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir, nil)
	// flock is per open file, so a second Open in this process stands for another process.
	if _, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{}); !errors.Is(err, sqlitestore.ErrInUse) {
		t.Fatalf("second Open: %v, want ErrInUse", err)
	}
	record(t, first, "still works")
	testenv.Must(t, first.Close())
	if r, err := open(t, dir, nil).Get(t.Context(), "still works", false); err != nil || r.Deliveries != 1 {
		t.Errorf("after the first closed: %+v, %v", r, err)
	}
}

// TestRefusedFilesStay opens files that are not to be opened: each is named as what it is, and not a byte changes.
func TestRefusedFilesStay(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		want  error
	}{
		{"text", func(t *testing.T, path string) { write(t, path, []byte(strings.Repeat("not a database\n", 999))) }, sqlitestore.ErrForeign},
		{"short text", func(t *testing.T, path string) { write(t, path, []byte("hello")) }, sqlitestore.ErrForeign},
		{"another program's database", func(t *testing.T, path string) {
			testenv.Must(t, os.Remove(path))
			execSQL(t, path, "CREATE TABLE jobs (x)")
		}, sqlitestore.ErrForeign},
		{"newer version", func(t *testing.T, path string) { execSQL(t, path, "PRAGMA user_version = 99") }, sqlitestore.ErrNewer},
		{"damaged header", func(t *testing.T, path string) { overwrite(t, path, 0, 16) }, sqlitestore.ErrForeign},
		{"damaged schema", func(t *testing.T, path string) { overwrite(t, path, 100, 3900) }, sqlitestore.ErrDamaged},
		{"cut short", func(t *testing.T, path string) {
			testenv.Must(t, os.Truncate(path, 4096))
		}, sqlitestore.ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, path := file(t)
			c.spoil(t, path)
			before := sum(t, path)
			s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("Open: %v, want %v", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not name the file", err)
			}
			if sum(t, path) != before {
				t.Error("the file changed")
			}
		})
	}
}

func TestUnusableDirectory(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	write(t, plain, nil)
	for _, dir := range []string{plain, filepath.Join(plain, "below"), "/proc/jobonce"} {
		s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", dir)
			continue
		}
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("%q does not name %s", err, dir)
		}
	}
}

func TestOddDirectoryNames(t *testing.T) {
	for _, name := range []string{"a b", "a?mode=ro", "a#b", "100%", "%41", "é", "a&b", "a'b", "a\\b"} {
		dir := filepath.Join(t.TempDir(), name, "data")
		record(t, open(t, dir, nil), "j")
		if _, err := os.Stat(filepath.Join(dir, "jobonce.db")); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	record(t, open(t, dir, nil), "j")
	entries, err := os.ReadDir(dir)
	testenv.Must(t, err)
	for _, path := range append([]string{dir}, names(dir, entries)...) {
		info, err := os.Stat(path)
		testenv.Must(t, err)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
}

// TestStandardToolReads reads the file with the sqlite3 tool, where there is one, while the store writes to it.
func TestStandardToolReads(t *testing.T) {
	tool, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Skip("SKIPPED: no sqlite3 tool on PATH")
	}
	dir := t.TempDir()
	s := open(t, dir, nil)
	record(t, s, "j")
	record(t, s, "j")
	out, err := exec.Command(tool, "-readonly", filepath.Join(dir, "jobonce.db"),
		"SELECT job_id, deliveries, work_state, bodies.text FROM jobs JOIN bodies USING (id); PRAGMA integrity_check").CombinedOutput()
	if want := "j|2|untracked|the body of j\nok\n"; err != nil || string(out) != want {
		t.Errorf("sqlite3 printed %q, %v; want %q", out, err, want)
	}
	record(t, s, "k")
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	testenv.Must(t, os.WriteFile(path, data, 0o600))
}

func overwrite(t *testing.T, path string, from, n int) {
	t.Helper()
	data, err := os.ReadFile(path)
	testenv.Must(t, err)
	copy(data[from:], bytes.Repeat([]byte{0xA5}, n))
	write(t, path, data)
}

func sum(t *testing.T, path string) [32]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	testenv.Must(t, err)
	return sha256.Sum256(data)
}

func names(dir string, entries []os.DirEntry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out
}

func queryText(t *testing.T, path, query string) (text string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	testenv.Must(t, err)
	testenv.Must(t, errors.Join(db.QueryRow(query).Scan(&text), db.Close()))
	return text
}

// TestLogWithoutItsFile takes the file away, or empties it, beside the write-ahead log that a killed service left: that is
// no new store, and the log stays.
func TestLogWithoutItsFile(t *testing.T) {
	for name, do := range map[string]func(file string) error{
		"removed": os.Remove,
		"emptied": func(file string) error { return os.Truncate(file, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			served := t.TempDir()
			record(t, open(t, served, nil), "j")
			dir := copyDir(t, served)
			file := sqlitestore.File(dir)
			testenv.Must(t, do(file))
			log, err := os.ReadFile(file + "-wal")
			if err != nil || len(log) == 0 {
				t.Fatalf("%d bytes, %v", len(log), err)
			}
			s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, sqlitestore.ErrDamaged) || !strings.Contains(err.Error(), file+"-wal") {
				t.Errorf("%v, want that the file is missing", err)
			}
			if after, err := os.ReadFile(file + "-wal"); err != nil || !bytes.Equal(after, log) {
				t.Errorf("the log was changed, %v", err)
			}
		})
	}
}

// TestLogShrinks: a write-ahead log that grew while somebody read the file for long is cut back, since the start after a kill
// writes all of it anew.
func TestLogShrinks(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	file := sqlitestore.File(dir)
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(file + "-wal")
		testenv.Must(t, err)
		return info.Size()
	}
	big := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			d, err := job.Input{JobID: fmt.Sprint(i), Body: job.Body{Kind: job.BodyText, Data: strings.Repeat("x", 1<<20)}}.Delivery(1 << 20)
			if err == nil {
				err = s.Record(t.Context(), []job.Delivery{d})[0].Err
			}
			testenv.Must(t, err)
		}
	}
	reader, err := sql.Open("sqlite", "file:"+file+"?mode=ro")
	testenv.Must(t, err)
	defer reader.Close()
	tx, err := reader.BeginTx(t.Context(), nil)
	testenv.Must(t, err)
	var n int
	testenv.Must(t, tx.QueryRow("SELECT count(*) FROM jobs").Scan(&n))
	big(0, 100)
	if grown := size(); grown < 100<<20 {
		t.Fatalf("the log has %d bytes while the file is read", grown)
	}
	testenv.Must(t, tx.Rollback())
	big(100, 103)
	if left := size(); left > 70<<20 {
		t.Errorf("the log still has %d bytes", left)
	}
}

// TestServedFileIsGone removes, moves or replaces a file under the store that has it open: nothing more is acknowledged, and
// the store says why it is out of service.
func TestServedFileIsGone(t *testing.T) {
	backup, _ := backupFile(t)
	must := func(t *testing.T, err error) {
		t.Helper()
		testenv.Must(t, err)
	}
	for name, c := range map[string]struct {
		do  func(t *testing.T, file string)
		why string
	}{
		"the directory removed": {func(t *testing.T, file string) { must(t, os.RemoveAll(filepath.Dir(file))) }, "removed or moved"},
		"the directory moved":   {func(t *testing.T, file string) { must(t, os.Rename(filepath.Dir(file), filepath.Dir(file)+"2")) }, "removed or moved"},
		"the file removed":      {func(t *testing.T, file string) { must(t, os.Remove(file)) }, "removed or moved"},
		"the file replaced": {func(t *testing.T, file string) {
			write(t, file+".new", backup)
			must(t, os.Rename(file+".new", file))
		}, "replaced by another file"},
		"the log removed": {func(t *testing.T, file string) { must(t, os.Remove(file+"-wal")) }, "jobonce.db-wal was removed or moved"},
		"the log replaced": {func(t *testing.T, file string) {
			must(t, os.Remove(file+"-wal"))
			write(t, file+"-wal", nil)
		}, "jobonce.db-wal was replaced by another file"},
	} {
		t.Run(name, func(t *testing.T) {
			for call, f := range map[string]func(s *sqlitestore.Store) error{
				"record": func(s *sqlitestore.Store) error {
					return s.Record(t.Context(), []job.Delivery{delivery(t, "new", "e", true)})[0].Err
				},
				"claim": func(s *sqlitestore.Store) error {
					_, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 1, Lease: time.Minute})
					return err
				},
				"complete": func(s *sqlitestore.Store) error { return job.Complete(t.Context(), s, "absent", "token", "") },
				"get":      func(s *sqlitestore.Store) error { _, err := s.Get(t.Context(), "absent", true); return err },
				"upkeep":   func(s *sqlitestore.Store) error { s.Tend(1); return s.Check(t.Context()) },
			} {
				dir := filepath.Join(t.TempDir(), "data")
				s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
				must(t, err)
				record(t, s, "before")
				c.do(t, sqlitestore.File(dir))
				if err := f(s); !errors.Is(err, job.ErrUnavailable) && !errors.Is(err, job.ErrOutcomeUnknown) || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%s: %v, want %q", call, err, c.why)
				}
				select {
				case <-s.Broken():
					t.Errorf("%s: a restart is asked for, which would begin anew", call)
				default:
				}
				if err := s.Check(t.Context()); err == nil {
					t.Errorf("%s: the store serves on", call)
				}
				if err := s.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", true)})[0].Err; !errors.Is(err, job.ErrUnavailable) {
					t.Errorf("%s: afterwards: %v", call, err)
				}
				_ = s.Close()
			}
		})
	}
}

// TestServedFileStays: what others may do beside a store that serves does not put it out of service.
func TestServedFileStays(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	file := sqlitestore.File(dir)
	testenv.Must(t, sqlitestore.Backup(t.Context(), dir, filepath.Join(dir, "backup"), func(int64, int64) {}))
	verify(t, file)
	execSQL(t, file, "PRAGMA wal_checkpoint(TRUNCATE)")
	execSQL(t, file, "VACUUM")
	testenv.Must(t, os.Link(file, filepath.Join(dir, "linked")))
	testenv.Must(t, os.Chmod(file, 0o640))
	record(t, s, "j")
	s.Tend(1)
	testenv.OK(t, s.Check(t.Context()))
}
