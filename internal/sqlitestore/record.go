package sqlitestore

import (
	"context"
	"errors"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// Record implements [job.Store] with one transaction. A full disk or an I/O error fails it as a whole. A refusal that is
// about one job is that job's alone: the transaction is then made once more, with a way back to before each delivery.
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(deliveries))
	err := s.record(ctx, deliveries, out, s.recordOne)
	if errors.Is(err, job.ErrRecordUnusable) && len(deliveries) > 1 {
		err = s.record(ctx, deliveries, out, s.recordApart)
	}
	if err != nil {
		for i := range out {
			out[i] = job.Outcome{Err: err}
		}
	}
	return out
}

// recordFunc writes one delivery within a transaction.
type recordFunc func(d *job.Delivery, now time.Time, out *job.Outcome) error

func (s *Store) record(ctx context.Context, deliveries []job.Delivery, out []job.Outcome, one recordFunc) error {
	return s.update(ctx, func(now time.Time) error {
		for i := range deliveries {
			if err := one(&deliveries[i], now, &out[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// recordApart is recordOne, but a refusal that is about the job is its outcome, and leaves nothing behind.
func (s *Store) recordApart(d *job.Delivery, now time.Time, out *job.Outcome) error {
	if _, err := s.write.mark.Exec(); err != nil {
		return err
	}
	before := len(s.changes)
	err := s.recordOne(d, now, out)
	if errors.Is(err, job.ErrRecordUnusable) {
		*out, s.changes = job.Outcome{Err: err}, s.changes[:before]
		_, err = s.write.backToMark.Exec()
	}
	if err != nil {
		return err
	}
	_, err = s.write.dropMark.Exec()
	return err
}

// smallBody is how long a body may be, in bytes, to stand in the job's own row: such a row fits on a page of the file with
// others.
const smallBody = 1500

// recordOne writes one delivery within a transaction. A first one, the usual case, is known without being read.
func (s *Store) recordOne(d *job.Delivery, now time.Time, out *job.Outcome) error {
	fresh := d.NewRecord(now)
	fresh.Work.Generation = s.beyondDeleted(&fresh.Work, now)
	seen := fresh.FirstSeen.UnixMilli()
	text, bytes := bodyColumns(fresh.Body)
	large := len(fresh.Body.Data) > smallBody
	args := append([]any{fresh.JobID, fresh.Event, fresh.Status, []byte(fresh.Fingerprint), fresh.RequestID, orNull(fresh.Caller), fresh.Source,
		orNull(fresh.ContentType), orNull(fresh.Traceparent), orNull(fresh.BodyOmitted), seen, seen, int64(fresh.Body.Kind), fresh.Work.Mode.String()}, workColumns(&fresh.Work)...)
	if large {
		args = append(args, nil, nil)
	} else {
		args = append(args, text, bytes)
	}
	r := row{Record: fresh, kind: fresh.Body.Kind}
	first, err := s.insert(&r, args)
	switch {
	case err != nil:
	case !first:
		r, err = scanRecord(s.write.count.QueryRow(seen, d.JobID), false)
	case large:
		_, err = s.write.addBody.Exec(r.id, text, bytes)
	}
	if err != nil {
		return ofJob(d.JobID, err)
	}
	r.Body = job.Body{}
	v, granted, err := s.decide(&r, d, now)
	if err != nil {
		return err
	}
	if c := v.Conflict; c != nil {
		if _, err := s.write.addConflict.Exec(int64(c.Kind), c.Event, c.Status, c.Time.UnixMilli(), r.id); err != nil {
			return ofJob(d.JobID, err)
		}
		r.Conflicts++
		r.LastConflict = c
	}
	*out = s.answer(&r, v, granted, now)
	return nil
}

// beyondDeleted is the generation that the work of a new record begins with: its own, unless the clock was set back to before a
// deletion, which may have been of this job.
func (s *Store) beyondDeleted(w *job.Work, now time.Time) int64 {
	switch {
	case s.deleted < now.UnixMilli() || w.State == job.StateUntracked:
		return w.Generation
	case w.State == job.StateLeased:
		return s.deleted + 1
	default:
		return s.deleted
	}
}

// decide decides a delivery on the record, and lets it claim the work, within a transaction. granted tells whether it was
// granted the lease by that.
func (s *Store) decide(r *row, d *job.Delivery, now time.Time) (v job.Verdict, granted bool, err error) {
	v = job.Decide(&r.Record, d, now)
	switch {
	case v.Claim && !job.Paused(s.pauses, d.JobID):
		if err := s.saveWork(r, r.Work.Claim(d.Grant(s.maxAttempts), now)); err != nil {
			return v, false, err
		}
		v = job.Decide(&r.Record, d, now)
		granted = v.Leased
	case v.Disposition == job.Reclaimed:
		if err := s.saveWork(r, r.Work.Retell()); err != nil {
			return v, false, err
		}
	}
	if v.Disposition == job.Reclaimed {
		return v, granted, s.readBody(r)
	}
	return v, granted, nil
}

// answer is the outcome of a delivery that was decided.
func (s *Store) answer(r *row, v job.Verdict, granted bool, now time.Time) job.Outcome {
	o := job.Answer(r.Record, v, now)
	if o.Lease != nil {
		*o.Lease = s.told(&o.Record.Work, now)
		if granted {
			o.Granted = o.Lease
		}
	}
	return o
}

// insert makes the row, unless the job has one.
func (s *Store) insert(r *row, args []any) (made bool, err error) {
	result, err := s.write.insert.Exec(args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 {
		return false, err
	}
	r.Deliveries = 1
	r.id, err = result.LastInsertId()
	return true, err
}
