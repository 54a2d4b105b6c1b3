package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"

	"github.com/gofrs/flock"

	"github.com/jobonce/jobonce/internal/job"
)

// Reader is a store that nobody serves meanwhile, and that is only read: the file stays as it is, of whatever schema.
type Reader struct {
	path   string
	schema int
	db     *sql.DB
	lock   *flock.Flock
}

// OpenReader opens the store in dir, which must be there. The error matches ErrInUse, ErrForeign, ErrNewer, ErrDamaged
// or the file system's errors.
func OpenReader(ctx context.Context, dir string) (_ *Reader, err error) {
	s := &Store{path: File(dir)}
	if _, err := os.Stat(s.path); err != nil {
		return nil, err
	}
	r := &Reader{path: s.path}
	if r.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	state, err := s.inspect(ctx)
	if err == nil && state.fresh {
		err = fmt.Errorf("%w: it is empty", ErrForeign)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.path, err), r.lock.Unlock())
	}
	r.schema = state.schema
	if r.db, err = openDB(s.path, "ro", "busy_timeout(5000)"); err != nil {
		return nil, errors.Join(err, r.lock.Unlock())
	}
	return r, nil
}

// Close lets another process have the directory.
func (r *Reader) Close() error { return errors.Join(r.db.Close(), r.lock.Unlock()) }

// Count is how many jobs there are.
func (r *Reader) Count(ctx context.Context) (int64, error) { return count(ctx, r.db) }

// All goes through all jobs, with their bodies, in the order in which they were first seen. It ends with the first error.
func (r *Reader) All(ctx context.Context) iter.Seq2[job.Record, error] {
	return func(yield func(job.Record, error) bool) {
		ended := false
		var bad error
		err := each(ctx, r.db, r.schema, func(r *row, fault error) bool {
			if bad = fault; fault != nil {
				return false
			}
			ended = !yield(r.Record, nil)
			return !ended
		})
		if err = errors.Join(bad, err); err != nil && !ended {
			yield(job.Record{}, fmt.Errorf("%s: %w", r.path, err))
		}
	}
}

// Expectations are all of them, in the order of their jobs' ids.
func (r *Reader) Expectations(ctx context.Context) (all []job.Expectation, err error) {
	if r.schema < 3 {
		return nil, nil
	}
	err = eachExpectation(ctx, r.db, func(e *job.Expectation) bool {
		all = append(all, *e)
		return true
	}, allExpectationsQuery)
	return all, describe(err)
}

// Pauses are all of them, in the order of their prefixes.
func (r *Reader) Pauses(ctx context.Context) ([]job.Pause, error) {
	if r.schema < 3 {
		return nil, nil
	}
	pauses, err := readPauses(ctx, r.db)
	return pauses, describe(err)
}

// querier is a pool of connections or one of them.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func count(ctx context.Context, db querier) (n int64, err error) {
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM jobs").Scan(&n)
	return n, describe(err)
}

// columnsOf are the columns of a record in a file of the schema, with what stands for those that it lacks.
func columnsOf(schema int) string {
	columns := recordColumns
	if schema < 2 {
		columns = strings.NewReplacer("work_granted", "NULL", "work_lapses", "0").Replace(columns)
	}
	if schema < 3 {
		columns = strings.NewReplacer("content_type", "NULL", "traceparent", "NULL", "payload_omitted", "NULL", "work_requeues", "0",
			"work_caller", "NULL", "caller", "NULL").Replace(columns)
	}
	return columns
}

// each calls f with every job until that returns false, or with the fault of a row that holds what we never write.
func each(ctx context.Context, db querier, schema int, f func(r *row, fault error) bool) (err error) {
	rows, err := db.QueryContext(ctx, "SELECT "+columnsOf(schema)+`,
		coalesce(jobs.text, large_bodies.text), coalesce(jobs.bytes, large_bodies.bytes)
		FROM jobs LEFT JOIN large_bodies USING (id) ORDER BY id`)
	if err != nil {
		return describe(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		r, fault := scanRecord(rows, true)
		if fault != nil && ctx.Err() != nil { // it closes the rows at any time
			return ctx.Err()
		}
		if fault == nil && (r.Work.State == job.StateUnknown || r.Work.Mode == job.ModeUnspecified) {
			fault = errors.New("the file holds a work state or mode that this version does not know")
		}
		if !f(&r, unreadable(&r, fault)) {
			return nil
		}
	}
	return describe(rows.Err())
}

// unreadable says of which row, by what was read of it, a fault is.
func unreadable(r *row, fault error) error {
	switch {
	case fault == nil:
		return nil
	case r.JobID == "":
		return fmt.Errorf("row %d of jobs cannot be read: %w", r.id, fault)
	}
	return fmt.Errorf("job %q cannot be read: %w", r.JobID, fault)
}
