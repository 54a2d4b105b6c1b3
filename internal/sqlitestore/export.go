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

// All goes through all jobs, with their bodies, in the order in which they were first seen and as they are at the
// beginning. It ends with the first error.
func (s *Store) All(ctx context.Context) iter.Seq2[job.Record, error] {
	return func(yield func(job.Record, error) bool) {
		if err := s.usable(); err != nil {
			yield(job.Record{}, err)
			return
		}
		err := each(ctx, s.readerDB, func(r *row) bool { return yield(r.Record, nil) })
		if err != nil {
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

// each calls f with every job until that returns false.
func each(ctx context.Context, db querier, f func(*row) bool) (err error) {
	rows, err := db.QueryContext(ctx, allQuery)
	if err != nil {
		return describe(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		r, err := scanRecord(rows, true)
		if err != nil {
			return describe(err)
		}
		if !f(&r) {
			return nil
		}
	}
	return describe(rows.Err())
}
