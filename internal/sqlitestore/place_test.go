package sqlitestore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

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
