package sqlitestore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// served is a store that records jobs of its own names.
type served struct {
	*sqlitestore.Store
	dir  string
	jobs int
}

func serve(t *testing.T, dir string, pragmas ...string) *served {
	t.Helper()
	s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)}.WithPragmas(pragmas...))
	testenv.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return &served{Store: s, dir: dir}
}

func (s *served) record(t *testing.T, n int) {
	t.Helper()
	for range n {
		if o := s.Record(t.Context(), []job.Delivery{delivery(t, fmt.Sprint("job ", s.jobs), "e", s.jobs%2 == 0)})[0]; o.Err != nil {
			t.Fatal(o.Err)
		}
		s.jobs++
	}
}

// killed copies what a kill at this moment would leave.
func (s *served) killed(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		copyFile(t, sqlitestore.File(s.dir)+suffix, sqlitestore.File(dir)+suffix)
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	testenv.Must(t, err)
	write(t, to, data)
}

// TestFileUnderAnotherLog puts a file beside the write-ahead log that a killed service left of another one. Whatever looks
// at it refuses, and says what to do; nothing is changed, so that either can be done.
func TestFileUnderAnotherLog(t *testing.T) {
	for name, pragmas := range map[string][]string{"within one log": nil, "over many logs": littleMemory} {
		other := map[string]func(t *testing.T, into string) (jobs int){
			"a file of schema 1": func(t *testing.T, into string) int {
				copyFile(t, "testdata/v1/closed/jobonce.db", into)
				return 28
			},
			"another store's file": func(t *testing.T, into string) int {
				s := serve(t, t.TempDir(), pragmas...)
				s.record(t, 50)
				testenv.Must(t, s.Close())
				copyFile(t, sqlitestore.File(s.dir), into)
				return 50
			},
		}
		s := serve(t, t.TempDir(), pragmas...)
		s.record(t, 10)
		testenv.Must(t, s.Close())
		early := filepath.Join(t.TempDir(), "early")
		copyFile(t, sqlitestore.File(s.dir), early)
		other["a copy from before the start"] = func(t *testing.T, into string) int { copyFile(t, early, into); return 10 }

		s = &served{Store: serve(t, s.dir, pragmas...).Store, dir: s.dir, jobs: s.jobs}
		for i := range 3 {
			s.record(t, 40)
			backup, jobs := filepath.Join(t.TempDir(), "backup"), s.jobs
			testenv.Must(t, sqlitestore.Backup(t.Context(), s.dir, backup, func(int64, int64) {}))
			other[fmt.Sprint("backup ", i)] = func(t *testing.T, into string) int { copyFile(t, backup, into); return jobs }
		}
		for _, more := range []int{0, 1, 40} { // at 0 the last backup is of the very state that is there
			if more > 0 && pragmas != nil && !testenv.Long() {
				continue // a part of the long mode
			}
			s.record(t, more)
			for what, put := range other {
				t.Run(fmt.Sprintf("%s, %d more: %s", name, more, what), func(t *testing.T) {
					dir := s.killed(t)
					wantOtherLog(t, dir, s.jobs, put)
				})
			}
		}
	}
}

func wantOtherLog(t *testing.T, dir string, jobs int, put func(t *testing.T, into string) int) {
	t.Helper()
	file, former := sqlitestore.File(dir), filepath.Join(t.TempDir(), "former")
	copyFile(t, file, former)
	restored := put(t, file)
	before, log := sum(t, file), sum(t, file+"-wal")
	for what, f := range map[string]func() error{
		"serve": func() error {
			s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
			if err == nil {
				_ = s.Close()
			}
			return err
		},
		"check": func() error {
			_, err := sqlitestore.Verify(t.Context(), file, func(int64, int64) {})
			return err
		},
		"backup": func() error {
			return sqlitestore.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "b"), func(int64, int64) {})
		},
		"copy": func() error {
			r, err := sqlitestore.OpenReader(t.Context(), dir)
			if err == nil {
				_ = r.Close()
			}
			return err
		},
	} {
		if err := f(); !errors.Is(err, sqlitestore.ErrOtherLog) || !strings.Contains(err.Error(), "move "+file+"-wal and ") {
			t.Fatalf("%s: %v, want ErrOtherLog", what, err)
		}
		if sum(t, file) != before || sum(t, file+"-wal") != log {
			t.Fatalf("%s changed the file or its log", what)
		}
	}
	wantJobs := func(dir string, n int) {
		t.Helper()
		if v := verify(t, sqlitestore.File(dir)); v.Jobs != int64(n) || len(v.Findings) > 0 {
			t.Errorf("%+v, want %d jobs", v, n)
		}
		record(t, open(t, dir, nil), "afterwards")
	}
	again := t.TempDir()
	copyFile(t, former, sqlitestore.File(again))
	copyFile(t, file+"-wal", sqlitestore.File(again)+"-wal")
	wantJobs(again, jobs)
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(file + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	wantJobs(dir, restored)
}

// TestFileUnderItsOwnLog: what a kill leaves is served, wherever it goes and at whatever moment, and so is a restored backup.
func TestFileUnderItsOwnLog(t *testing.T) {
	for name, pragmas := range map[string][]string{"within one log": nil, "over many logs": littleMemory} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for range 3 { // runs, each but the last of which is killed
				s := serve(t, dir, pragmas...)
				moments := 4
				if testenv.Long() {
					moments = 40
				}
				for range moments {
					s.record(t, 7)
					if v := verify(t, sqlitestore.File(dir)); len(v.Findings) > 0 {
						t.Fatalf("%+v", v)
					}
					killed := s.killed(t)
					if v := verify(t, sqlitestore.File(killed)); len(v.Findings) > 0 || v.Jobs < int64(s.jobs) {
						t.Fatalf("%+v, want %d jobs", v, s.jobs)
					}
					open(t, killed, nil)
				}
				dir = s.killed(t)
			}
		})
	}
}
