package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// Renew implements [job.Store].
func (s *Store) Renew(ctx context.Context, jobID, token string, d time.Duration) (job.Lease, error) {
	var now time.Time
	w, err := s.changeWork(ctx, jobID, token, func(w job.Work) (job.Work, error) {
		now = s.now()
		return w.Renew(token, d, now)
	})
	if err != nil {
		return job.Lease{}, err
	}
	return w.Lease(now), nil
}

// Complete implements [job.Store].
func (s *Store) Complete(ctx context.Context, jobID, token, result string) error {
	_, err := s.changeWork(ctx, jobID, token, func(w job.Work) (job.Work, error) { return w.Complete(token, result) })
	return err
}

// Release implements [job.Store].
func (s *Store) Release(ctx context.Context, jobID, token string, r job.Release) error {
	_, err := s.changeWork(ctx, jobID, token, func(w job.Work) (job.Work, error) { return w.Release(token, r, s.now()) })
	return err
}

// Unclaim implements [job.Store].
func (s *Store) Unclaim(ctx context.Context, claims []job.Claimed) error {
	var errs []error
	for _, c := range claims {
		if !c.Granted {
			continue
		}
		_, err := s.changeWork(ctx, c.Record.JobID, c.Lease.Token, func(w job.Work) (job.Work, error) {
			next, err := w.Unclaim(c.Lease.Token, c.Lease.Expires, s.now())
			if errors.Is(err, job.ErrLeaseLost) {
				return w, nil // it is gone already, maybe by an earlier try of ours
			}
			return next, err
		})
		if !errors.Is(err, job.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// changeWork changes the work of a job that a token holds: it reads, decides, and writes provided that nobody has written
// since. Whatever may or may not have been applied is found out by reading again: the change made by this token is then
// seen to be done, and change leaves it as it is.
func (s *Store) changeWork(ctx context.Context, jobID, token string, change func(job.Work) (job.Work, error)) (job.Work, error) {
	done, err := s.enter()
	if err != nil {
		return job.Work{}, err
	}
	defer done()
	if err := ctx.Err(); err != nil {
		return job.Work{}, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	ctx, endSession := s.session(ctx)
	defer endSession()
	unknown := false
	pause := newPause()
	for try := 1; ; try++ {
		r, f, err := s.tryRead(ctx, jobID, false)
		if errors.Is(err, job.ErrNotFound) {
			return job.Work{}, err
		}
		if err == nil {
			next, cerr := change(r.Work)
			if cerr != nil && unknown {
				// Our earlier try may have been applied, and somebody taken the work up since.
				return next, ended(ctx, fateUnknown, cerr)
			}
			if cerr != nil || next == r.Work {
				return next, cerr
			}
			if f, err = s.swap(ctx, &r, &next); err == nil {
				return next, nil
			}
			unknown = unknown || f == fateUnknown
		}
		if f == fateUnsent || f == fateRefused || try == maxTries || !sleep(ctx, pause.NextBackOff()) {
			if unknown {
				f = fateUnknown
			}
			return job.Work{}, ended(ctx, f, err)
		}
	}
}

var (
	// errChanged: somebody else changed the work since it was read.
	errChanged = errors.New("the work was changed meanwhile")
	// errClaimOpen: a claim was sent, and reading did not show what became of it.
	errClaimOpen = errors.New("a claim of the work may yet be applied")
)

// swap puts r's work into the state next, provided that it is still as read. The fate is that of an error.
func (s *Store) swap(ctx context.Context, r *job.Record, next *job.Work) (fate, error) {
	tracked, sent := track(ctx)
	result, err := s.coll.UpdateOne(tracked, asRead(r), setWork(next))
	if err != nil {
		f := writeFate(err, sent)
		s.log.Warn("a change of a job's work failed", "store", s.String(), "job_id", r.JobID, "error", s.explain(err))
		return f, err
	}
	if result.MatchedCount == 0 {
		return fateRetry, errChanged
	}
	return 0, nil
}

// reclaim puts free work under the delivery's lease, unless somebody else changes it first. It returns the record as it
// stands afterwards, with its body; deciding again on that record says who won. With fateUnknown the claim may be applied
// later still.
func (s *Store) reclaim(ctx context.Context, r job.Record, d *job.Delivery) (job.Record, fate, error) {
	next := r.Work.Claim(d.Grant(s.opts.MaxAttempts), s.now())
	f, err := s.swap(ctx, &r, &next)
	switch {
	case err != nil && f == fateUnsent:
		return r, f, ended(ctx, fateUnknown, err) // of the delivery itself more was sent
	case err != nil && f == fateRefused:
		return r, f, ended(ctx, f, err)
	}
	// Matched, lost or unknown: the record tells, and our request id in it is our own success.
	pause := newPause()
	for try := 1; ; try++ {
		now, rerr := s.readOne(ctx, r.JobID, true)
		if rerr == nil {
			return now, f, nil
		}
		if errors.Is(rerr, job.ErrNotFound) || try == maxTries || !sleep(ctx, pause.NextBackOff()) {
			return r, f, ended(ctx, fateUnknown, rerr)
		}
	}
}

// ended is the error of a change that was given up. One that was neither refused nor may have been applied was not sent,
// or certainly not applied.
func ended(ctx context.Context, f fate, cause error) error {
	var err error
	switch f {
	case fateUnknown:
		err = fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, cause)
	case fateRefused:
		err = fmt.Errorf("the database refuses the change: %v", cause)
	default:
		err = fmt.Errorf("%w: %v", job.ErrUnavailable, cause)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// readOne reads one record.
func (s *Store) readOne(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	r, _, err := s.tryRead(ctx, jobID, withBody)
	return r, err
}

// tryRead is readOne; the fate of an error says whether trying again may help.
func (s *Store) tryRead(ctx context.Context, jobID string, withBody bool) (job.Record, fate, error) {
	opts := options.FindOne()
	if !withBody {
		opts.SetProjection(withoutBody)
	}
	tracked, sent := track(ctx)
	doc, err := s.coll.FindOne(tracked, filter(jobID), opts).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return job.Record{}, fateRefused, job.ErrNotFound
	}
	if err != nil {
		s.log.Warn("a read failed", "store", s.String(), "error", s.explain(err))
		return job.Record{}, readFate(err, sent), readError(ctx, err)
	}
	r, err := decode(doc, withBody)
	return r, fateRetry, err
}

// newPause is how long to wait between tries: short at first, since most are about writers that collide.
func newPause() *backoff.ExponentialBackOff {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 2*time.Millisecond, 500*time.Millisecond, 1.7
	return pause
}

// dueFilter matches work that may be claimed. Only work that waits or is under way has the field.
func dueFilter(now time.Time, events []string) bson.D {
	// That the field exists follows from the comparison, but DocumentDB takes the partial index only when it is said.
	f := bson.D{{Key: inWork(workDue), Value: bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: now}}}}
	if len(events) > 0 {
		f = append(f, bson.E{Key: fieldEvent, Value: bson.D{{Key: "$in", Value: events}}})
	}
	return f
}
