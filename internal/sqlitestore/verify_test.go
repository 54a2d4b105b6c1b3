package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// fill records jobs of every kind, and works on some.
func fill(t *testing.T, s job.Store, jobs int) {
	t.Helper()
	lease := time.Minute
	for i := range jobs {
		in := job.Input{JobID: fmt.Sprint("job ", i), Event: "e", Mode: job.WorkMode(1 + i%3)}
		if in.Mode == job.ModeLeased {
			in.Lease = &lease
		}
		switch i % 4 {
		case 0:
			in.Body = job.Body{Kind: job.BodyText, Data: fmt.Sprintf(`{"n":%d}`, i)}
		case 1:
			in.Body = job.Body{Kind: job.BodyBytes, Data: "\xff\x00"}
		case 2:
			in.Body = job.Body{Kind: job.BodyText, Data: strings.Repeat("large", 1000)}
		}
		for range 1 + i%2 {
			d, err := in.Delivery(1 << 20)
			testenv.Must(t, err)
			o := s.Record(t.Context(), []job.Delivery{d})[0]
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			if o.Lease != nil && i%5 == 0 {
				testenv.Must(t, job.Complete(t.Context(), s, in.JobID, o.Lease.Token, "done"))
			}
		}
	}
}

func verify(t *testing.T, path string) sqlitestore.Verification {
	t.Helper()
	v, err := sqlitestore.Verify(t.Context(), path, func(int64, int64) {})
	testenv.Must(t, err)
	return v
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	fill(t, s, 60)
	// While the store is open, with most of it in the write-ahead log, and after.
	for range 2 {
		if v := verify(t, sqlitestore.File(dir)); v.Jobs != 60 || len(v.Findings) > 0 || v.Omitted > 0 {
			t.Errorf("%+v", v)
		}
		testenv.Must(t, s.Close())
	}
}

// TestVerifyFinds spoils a file in one respect each, and sees that it is found, by its job where it is about one, and
// that looking changed nothing.
func TestVerifyFinds(t *testing.T) {
	sql := func(query string) func(*testing.T, string) {
		return func(t *testing.T, path string) { execSQL(t, path, query) }
	}
	sound := t.TempDir()
	s := open(t, sound, nil)
	fill(t, s, 60)
	testenv.Must(t, s.Close())
	for _, c := range []struct {
		name, want string
		spoil      func(t *testing.T, path string)
	}{
		{"body", `job "job 0" has a payload that is not the one delivered`, sql(`UPDATE jobs SET text = '{"n":1}' WHERE job_id = 'job 0'`)},
		{"large body", `job "job 2" has a payload that is not the one delivered`, sql(`UPDATE large_bodies SET text = 'x' WHERE id = (SELECT id FROM jobs WHERE job_id = 'job 2')`)},
		{"lost body", `job "job 2" has no payload`, sql(`DELETE FROM large_bodies WHERE id = (SELECT id FROM jobs WHERE job_id = 'job 2')`)},
		{"stray body", "1 bodies belong to no job", sql(`INSERT INTO large_bodies VALUES (999999, 'x', NULL)`)},
		{"stray body under a job's id", "1 bodies belong to no job", sql(`INSERT INTO large_bodies SELECT id, 'x', NULL FROM jobs WHERE job_id = 'job 0'`)},
		{"no trigger", "the trigger jobs_deleted is missing", sql(`DROP TRIGGER jobs_deleted`)},
		{"counter", `job "job 3" counts 0 deliveries`, sql(`UPDATE jobs SET deliveries = 0 WHERE job_id = 'job 3'`)},
		{"state", `job "job 3" cannot be read: the file holds a work state or mode that this version does not know`, sql(`UPDATE jobs SET work_state = 'lazy' WHERE job_id = 'job 3'`)},
		{"range", `job "job 3" cannot be read: `, sql(`UPDATE jobs SET work_attempts = 5000000000 WHERE job_id = 'job 3'`)},
		{"after an unreadable one", `job "job 4" counts 0 deliveries`, sql(`UPDATE jobs SET deliveries = 0 WHERE job_id = 'job 4';
			UPDATE jobs SET work_mode = 'lazy' WHERE job_id = 'job 3'`)},
		{"unreadable without a name", "row 4 of jobs cannot be read: ", sql(`UPDATE jobs SET job_id = '', work_state = 'lazy' WHERE id = 4`)},
		{"no index", "the index jobs_due is missing", sql(`DROP INDEX jobs_due`)},
		{"no view", "the view bodies is missing", sql(`DROP VIEW bodies`)},
		{"no table", "no such table: large_bodies", sql(`DROP TABLE large_bodies`)},
		{"lease", `job "job 1" is leased without a token`, sql(`UPDATE jobs SET work_token = NULL WHERE job_id = 'job 1'`)},
		{"kind", `job "job 1" has a body of unknown kind 7`, sql(`UPDATE jobs SET body_kind = 7 WHERE job_id = 'job 1'`)},
		{"index", "SQLite: ", sql(`PRAGMA writable_schema = ON;
			UPDATE sqlite_schema SET sql = replace(sql, 'WHERE', 'WHERE NOT') WHERE name = 'jobs_due'`)},
		{"page", "SQLite: ", func(t *testing.T, path string) {
			info, err := os.Stat(path)
			testenv.Must(t, err)
			overwrite(t, path, int(info.Size()/4096/2)*4096, 4096) // a page in the middle
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := sqlitestore.File(copyDir(t, sound))
			c.spoil(t, path)
			before := sum(t, path)
			v, err := sqlitestore.Verify(t.Context(), path, func(int64, int64) {})
			found := strings.Join(v.Findings, "\n")
			if err != nil {
				found = err.Error()
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
			if sum(t, path) != before {
				t.Error("the file changed")
			}
		})
	}
}

func TestVerifyIsBrief(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	fill(t, s, 250)
	testenv.Must(t, s.Close())
	execSQL(t, sqlitestore.File(dir), "UPDATE jobs SET deliveries = 0")
	if v := verify(t, sqlitestore.File(dir)); len(v.Findings) != 100 || v.Omitted != 150 {
		t.Errorf("%d findings and %d omitted", len(v.Findings), v.Omitted)
	}
}

func TestVerifyRefuses(t *testing.T) {
	_, path := file(t)
	newer := filepath.Join(t.TempDir(), "newer")
	testenv.Must(t, os.Rename(path, newer))
	execSQL(t, newer, "PRAGMA user_version = 99")
	foreign := filepath.Join(t.TempDir(), "foreign")
	write(t, foreign, []byte("hello"))
	empty := filepath.Join(t.TempDir(), "empty")
	write(t, empty, nil)
	for file, want := range map[string]error{
		newer: sqlitestore.ErrNewer, foreign: sqlitestore.ErrForeign, empty: sqlitestore.ErrForeign, foreign + "-not": os.ErrNotExist,
	} {
		if v, err := sqlitestore.Verify(t.Context(), file, func(int64, int64) {}); !errors.Is(err, want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %+v, %v; want %v", file, v, err, want)
		}
	}
}

// TestBackup takes backups while the store is written to: each is a state that the store was in, complete up to a job.
func TestBackup(t *testing.T) {
	dir, into := t.TempDir(), t.TempDir()
	s := open(t, dir, nil)
	fill(t, s, 60)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	recorded := make(chan struct{}, 1)
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			record(t, s, fmt.Sprint("while ", i))
			select {
			case recorded <- struct{}{}:
			default:
			}
		}
	})
	for n := range 5 {
		<-recorded
		file := filepath.Join(into, fmt.Sprint("backup ", n))
		var done, total int64
		testenv.Must(t, sqlitestore.Backup(t.Context(), dir, file, func(d, of int64) { done, total = d, of }))
		if done != total || total == 0 {
			t.Errorf("progress ended at %d of %d", done, total)
		}
	}
	close(stop)
	writer.Wait()
	before := int64(60)
	for n := range 5 {
		file := filepath.Join(into, fmt.Sprint("backup ", n))
		v := verify(t, file)
		if v.Jobs < before || len(v.Findings) > 0 {
			t.Errorf("backup %d: %+v", n, v)
		}
		before = v.Jobs
		wantFirst(t, file, v.Jobs)
	}
	wantFiles(t, into, 5)
}

// restore puts a backup into a new data directory, in the way that the command's help gives.
func restore(t *testing.T, file string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	data, err := os.ReadFile(file)
	testenv.Must(t, err)
	write(t, sqlitestore.File(dir), data)
	return dir
}

func reader(t *testing.T, dir string) *sqlitestore.Reader {
	t.Helper()
	r, err := sqlitestore.OpenReader(t.Context(), dir)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, r.Close()) })
	return r
}

// records are all that a directory holds.
func records(t *testing.T, dir string) (all []job.Record) {
	t.Helper()
	r, err := sqlitestore.OpenReader(t.Context(), dir)
	testenv.Must(t, err)
	for record, err := range r.All(t.Context()) {
		testenv.Must(t, err)
		all = append(all, record)
	}
	if n, err := r.Count(t.Context()); int(n) != len(all) || err != nil {
		t.Errorf("counted %d of %d jobs, %v", n, len(all), err)
	}
	testenv.Must(t, r.Close())
	return all
}

// wantFirst wants the first n jobs in a backup and no other.
func wantFirst(t *testing.T, file string, n int64) {
	t.Helper()
	dir := restore(t, file)
	all := records(t, dir)
	for i, r := range all {
		want := fmt.Sprint("job ", i)
		if i >= 60 {
			want = fmt.Sprint("while ", i-60)
		}
		if r.JobID != want {
			t.Fatalf("job %d is %q, want %q", i, r.JobID, want)
		}
	}
	if len(all) != int(n) {
		t.Errorf("%d jobs, want %d", len(all), n)
	}
	s := open(t, dir, nil)
	for limit, want := range map[int64]int64{n - 1: n - 1, n: n, n + 1: n} {
		if c, err := s.CountTo(t.Context(), limit); c != want || err != nil {
			t.Errorf("%d jobs, counted up to %d: %d, %v", n, limit, c, err)
		}
	}
	if o := record(t, s, "after"); !o.Verdict.FirstDelivery {
		t.Errorf("the restored store does not record: %+v", o.Verdict)
	}
}

// wantFiles wants a number of files, which only their owner can read, and nothing half done.
func wantFiles(t *testing.T, dir string, n int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != n {
		t.Errorf("%v, %v; want %d", entries, err, n)
	}
	for _, path := range names(dir, entries) {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestBackupRefuses(t *testing.T) {
	dir, _ := file(t)
	into := t.TempDir()
	taken := filepath.Join(into, "taken")
	write(t, taken, []byte("precious"))
	none := func(int64, int64) {}
	if err := sqlitestore.Backup(t.Context(), dir, taken, none); !errors.Is(err, os.ErrExist) {
		t.Errorf("onto a file: %v", err)
	}
	if err := sqlitestore.Backup(t.Context(), t.TempDir(), filepath.Join(into, "b"), none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	if err := sqlitestore.Backup(t.Context(), dir, filepath.Join(into, "no", "b"), none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into no directory: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sqlitestore.Backup(cancelled, dir, filepath.Join(into, "b"), none); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if data, err := os.ReadFile(taken); string(data) != "precious" || err != nil {
		t.Errorf("the file that was there holds %q, %v", data, err)
	}
	wantFiles(t, into, 1)
}

func TestAllNamesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	fill(t, s, 5)
	execSQL(t, sqlitestore.File(dir), "UPDATE jobs SET work_state = 'lazy' WHERE job_id = 'job 3'")
	testenv.Must(t, s.Close())
	jobs := 0
	for _, err := range reader(t, dir).All(t.Context()) {
		if err == nil {
			jobs++
		} else if !strings.Contains(err.Error(), `job "job 3" cannot be read`) {
			t.Errorf("%v", err)
		}
	}
	if jobs != 3 {
		t.Errorf("%d jobs before it", jobs)
	}
}

func TestReaderRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := sqlitestore.OpenReader(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	write(t, sqlitestore.File(dir), nil)
	if _, err := sqlitestore.OpenReader(t.Context(), dir); !errors.Is(err, sqlitestore.ErrForeign) {
		t.Errorf("of an empty file: %v", err)
	}
	served := t.TempDir()
	open(t, served, nil)
	if _, err := sqlitestore.OpenReader(t.Context(), served); !errors.Is(err, sqlitestore.ErrInUse) {
		t.Errorf("of a directory that is served: %v", err)
	}
}
