package sqlitestore_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

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
