package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// Claim implements [job.Store].
func (s *Store) Claim(ctx context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	var claimed []job.Claimed
	err := s.update(ctx, func(now time.Time) error {
		claimed = nil
		held, err := s.rows(s.write.ofClaimCall, req.Max+1, nil, req.RequestID, now.UnixMilli(), req.Prefix, req.Caller)
		if err != nil {
			return err
		}
		bytes := 0
		for i := range held {
			r := &held[i]
			err := s.readBody(r)
			if errors.Is(err, job.ErrRecordUnusable) {
				s.leaveAlone(r.JobID, err)
				continue
			}
			if err != nil {
				return err
			}
			if bytes += len(r.Body.Data); len(claimed) == req.Max || len(claimed) > 0 && bytes > req.MaxBytes {
				break
			}
			if err := s.saveWork(r, r.Work.Retell()); err != nil {
				return err
			}
			claimed = append(claimed, job.Claimed{Record: r.Record, Lease: s.told(&r.Work, now)})
		}
		if len(claimed) > 0 {
			return nil
		}
		claimed, err = s.claimDue(req, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	return claimed, nil
}

// LongestDue implements [job.Worker].
func (s *Store) LongestDue(ctx context.Context) (jobID string, since time.Duration, err error) {
	if err := s.usable(); err != nil {
		return "", 0, err
	}
	defer s.tell()
	s.mu.Lock()
	alone, pauses, passed := maps.Clone(s.leftAlone), s.pauses, s.passed
	s.mu.Unlock()
	if job.PausedAll(pauses) {
		return "", 0, nil
	}
	jobID, since, err = s.longestDue(ctx, job.Millis(s.now()), alone, passed)
	switch {
	case err == nil:
		return jobID, since, nil
	case s.closed.Load(): // meanwhile
		return "", 0, s.usable()
	case ctx.Err() != nil:
		return "", 0, fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err())
	}
	return "", 0, s.failed("read", err)
}

func (s *Store) longestDue(ctx context.Context, now time.Time, without map[string]bool, passed int64) (jobID string, since time.Duration, err error) {
	rows, err := s.readerDB.QueryContext(ctx, passing(longestDueQuery, 3), now.UnixMilli(), len(without)+1, passed)
	if err != nil {
		return "", 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var due int64
		if err := rows.Scan(&jobID, &due); err != nil {
			return "", 0, err
		}
		if !without[jobID] {
			return jobID, now.Sub(fromMillis(due)), nil
		}
	}
	return "", 0, rows.Err()
}

// claimDue claims what is due. Jobs that turn out dead, or cannot be used, make room for others, so it looks again while it
// finds any.
func (s *Store) claimDue(req job.ClaimRequest, now time.Time) ([]job.Claimed, error) {
	var events any
	if len(req.Events) > 0 {
		list, err := json.Marshal(req.Events)
		if err != nil {
			return nil, err
		}
		events = string(list)
	}
	query, under := s.write.due, []any(nil)
	if req.Prefix != "" {
		query, under = s.write.dueUnder, []any{job.Group(req.Prefix), req.Prefix}
	}
	var claimed []job.Claimed
	bytes, unfit := 0, make(map[int64]bool)
	for more := true; more && len(claimed) < req.Max; {
		more = false
		due, err := s.due(query, req.Max-len(claimed), unfit, append([]any{now.UnixMilli(), events}, under...)...)
		if err != nil {
			return nil, err
		}
		for i := range due {
			r := &due[i]
			err := s.readBody(r)
			if len(claimed) > 0 && bytes+len(r.Body.Data) > req.MaxBytes {
				return claimed, nil
			}
			if err == nil {
				err = s.saveWork(r, r.Work.Claim(job.Grant{Token: job.NewToken(), Duration: req.Lease, ClaimID: req.RequestID, Caller: req.Caller,
					MaxAttempts: s.maxAttempts}, now))
			}
			switch {
			case errors.Is(err, job.ErrRecordUnusable):
				s.leaveAlone(r.JobID, err)
				unfit[r.id], more = true, true
			case err != nil:
				return nil, err
			case r.Work.State == job.StateDead:
				more = true
			default:
				bytes += len(r.Body.Data)
				claimed = append(claimed, job.Claimed{Record: r.Record, Lease: s.told(&r.Work, now), Granted: true})
			}
		}
	}
	return claimed, nil
}

// due reads what a query finds due that is not paused. What was found paused in front of it is not looked at again until the pauses change:
// whatever becomes due later is due at a later time.
func (s *Store) due(query *sql.Stmt, most int, without map[int64]bool, args ...any) ([]row, error) {
	switch {
	case len(s.pauses) == 0:
		return s.rows(query, most, without, args...)
	case job.PausedAll(s.pauses):
		return nil, nil
	}
	query, all := s.write.dueUnderPassing, false
	if len(args) == 2 {
		query, all = s.write.duePassing, args[1] == nil && len(without) == 0
	}
	due, err := s.rows(query, most, without, append(args, s.passed)...)
	if err == nil && all {
		if s.passed = args[0].(int64); len(due) > 0 {
			s.passed = due[0].Work.Due.UnixMilli()
		}
	}
	return due, err
}

// Unclaim implements [job.Store].
func (s *Store) Unclaim(ctx context.Context, claims []job.Claimed) error {
	return s.update(ctx, func(now time.Time) error {
		for _, c := range claims {
			if !c.Granted {
				continue
			}
			err := s.changeWork(c.Record.JobID, func(w job.Work) (job.Work, error) { return w.Unclaim(c.Lease.Token, c.Lease.Expires, now) })
			if err != nil && !errors.Is(err, job.ErrLeaseLost) && !errors.Is(err, job.ErrNotFound) {
				return err
			}
		}
		return nil
	})
}

// ChangeLeases implements [job.Store]. All changes are in one transaction.
func (s *Store) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	out := make([]job.LeaseOutcome, len(changes))
	err := s.update(ctx, func(now time.Time) error {
		for i := range changes {
			out[i] = job.LeaseOutcome{}
			err := s.changeLease(&changes[i], now, &out[i].Lease)
			if err != nil && !answer(err) {
				return err
			}
			out[i].Err = err
		}
		return nil
	})
	if err != nil {
		for i := range out {
			out[i] = job.LeaseOutcome{Err: err}
		}
	}
	return out
}

// changeLease makes one change, within a transaction. A completion is tried as [job.Work.Complete] makes it of a lease that
// holds, without reading it first.
func (s *Store) changeLease(c *job.LeaseChange, now time.Time, renewed *job.Lease) error {
	if c.Kind == job.Completion && c.Token != "" {
		result, err := s.write.complete.Exec(orNull(c.Result), c.JobID, c.Token)
		if err != nil {
			return ofJob(c.JobID, err)
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
	}
	return s.changeWork(c.JobID, func(w job.Work) (job.Work, error) {
		w, err := w.Change(*c, now)
		if c.Kind == job.Renewal && err == nil {
			*renewed = s.told(&w, now)
		}
		return w, err
	})
}

// changeWork changes the work of one job, within a transaction.
func (s *Store) changeWork(jobID string, change func(job.Work) (job.Work, error)) error {
	r, columns := row{Record: job.Record{JobID: jobID}}, scannedWork{}
	err := s.write.workOf.QueryRow(jobID).Scan(append([]any{&r.id}, columns.into()...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return job.ErrNotFound
	}
	if err != nil {
		return ofJob(jobID, err)
	}
	r.Work = columns.work()
	next, err := change(r.Work)
	if err != nil || next == r.Work {
		return err
	}
	return s.saveWork(&r, next)
}

// change is a change of work that is to be told of once it is committed.
type change struct {
	jobID         string
	before, after job.Work
}

// saveWork changes the work of a row, and notes what is to be told of it once that is committed.
func (s *Store) saveWork(r *row, next job.Work) error {
	before := r.Work
	r.Work = next
	if _, err := s.write.saveWork.Exec(append(workColumns(&next), r.id)...); err != nil {
		return ofJob(r.JobID, err)
	}
	s.changes = append(s.changes, change{r.JobID, before, next})
	return nil
}

// readBody reads the row's body into it, unless that was read with it.
func (s *Store) readBody(r *row) error {
	if r.kind == job.BodyNone || !r.BodyDropped.IsZero() {
		return nil
	}
	if r.read {
		return r.lostBody()
	}
	var text sql.NullString
	var bytes []byte
	if err := s.write.body.QueryRow(r.id).Scan(&text, &bytes); err != nil {
		return ofJob(r.JobID, err)
	}
	r.setBody(text, bytes)
	return r.lostBody()
}

// rows reads the first rows of a query for records, with the bodies that stand in them: at most most of them and none of
// those in without. It leaves those alone that hold what we never write. It is done with the query before it returns: there
// is one connection.
func (s *Store) rows(stmt *sql.Stmt, most int, without map[int64]bool, args ...any) (out []row, err error) {
	rows, err := stmt.Query(args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for len(out) < most && rows.Next() {
		r, err := scanRecord(rows, true)
		err = ofJob(r.JobID, err)
		switch {
		case errors.Is(err, job.ErrRecordUnusable):
			s.leaveAlone(r.JobID, err)
		case err != nil:
			return nil, err
		case !without[r.id]:
			out = append(out, r)
		}
	}
	return out, rows.Err()
}

// leaveAlone says, once for each job, that it cannot be claimed until somebody mends its record.
func (s *Store) leaveAlone(jobID string, err error) {
	if s.leftAlone[jobID] || len(s.leftAlone) >= maxUnclaimable {
		return
	}
	s.leftAlone[jobID] = true
	s.note(slog.LevelError, "embedded store: a job cannot be used, and is never claimed", "file", s.path, "error", err)
}
