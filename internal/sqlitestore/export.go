package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"

	"github.com/jobonce/jobonce/internal/job"
)

const allQuery = "SELECT " + recordColumns + `,
	coalesce(jobs.text, large_bodies.text), coalesce(jobs.bytes, large_bodies.bytes)
	FROM jobs LEFT JOIN large_bodies USING (id) ORDER BY id`

// Count is how many jobs there are.
func (s *Store) Count(ctx context.Context) (int64, error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	return count(ctx, s.readerDB)
}

// CountTo is how many jobs there are, and limit when there are more: it takes little time however many there are.
func (s *Store) CountTo(ctx context.Context, limit int64) (n int64, err error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	err = s.readerDB.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM jobs LIMIT ?)", limit).Scan(&n)
	return n, describe(err)
}

// All goes through all jobs, with their bodies, in the order in which they were first seen and as they are at the
// beginning. It ends with the first error.
func (s *Store) All(ctx context.Context) iter.Seq2[job.Record, error] {
	return func(yield func(job.Record, error) bool) {
		if err := s.usable(); err != nil {
			yield(job.Record{}, err)
			return
		}
		ended := false
		var bad error
		err := each(ctx, s.readerDB, func(r *row, fault error) bool {
			if bad = fault; fault != nil {
				return false
			}
			ended = !yield(r.Record, nil)
			return !ended
		})
		if err = errors.Join(bad, err); err != nil && !ended {
			yield(job.Record{}, fmt.Errorf("%s: %w", s.path, err))
		}
	}
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

// each calls f with every job until that returns false, or with the fault of a row that holds what we never write.
func each(ctx context.Context, db querier, f func(r *row, fault error) bool) (err error) {
	rows, err := db.QueryContext(ctx, allQuery)
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
