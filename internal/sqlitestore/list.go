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

// List implements [job.Store]. Each order and filter goes along one index, by keys that stay as they are while a job is there. A
// list of all jobs by time is merged of those of the states, in one query: a job whose state changes meanwhile comes at its place.
func (s *Store) List(ctx context.Context, q job.ListQuery) (page job.Page, err error) {
	err = s.look(ctx, func() error {
		states := []string{q.State.String()}
		if q.State == job.StateUnknown {
			if states, err = s.states(ctx); err != nil {
				return err
			}
		}
		query, args := listQuery(&q, states)
		page, err = s.list(ctx, &q, query, args)
		return err
	})
	return page, err
}

// statesQuery finds the states in the file. It looks at one entry of each.
const statesQuery = `WITH RECURSIVE found (state) AS (
	SELECT (SELECT work_state FROM jobs INDEXED BY jobs_state WHERE work_state <> '' ORDER BY work_state LIMIT 1) UNION ALL
	SELECT (SELECT work_state FROM jobs INDEXED BY jobs_state WHERE work_state <> '' AND work_state > state ORDER BY work_state LIMIT 1)
	FROM found WHERE state IS NOT NULL) SELECT state FROM found WHERE state IS NOT NULL`

// states are the names of the states that jobs may be in: those that this version knows, into which one may come at any time, and
// those that others have left in the file.
func (s *Store) states(ctx context.Context) (names []string, err error) {
	for _, state := range job.EveryState {
		names = append(names, state.String())
	}
	rows, err := s.readerDB.QueryContext(ctx, statesQuery)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if job.StateNamed(name) == job.StateUnknown {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}

// listQuery is the query for a page of jobs in these states, of which as many rows are read as the page has room for.
func listQuery(q *job.ListQuery, states []string) (query string, args []any) {
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprint("?", len(args))
	}
	from, limit := "SELECT first_seen, job_id, "+listColumns+" FROM jobs ", " LIMIT "+arg(job.NewPager(q).Limit())
	if q.Order == job.ByID {
		bound, first := beginning(q.Prefix, q.After.JobID)
		query = from + "WHERE " + bound + arg(first) + " ORDER BY job_id" + limit
		return query, args
	}
	direction, beyond, bounds := "DESC", "<", ""
	if q.Order == job.OldestFirst {
		direction, beyond = "ASC", ">"
	}
	if q.After != (job.Place{}) {
		bounds += fmt.Sprintf(" AND (first_seen, job_id) %s (%s, %s)", beyond, arg(q.After.Seen), arg(q.After.JobID))
	}
	if !q.SeenFrom.IsZero() {
		bounds += " AND first_seen >= " + arg(q.SeenFrom.UnixMilli())
	}
	if !q.SeenBefore.IsZero() {
		bounds += " AND first_seen < " + arg(q.SeenBefore.UnixMilli())
	}
	var parts []string
	if q.Conflicts {
		parts, states = []string{from + "INDEXED BY jobs_conflict WHERE conflicts > 0" + bounds}, nil
	}
	for _, state := range states {
		parts = append(parts, from+"INDEXED BY jobs_state WHERE work_state <> '' AND work_state = "+arg(state)+bounds)
	}
	query = fmt.Sprintf("%s ORDER BY 1 %s, 2 %[2]s%s", strings.Join(parts, " UNION ALL "), direction, limit)
	return query, args
}

// beginning is where a page by id begins, as a condition, and what comes after it. It is one bound alone: SQLite would begin at the
// first of two.
func beginning(prefix, after string) (bound, first string) {
	if after < prefix {
		return "job_id >= ", prefix
	}
	return "job_id > ", after
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

// The queries that count. They read indexes alone.
const (
	countStateQuery     = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_state WHERE work_state = ?1 AND work_state <> '' LIMIT ?2)"
	countConflictsQuery = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_conflict WHERE conflicts > 0 LIMIT ?1)"
	// countUnderQuery is given a prefix, and the first text behind all ids that begin with it.
	countUnderQuery = `SELECT work_state, count(*), sum(conflicts > 0) FROM (SELECT work_state, conflicts FROM jobs
		WHERE job_id >= ?1 AND job_id < ?2 ORDER BY job_id LIMIT ?3) GROUP BY work_state`
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
	var n int64
	for _, state := range job.EveryState {
		if err := s.readerDB.QueryRowContext(ctx, countStateQuery, state.String(), job.MaxCount+1).Scan(&n); err != nil {
			return c, err
		}
		c.States[state] = job.CountOf(n)
	}
	if err := s.readerDB.QueryRowContext(ctx, countConflictsQuery, job.MaxCount+1).Scan(&n); err != nil {
		return c, err
	}
	c.Conflicts = job.CountOf(n)
	return c, nil
}
