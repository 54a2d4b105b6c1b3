package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	expectationColumns = "job_id, status_url, created, overdue, give_up, due, leased, token, polls, error, given_up"

	allExpectationsQuery = "SELECT " + expectationColumns + " FROM expectations ORDER BY job_id"
	dueExpectationsQuery = "SELECT " + expectationColumns + " FROM expectations WHERE due IS NOT NULL AND due <= ?1 ORDER BY due LIMIT ?2"
	// dueExpectationsUnderQuery is given the group of a prefix, and the prefix.
	dueExpectationsUnderQuery = "SELECT " + expectationColumns + ` FROM expectations WHERE due IS NOT NULL AND due <= ?1
		AND job_group = ?3 AND substr(job_id, 1, length(?4)) = ?4 ORDER BY due LIMIT ?2`
	countOverdueQuery = "SELECT count(*) FROM (SELECT 1 FROM expectations WHERE given_up IS NULL AND overdue <= ?1 LIMIT ?2)"
)

func scanExpectation(from scanner) (e job.Expectation, err error) {
	var created, overdue, giveUp int64
	var due, givenUp sql.NullInt64
	var token, reason sql.NullString
	if err := from.Scan(&e.JobID, &e.StatusURL, &created, &overdue, &giveUp, &due, &e.Leased, &token, &e.Polls, &reason, &givenUp); err != nil {
		return e, err
	}
	e.Created, e.Overdue, e.GiveUp, e.Token, e.Error = fromMillis(created), fromMillis(overdue), fromMillis(giveUp), token.String, reason.String
	if due.Valid {
		e.Due = fromMillis(due.Int64)
	}
	if givenUp.Valid {
		e.GivenUp = fromMillis(givenUp.Int64)
	}
	return e, nil
}

func orNullTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// eachExpectation calls f with every expectation until that returns false.
func eachExpectation(ctx context.Context, db querier, f func(e *job.Expectation) bool, query string, args ...any) (err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		e, err := scanExpectation(rows)
		if err != nil {
			return err
		}
		if !f(&e) {
			return nil
		}
	}
	return rows.Err()
}

// expectationOf reads one within a transaction.
func (s *Store) expectationOf(jobID string) (job.Expectation, error) {
	e, err := scanExpectation(s.writer.QueryRowContext(context.Background(), "SELECT "+expectationColumns+" FROM expectations WHERE job_id = ?", jobID))
	if errors.Is(err, sql.ErrNoRows) {
		return e, job.ErrNoExpectation
	}
	return e, err
}

// saveExpectation writes one within a transaction, in the place of the one before.
func (s *Store) saveExpectation(e *job.Expectation) error {
	_, err := s.writer.ExecContext(context.Background(), "INSERT OR REPLACE INTO expectations ("+expectationColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		e.JobID, e.StatusURL, e.Created.UnixMilli(), e.Overdue.UnixMilli(), e.GiveUp.UnixMilli(), orNullTime(e.Due), e.Leased, orNull(e.Token),
		e.Polls, orNull(e.Error), orNullTime(e.GivenUp))
	return err
}

// isRecorded tells within a transaction whether there is a job.
func (s *Store) isRecorded(jobID string) (is bool, err error) {
	err = s.writer.QueryRowContext(context.Background(), "SELECT EXISTS (SELECT 1 FROM jobs WHERE job_id = ?)", jobID).Scan(&is)
	return is, err
}

// forget removes the expectation of a job that is recorded, within a transaction.
func (s *Store) forget(jobID string) (recorded bool, err error) {
	if recorded, err = s.isRecorded(jobID); err == nil && recorded {
		_, err = s.write.dropExpectation.Exec(jobID)
	}
	return recorded, err
}

// Expect implements [job.Store].
func (s *Store) Expect(ctx context.Context, req job.ExpectRequest) (kept job.Expectation, recorded bool, err error) {
	err = s.update(ctx, func(now time.Time) error {
		if recorded, err = s.forget(req.JobID); err != nil || recorded {
			kept = job.Expectation{}
			return err
		}
		kept, err = s.expectationOf(req.JobID)
		if errors.Is(err, job.ErrNoExpectation) {
			kept = req.Expectation(now)
			err = s.saveExpectation(&kept)
		}
		return err
	})
	return kept, recorded, err
}

// ClaimOverdue implements [job.Store].
func (s *Store) ClaimOverdue(ctx context.Context, req job.OverdueRequest) (out job.Overdue, err error) {
	err = s.update(ctx, func(now time.Time) error {
		out = job.Overdue{}
		query, args := dueExpectationsQuery, []any{now.UnixMilli(), req.Max}
		if req.Prefix != "" {
			query, args = dueExpectationsUnderQuery, append(args, job.Group(req.Prefix), req.Prefix)
		}
		var due []job.Expectation
		if err := eachExpectation(context.Background(), s.writer, func(e *job.Expectation) bool {
			due = append(due, *e)
			return true
		}, query, args...); err != nil {
			return err
		}
		out.More = len(due) == req.Max
		for i := range due {
			recorded, err := s.forget(due[i].JobID)
			if err != nil {
				return err
			}
			if recorded {
				out.Recorded++
				continue
			}
			e := due[i].Claim(req.Lease, now)
			if err := s.saveExpectation(&e); err != nil {
				return err
			}
			if e.GivenUp.IsZero() {
				out.Jobs = append(out.Jobs, e)
			} else {
				out.GivenUp = append(out.GivenUp, e)
			}
		}
		return nil
	})
	if err != nil {
		return job.Overdue{}, err
	}
	return out, nil
}

// ReportPoll implements [job.Store].
func (s *Store) ReportPoll(ctx context.Context, p job.PollReport) (e job.Expectation, recorded bool, err error) {
	err = s.update(ctx, func(now time.Time) error {
		before, err := s.expectationOf(p.JobID)
		if err != nil {
			return err
		}
		if e, err = before.Report(&p, now); err != nil {
			return err
		}
		if recorded, err = s.forget(p.JobID); err != nil || recorded || e == before {
			return err
		}
		return s.saveExpectation(&e)
	})
	return e, recorded, err
}

// CancelExpectation implements [job.Store].
func (s *Store) CancelExpectation(ctx context.Context, jobID string) error {
	return s.update(ctx, func(time.Time) error {
		result, err := s.write.dropExpectation.Exec(jobID)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return job.ErrNoExpectation
	})
}

// ListExpectations implements [job.Store].
func (s *Store) ListExpectations(
	ctx context.Context, which job.ExpectationFilter, prefix, after string, size int,
) (page []job.Expectation, next string, err error) {
	bound, first := beginning(prefix, after)
	err = s.look(ctx, func() error {
		page, next = nil, ""
		last, examined, now := after, 0, s.now()
		return eachExpectation(ctx, s.readerDB, func(e *job.Expectation) bool {
			if !strings.HasPrefix(e.JobID, prefix) {
				return false
			}
			if len(page) == size || examined == size*job.ExaminedPerJob {
				next = last
				return false
			}
			if last, examined = e.JobID, examined+1; which.Matches(e, now) {
				page = append(page, *e)
			}
			return true
		}, "SELECT "+expectationColumns+" FROM expectations WHERE "+bound+"? ORDER BY job_id", first)
	})
	return page, next, err
}

// CountOverdue implements [job.Store].
func (s *Store) CountOverdue(ctx context.Context) (n int64, err error) {
	err = s.look(ctx, func() error {
		return s.readerDB.QueryRowContext(ctx, countOverdueQuery, s.now().UnixMilli(), job.MaxCount).Scan(&n)
	})
	return n, err
}
