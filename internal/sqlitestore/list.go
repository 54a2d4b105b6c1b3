package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jobonce/jobonce/internal/job"
)

// listColumns are those of a record, without its result.
var listColumns = strings.Replace(recordColumns, "work_result", "NULL", 1)

// List implements [job.Store]. Each order and filter reads one index, along which no job moves while it is there.
func (s *Store) List(ctx context.Context, q job.ListQuery) (page job.Page, err error) {
	query, args := listQuery(&q)
	err = s.look(ctx, func() error {
		page, err = s.list(ctx, &q, query, args)
		return err
	})
	return page, err
}

// listQuery is the query for a page, of which as many rows are read as the page has room for.
func listQuery(q *job.ListQuery) (query string, args []any) {
	if q.Order == job.ByID {
		where, from := beginning(q.Prefix, q.After.JobID)
		return "SELECT first_seen, job_id, " + listColumns + " FROM jobs WHERE " + where + " ORDER BY job_id LIMIT ?",
			[]any{from, job.NewPager(q).Limit()}
	}
	index, where := "jobs_seen", "true"
	switch {
	case q.Conflicts:
		index, where = "jobs_conflict", "conflicts > 0"
	case q.State != job.StateUnknown && q.State != job.StateUntracked:
		index, where, args = "jobs_state", "work_state = ? AND work_state <> 'untracked'", []any{q.State.String()}
	}
	direction, beyond := "DESC", "<"
	if q.Order == job.OldestFirst {
		direction, beyond = "ASC", ">"
	}
	if q.After != (job.Place{}) {
		where += " AND (first_seen, job_id) " + beyond + " (?, ?)"
		args = append(args, q.After.Seen, q.After.JobID)
	}
	if !q.SeenFrom.IsZero() {
		where += " AND first_seen >= ?"
		args = append(args, q.SeenFrom.UnixMilli())
	}
	if !q.SeenBefore.IsZero() {
		where += " AND first_seen < ?"
		args = append(args, q.SeenBefore.UnixMilli())
	}
	return fmt.Sprintf("SELECT first_seen, job_id, %s FROM jobs INDEXED BY %s WHERE %s ORDER BY first_seen %s, job_id %[4]s LIMIT ?",
		listColumns, index, where, direction), append(args, job.NewPager(q).Limit())
}

// beginning is the condition for where a page by id begins, and its argument: SQLite would make use of one bound alone, and may
// take the one that is further away.
func beginning(prefix, after string) (where, from string) {
	if after < prefix {
		return "job_id >= ?", prefix
	}
	return "job_id > ?", after
}

func (s *Store) list(ctx context.Context, q *job.ListQuery, query string, args []any) (page job.Page, err error) {
	rows, err := s.readerDB.QueryContext(ctx, query, args...)
	if err != nil {
		return page, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	pager := job.NewPager(q)
	for rows.Next() && pager.Room() {
		var at job.Place
		r, err := scanRecord(placed{rows, []any{&at.Seen, &at.JobID}}, false)
		if q.Order == job.ByID && !strings.HasPrefix(at.JobID, q.Prefix) {
			break
		}
		switch err = ofJob(at.JobID, err); {
		case errors.Is(err, job.ErrRecordUnusable):
			s.note(slog.LevelError, "embedded store: a job cannot be listed", "file", s.path, "error", err)
			pager.Add(at, nil)
		case err != nil:
			return page, err
		default:
			pager.Add(at, &r.Record)
		}
	}
	return pager.Page(), rows.Err()
}

// placed is a row that begins with its place.
type placed struct {
	scanner
	place []any
}

func (p placed) Scan(into ...any) error { return p.scanner.Scan(append(p.place, into...)...) }

// look makes a read of several jobs.
func (s *Store) look(ctx context.Context, f func() error) error {
	if err := s.usable(); err != nil {
		return err
	}
	defer s.tell()
	err := s.twice(f)
	switch {
	case err == nil, errors.As(err, new(*job.InvalidError)):
		return err
	case s.closed.Load(): // meanwhile
		return s.usable()
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err())
	}
	return s.failed("read", err)
}

// The queries that count. They read indexes alone, but for that of untracked jobs, which is bounded.
const (
	countStateQuery     = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_state WHERE work_state = ?1 AND work_state <> 'untracked' LIMIT ?2)"
	countConflictsQuery = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_conflict WHERE conflicts > 0 LIMIT ?1)"
	// countUnderQuery is given a prefix, and the first text behind all ids that begin with it.
	countUnderQuery = `SELECT work_state, count(*), sum(conflicts > 0) FROM (SELECT work_state, conflicts FROM jobs
		WHERE job_id >= ?1 AND job_id < ?2 ORDER BY job_id LIMIT ?3) GROUP BY work_state`
	countUntrackedQuery = `SELECT count(*), coalesce(sum(untracked), 0) FROM (SELECT work_state = 'untracked' AS untracked FROM jobs INDEXED BY jobs_seen
		ORDER BY first_seen DESC, job_id DESC LIMIT ?1)`
)

// Count implements [job.Store].
func (s *Store) Count(ctx context.Context, prefix string) (c job.Counts, err error) {
	err = s.look(ctx, func() error {
		if prefix != "" {
			c, err = s.countUnder(ctx, prefix)
		} else {
			c, err = s.count(ctx)
		}
		return err
	})
	return c, err
}

func (s *Store) countUnder(ctx context.Context, prefix string) (c job.Counts, err error) {
	rows, err := s.readerDB.QueryContext(ctx, countUnderQuery, prefix, job.Behind(prefix), job.MaxCountExamined)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	states, conflicts := make(map[job.WorkState]int64), int64(0)
	for rows.Next() {
		var state string
		var n, conflicting int64
		if err := rows.Scan(&state, &n, &conflicting); err != nil {
			return c, err
		}
		states[job.StateNamed(state)] += n
		conflicts += conflicting
	}
	return job.CountsOf(states, conflicts), rows.Err()
}

func (s *Store) count(ctx context.Context) (c job.Counts, err error) {
	c.States = make(map[job.WorkState]job.Count)
	var n, examined int64
	for _, state := range job.TrackedStates {
		if err := s.readerDB.QueryRowContext(ctx, countStateQuery, state.String(), job.MaxCount+1).Scan(&n); err != nil {
			return c, err
		}
		c.States[state] = job.CountOf(n)
	}
	if err := s.readerDB.QueryRowContext(ctx, countConflictsQuery, job.MaxCount+1).Scan(&n); err != nil {
		return c, err
	}
	c.Conflicts = job.CountOf(n)
	if err := s.readerDB.QueryRowContext(ctx, countUntrackedQuery, job.MaxCountExamined).Scan(&examined, &n); err != nil {
		return c, err
	}
	untracked := job.CountOf(n)
	untracked.More = untracked.More || examined == job.MaxCountExamined
	c.States[job.StateUntracked] = untracked
	return c, nil
}
