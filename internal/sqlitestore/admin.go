package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// Requeue implements [job.Store].
func (s *Store) Requeue(ctx context.Context, q job.Requeue) (out job.Record, changed bool, err error) {
	err = s.update(ctx, func(now time.Time) error {
		r, err := s.recordOf(q.JobID)
		if err != nil {
			return err
		}
		next, err := r.Record.Requeue(&q, now)
		if err != nil {
			return err
		}
		if changed = next != r.Work; changed {
			err = s.saveWork(&r, next)
		}
		out = r.Record
		return err
	})
	if err != nil {
		return job.Record{}, false, err
	}
	return out, changed, nil
}

// recordOf reads a record within a transaction, without its body.
func (s *Store) recordOf(jobID string) (row, error) {
	r, err := scanRecord(s.write.record.QueryRow(jobID), false)
	if errors.Is(err, sql.ErrNoRows) {
		return r, job.ErrNotFound
	}
	return r, ofJob(jobID, err)
}

// Delete implements [job.Store]. All deletions are in one transaction. What somebody asks for, and age does not, is overwritten
// in the file too.
func (s *Store) Delete(ctx context.Context, ds []job.Deletion) []job.DeleteOutcome {
	out := make([]job.DeleteOutcome, len(ds))
	asked := slices.ContainsFunc(ds, func(d job.Deletion) bool { return d.ActiveBefore.IsZero() })
	err := s.update(ctx, func(now time.Time) (err error) {
		if asked {
			if err := s.overwrite("ON"); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.overwrite("OFF")) }()
		}
		for i := range ds {
			deleted, err := s.delete(&ds[i], now)
			if err != nil && !answer(err) {
				return err
			}
			out[i] = job.DeleteOutcome{Deleted: deleted, Err: err}
		}
		return nil
	})
	if err != nil {
		for i := range out {
			out[i] = job.DeleteOutcome{Err: err}
		}
	}
	return out
}

// overwrite says whether SQLite is to overwrite what it deletes.
func (s *Store) overwrite(onOff string) error {
	_, err := s.writer.ExecContext(context.Background(), "PRAGMA secure_delete = "+onOff)
	return err
}

// delete makes one deletion, within a transaction.
func (s *Store) delete(d *job.Deletion, now time.Time) (deleted bool, err error) {
	r, err := s.recordOf(d.JobID)
	if errors.Is(err, job.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	next, gone, err := r.Record.Delete(d, now)
	switch {
	case err != nil:
		return false, err
	case gone:
		for _, step := range []*sql.Stmt{s.write.dropExpectation, s.write.remove} { // the trigger removes a large body
			if _, err := step.Exec(d.JobID); err != nil {
				return false, ofJob(d.JobID, err)
			}
		}
		s.deleted = max(s.deleted, r.Work.Generation)
		return true, nil
	case next == r.Record:
		return false, nil
	}
	if next.Work != r.Work {
		if err := s.saveWork(&r, next.Work); err != nil {
			return false, err
		}
	}
	if next.LastConflict == nil && r.LastConflict != nil {
		if _, err := s.write.dropConflict.Exec(r.id); err != nil {
			return false, ofJob(d.JobID, err)
		}
	}
	if !next.BodyDropped.Equal(r.BodyDropped) {
		for _, step := range []struct {
			stmt *sql.Stmt
			args []any
		}{{s.write.dropBody, []any{next.BodyDropped.UnixMilli(), r.id}}, {s.write.dropLargeBody, []any{r.id}}} {
			if _, err := step.stmt.Exec(step.args...); err != nil {
				return false, ofJob(d.JobID, err)
			}
		}
	}
	return true, nil
}

// readPauses reads the pauses on a connection.
func readPauses(ctx context.Context, db querier) (pauses []job.Pause, err error) {
	rows, err := db.QueryContext(ctx, "SELECT prefix, since, reason FROM claim_pauses ORDER BY prefix")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var p job.Pause
		var since int64
		if err := rows.Scan(&p.Prefix, &since, &p.Reason); err != nil {
			return nil, err
		}
		p.Since = fromMillis(since)
		pauses = append(pauses, p)
	}
	return pauses, rows.Err()
}

// Pause implements [job.Store].
func (s *Store) Pause(ctx context.Context, prefix, reason string) (kept job.Pause, err error) {
	err = s.changePauses(ctx, func(before []job.Pause, now time.Time) error {
		for _, kept = range before {
			if kept.Prefix == prefix {
				return nil
			}
		}
		if len(before) >= job.MaxPauses {
			return job.ErrTooManyPauses
		}
		kept = job.Pause{Prefix: prefix, Since: job.Millis(now), Reason: reason}
		_, err := s.writer.ExecContext(context.Background(), "INSERT INTO claim_pauses (prefix, since, reason) VALUES (?, ?, ?)",
			kept.Prefix, kept.Since.UnixMilli(), kept.Reason)
		return err
	})
	return kept, err
}

// Unpause implements [job.Store].
func (s *Store) Unpause(ctx context.Context, prefix string) (was bool, err error) {
	err = s.changePauses(ctx, func([]job.Pause, time.Time) error {
		result, err := s.writer.ExecContext(context.Background(), "DELETE FROM claim_pauses WHERE prefix = ?", prefix)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		was = n > 0
		return err
	})
	return was, err
}

// changePauses changes the pauses, and has claims heed what came of it from the next transaction on.
func (s *Store) changePauses(ctx context.Context, change func(before []job.Pause, now time.Time) error) error {
	return s.update(ctx, func(now time.Time) error {
		before, err := readPauses(context.Background(), s.writer)
		if err != nil {
			return err
		}
		if err := change(before, now); err != nil {
			return err
		}
		after, err := readPauses(context.Background(), s.writer)
		if err != nil {
			return err
		}
		s.newPauses = &after
		return nil
	})
}

// Pauses implements [job.Store].
func (s *Store) Pauses(ctx context.Context) (pauses []job.Pause, err error) {
	err = s.look(ctx, func() error {
		pauses, err = readPauses(ctx, s.readerDB)
		return err
	})
	return pauses, err
}
