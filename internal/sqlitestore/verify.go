package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jobonce/jobonce/internal/job"
)

// maxFindings bounds how many findings a verification spells out.
const maxFindings = 100

// Progress is told how far a long operation is. total may grow; it is 0 while nobody knows it.
type Progress func(done, total int64)

// Verification is what came of looking at a whole file.
type Verification struct {
	Jobs int64
	// Old: an older version wrote the file. It can be checked and backed up as it is; serving it upgrades it.
	Old bool
	// Findings says what is wrong, at most 100 of it; none means that the file is sound. Omitted counts the others.
	Findings []string
	Omitted  int
}

func (v *Verification) find(format string, args ...any) {
	if len(v.Findings) == maxFindings {
		v.Omitted++
		return
	}
	v.Findings = append(v.Findings, fmt.Sprintf(format, args...))
}

// File is the database within a data directory.
func File(dir string) string { return filepath.Join(dir, fileName) }

// Verify reads all of a database file: its structure, its indexes, and whether each job can be what we wrote, bodies
// against their fingerprints included. It changes nothing, and a service may be using the file meanwhile: what is seen
// is its state at the beginning. The error says that the file could not be looked at, and matches ErrForeign, ErrNewer,
// ErrDamaged or the file system's errors.
func Verify(ctx context.Context, file string, progress Progress) (v Verification, err error) {
	s := &Store{path: file}
	state, err := s.inspect(ctx)
	v.Old = state.schema < schemaVersion
	switch {
	case err != nil && !errors.Is(err, ErrDamaged):
		return v, fmt.Errorf("%s: %w", file, err)
	case err != nil:
		v.find("%v", err)
		return v, nil
	case state.fresh:
		if _, err := os.Stat(file); err != nil {
			return v, err
		}
		return v, fmt.Errorf("%s: %w: it is empty", file, ErrForeign)
	}
	db, err := openDB(file, "ro", "query_only(true)", "busy_timeout(5000)")
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := snapshot(ctx, db)
	if err != nil {
		return v, fmt.Errorf("%s: %w", file, describe(err))
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	err = v.look(ctx, conn, state.schema, progress)
	switch {
	case errors.Is(err, ErrDamaged):
		v.find("%v", err)
		return v, nil
	case err != nil:
		return v, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}

// snapshot takes a connection whose reads all see the file as it is now.
func snapshot(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	// A transaction begins with its first read.
	for _, query := range []string{"BEGIN", "SELECT 1 FROM sqlite_schema"} {
		if _, err := conn.ExecContext(ctx, query); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

func (v *Verification) look(ctx context.Context, conn *sql.Conn, schema int, progress Progress) error {
	total, err := count(ctx, conn)
	if err != nil {
		return err
	}
	if err := v.structure(ctx, conn); err != nil {
		return err
	}
	if err := v.objects(ctx, conn, schema); err != nil {
		return err
	}
	err = each(ctx, conn, schema, func(r *row, fault error) bool {
		v.Jobs++
		progress(v.Jobs, total)
		if fault != nil {
			v.find("%v", fault)
			return true
		}
		for _, fault := range r.Faults() {
			v.find("job %q %s", r.JobID, fault)
		}
		if r.kind > job.BodyBytes {
			v.find("job %q has a body of unknown kind %d", r.JobID, r.kind)
		}
		return true
	})
	if err != nil {
		return err
	}
	if schema >= 3 {
		if err := v.beside(ctx, conn); err != nil {
			return err
		}
	}
	var stray int64
	err = conn.QueryRowContext(ctx, `SELECT count(*) FROM large_bodies LEFT JOIN jobs USING (id)
		WHERE job_id IS NULL OR body_kind = 0 OR jobs.text IS NOT NULL OR jobs.bytes IS NOT NULL`).Scan(&stray)
	if stray > 0 {
		v.find("%d bodies belong to no job", stray)
	}
	return describe(err)
}

// beside looks at what stands beside the jobs.
func (v *Verification) beside(ctx context.Context, conn *sql.Conn) error {
	err := eachExpectation(ctx, conn, func(e *job.Expectation) bool {
		for _, fault := range e.Faults() {
			v.find("the expectation of job %q: %s", e.JobID, fault)
		}
		return true
	}, allExpectationsQuery)
	if err != nil {
		return describe(err)
	}
	pauses, err := readPauses(ctx, conn)
	if len(pauses) > job.MaxPauses {
		v.find("there are %d pauses; the limit is %d", len(pauses), job.MaxPauses)
	}
	return describe(err)
}

// structure lets SQLite check its pages, and that each index has what its table has.
func (v *Verification) structure(ctx context.Context, conn *sql.Conn) (err error) {
	rows, err := conn.QueryContext(ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxFindings))
	if err != nil {
		return describe(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return describe(err)
		}
		if line != "ok" {
			v.find("SQLite: %s", line)
		}
	}
	return describe(rows.Err())
}

// objects looks for each table, index, view and trigger that the schema makes. SQLite misses none of them by itself.
func (v *Verification) objects(ctx context.Context, conn *sql.Conn, schema int) (err error) {
	there, err := objects(ctx, conn)
	if err != nil {
		return describe(err)
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1) // another connection would be another database
	if _, err := db.ExecContext(ctx, strings.Join(scripts[:schema], ";")); err != nil {
		return err
	}
	want, err := objects(ctx, db)
	if err != nil {
		return err
	}
	for _, o := range want {
		if !slices.Contains(there, o) {
			v.find("the %s is missing", o)
		}
	}
	return nil
}

// objects lists what a database has, each as its type and name.
func objects(ctx context.Context, db querier) (out []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT type || ' ' || name FROM sqlite_schema ORDER BY rowid")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var o string
		if err := rows.Scan(&o); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, rows.Err()
}
