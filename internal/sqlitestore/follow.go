package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// standingsQuery is given a JSON list of ids, and the time.
const standingsQuery = `SELECT job_id, work_state, work_generation, work_state IN ('queued', 'leased') AND work_due <= ?2 AND ` + unpaused + `
	FROM jobs WHERE job_id IN (SELECT value FROM json_each(?1))`

// Standings implements [job.Follower].
func (s *Store) Standings(ctx context.Context, jobIDs []string) (map[string]job.Standing, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	defer s.tell()
	found, err := s.standings(ctx, jobIDs)
	switch {
	case err == nil:
		return found, nil
	case s.closed.Load(): // meanwhile
		return nil, s.usable()
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err())
	}
	return nil, s.failed("read", err)
}

func (s *Store) standings(ctx context.Context, jobIDs []string) (map[string]job.Standing, error) {
	list, err := json.Marshal(jobIDs)
	if err != nil {
		return nil, err
	}
	rows, err := s.readerDB.QueryContext(ctx, standingsQuery, string(list), job.Millis(s.now()).UnixMilli())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]job.Standing, len(jobIDs))
	for rows.Next() {
		var id, state string
		var generation sql.NullInt64
		var free sql.NullBool
		if err := rows.Scan(&id, &state, &generation, &free); err != nil {
			return nil, err
		}
		found[id] = job.Standing{State: job.StateNamed(state), Generation: generation.Int64, Free: free.Bool}
	}
	return found, rows.Err()
}

// Resume implements [job.Follower]. It writes nothing unless there is work to claim.
func (s *Store) Resume(ctx context.Context, d job.Delivery) job.Outcome {
	now := job.Millis(s.now())
	r, err := s.Get(ctx, d.JobID, false)
	if err != nil {
		return job.Outcome{Err: err}
	}
	if v := job.Decide(&r, &d, now); !v.Claim && !v.Leased {
		return job.Answer(r, v, now)
	}
	var out job.Outcome
	err = s.update(ctx, func(now time.Time) error {
		r, err := scanRecord(s.write.record.QueryRow(d.JobID), false)
		if errors.Is(err, sql.ErrNoRows) {
			return job.ErrNotFound
		}
		if err != nil {
			return ofJob(d.JobID, err)
		}
		v, granted, err := s.decide(&r, &d, now)
		if err != nil {
			return err
		}
		out = s.answer(&r, v, granted, now)
		return nil
	})
	if err != nil {
		return job.Outcome{Err: err}
	}
	return out
}
