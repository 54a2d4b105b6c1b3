package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// Claim implements [job.Store].
func (s *Store) Claim(ctx context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	var claimed []job.Claimed
	err := s.update(ctx, func(now time.Time) error {
		claimed = nil
		held, err := s.rows(s.write.ofClaimCall, req.RequestID, now.UnixMilli())
		if err != nil {
			return err
		}
		bytes := 0
		for i := range held {
			r := &held[i]
			if err := s.readBody(r); err != nil {
				return err
			}
			if bytes += len(r.Body.Data); i == req.Max || i > 0 && bytes > req.MaxBytes {
				break
			}
			r.Work = r.Work.Retell()
			if err := s.saveWork(r); err != nil {
				return err
			}
			claimed = append(claimed, job.Claimed{Record: r.Record, Lease: r.Work.Lease(now)})
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

// claimDue claims what is due. Jobs that turn out dead make room for others, so it looks again while it finds any.
func (s *Store) claimDue(req job.ClaimRequest, now time.Time) ([]job.Claimed, error) {
	var events any
	if len(req.Events) > 0 {
		list, err := json.Marshal(req.Events)
		if err != nil {
			return nil, err
		}
		events = string(list)
	}
	var claimed []job.Claimed
	bytes := 0
	for len(claimed) < req.Max {
		due, err := s.rows(s.write.due, now.UnixMilli(), events, req.Max-len(claimed))
		if err != nil {
			return nil, err
		}
		dead := 0
		for i := range due {
			r := &due[i]
			if err := s.readBody(r); err != nil {
				return nil, err
			}
			if len(claimed) > 0 && bytes+len(r.Body.Data) > req.MaxBytes {
				return claimed, nil
			}
			r.Work = r.Work.Claim(job.Grant{Token: job.NewToken(), Duration: req.Lease, ClaimID: req.RequestID,
				MaxAttempts: s.maxAttempts}, now)
			if err := s.saveWork(r); err != nil {
				return nil, err
			}
			if r.Work.State == job.StateDead {
				dead++
				continue
			}
			bytes += len(r.Body.Data)
			claimed = append(claimed, job.Claimed{Record: r.Record, Lease: r.Work.Lease(now), Granted: true})
		}
		if dead == 0 {
			break
		}
	}
	return claimed, nil
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

// Renew implements [job.Store].
func (s *Store) Renew(ctx context.Context, jobID, token string, d time.Duration) (lease job.Lease, err error) {
	err = s.update(ctx, func(now time.Time) error {
		return s.changeWork(jobID, func(w job.Work) (job.Work, error) {
			w, err := w.Renew(token, d, now)
			lease = w.Lease(now)
			return w, err
		})
	})
	if err != nil {
		return job.Lease{}, err
	}
	return lease, nil
}

// Complete implements [job.Store].
func (s *Store) Complete(ctx context.Context, jobID, token, result string) error {
	return s.update(ctx, func(time.Time) error {
		return s.changeWork(jobID, func(w job.Work) (job.Work, error) { return w.Complete(token, result) })
	})
}

// Release implements [job.Store].
func (s *Store) Release(ctx context.Context, jobID, token string, r job.Release) error {
	return s.update(ctx, func(now time.Time) error {
		return s.changeWork(jobID, func(w job.Work) (job.Work, error) { return w.Release(token, r, now) })
	})
}

// changeWork changes the work of one job, within a transaction.
func (s *Store) changeWork(jobID string, change func(job.Work) (job.Work, error)) error {
	r, err := scanRecord(s.write.byID.QueryRow(jobID), false)
	if errors.Is(err, sql.ErrNoRows) {
		return job.ErrNotFound
	}
	if err != nil {
		return err
	}
	before := r.Work
	if r.Work, err = change(r.Work); err != nil || r.Work == before {
		return err
	}
	return s.saveWork(&r)
}

func (s *Store) saveWork(r *row) error {
	_, err := s.write.saveWork.Exec(append(workColumns(&r.Work), r.id)...)
	return err
}

// readBody reads the row's body into it.
func (s *Store) readBody(r *row) error {
	if r.kind == job.BodyNone || !r.PayloadDropped.IsZero() {
		return nil
	}
	var text sql.NullString
	var bytes []byte
	if err := s.write.body.QueryRow(r.id).Scan(&text, &bytes); err != nil {
		return err
	}
	r.setBody(text, bytes)
	return nil
}

// rows reads all rows of a query for records. It is done with the query before it returns: there is one connection.
func (s *Store) rows(stmt *sql.Stmt, args ...any) (out []row, err error) {
	rows, err := stmt.Query(args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		r, err := scanRecord(rows, false)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
