package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// Renew implements [job.Store].
func (s *Store) Renew(ctx context.Context, jobID, token string, d time.Duration) (job.Lease, error) {
	c := leaseChange{jobID: jobID, token: token, renews: true, change: func(w job.Work) (job.Work, error) {
		return w.Renew(token, d, s.now())
	}}
	c.done = func(w job.Work) bool { return w.Holds(token) && !w.Due.Before(c.next.Due) }
	w, err := s.changeLease(ctx, &c)
	if err != nil {
		return job.Lease{}, err
	}
	w.Due = c.next.Due // it may run longer by now, by what another call was told
	return w.Lease(s.latest()), nil
}

// Complete implements [job.Store].
func (s *Store) Complete(ctx context.Context, jobID, token, result string) error {
	return s.end(ctx, jobID, token, func(w job.Work) (job.Work, error) { return w.Complete(token, result) })
}

// Release implements [job.Store].
func (s *Store) Release(ctx context.Context, jobID, token string, r job.Release) error {
	return s.end(ctx, jobID, token, func(w job.Work) (job.Work, error) { return w.Release(token, r, s.now()) })
}

// end ends a lease. The work that the token has ended already is left as it is by the change.
func (s *Store) end(ctx context.Context, jobID, token string, change func(job.Work) (job.Work, error)) error {
	_, err := s.changeLease(ctx, &leaseChange{jobID: jobID, token: token, change: change, done: func(w job.Work) bool {
		next, err := change(w)
		return err == nil && next == w
	}})
	return err
}

// leaseChange is a change of work by the holder of its lease.
type leaseChange struct {
	jobID, token string
	// change is what becomes of the work.
	change func(job.Work) (job.Work, error)
	// done tells of work as it was read whether the change was made.
	done func(job.Work) bool
	// renews: the lease goes on. It needs the clock, and is read for the answer.
	renews bool
	// next is the work as it would be changed, in the fields that change.
	next job.Work
}

// running is work under a lease. Every field that the end of a lease changes has a value here that it cannot become, so
// that the difference to what the work becomes is the whole change.
func running(token string) job.Work {
	const not = "\xff" // not UTF-8
	return job.Work{
		State: job.StateLeased, Mode: job.ModeLeased, Due: time.UnixMilli(1), Granted: -time.Millisecond, Token: token, Lapses: 1,
		RequestID: not, ClaimID: not, Error: not, Result: not,
	}
}

// changeLease makes a change whose only condition is that the token holds the lease, so that nothing has to be read before.
// Where the write may have been applied, or matched nothing, reading may tell that the change by this token was made. That
// it was not is concluded from an acknowledged write alone, and then confirmed: a primary that was deposed, and does not
// know it, also says that nothing matches.
func (s *Store) changeLease(ctx context.Context, c *leaseChange) (job.Work, error) {
	done, err := s.enter()
	if err != nil {
		return job.Work{}, err
	}
	defer done()
	if err := ctx.Err(); err != nil {
		return job.Work{}, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	if c.renews {
		if err := s.timed(ctx); err != nil {
			return job.Work{}, err
		}
	}
	held := running(c.token)
	if c.next, err = c.change(held); err != nil { // an empty token holds nothing
		if _, f := s.confirm(ctx, c.jobID, false); f != nil && f.negative() {
			err = f.cause
		}
		return job.Work{}, err
	}
	update := workChange(&held, &c.next)
	within, endSession := s.session(ctx)
	defer endSession()
	doubt := false // what was to be confirmed could not be
	for t := s.newTries(ctx); ; {
		matched, f := s.writeLease(within, c, update)
		if f == nil && matched && !c.renews {
			s.opts.Watch.Tell(c.jobID, &held, &c.next)
			return c.next, nil
		}
		if f == nil || !f.hopeless() {
			w, seen := c.judge(s.read(within, c.jobID, false))
			if seen != nil && seen.negative() && f == nil {
				if w, seen = c.judge(s.confirm(ctx, c.jobID, false)); seen != nil && seen.negative() && !t.unknown {
					return job.Work{}, seen.cause
				}
				doubt = seen != nil && !errors.Is(seen, errChanged)
			}
			if seen == nil {
				return w, nil
			}
			if f == nil {
				f, t.unknown = seen, t.unknown || matched
			}
		}
		if !t.again(f) {
			t.unknown = t.unknown || doubt
			return job.Work{}, t.err()
		}
	}
}

// writeLease sends the change. It tells whether the token held the lease.
func (s *Store) writeLease(ctx context.Context, c *leaseChange, update bson.D) (matched bool, _ *failure) {
	tracked, sent := track(ctx)
	result, err := s.coll.UpdateOne(tracked, bson.D{
		{Key: fieldJobID, Value: c.jobID},
		{Key: inWork(workState), Value: job.StateLeased.String()},
		{Key: inWork(workToken), Value: c.token},
	}, update)
	if err != nil {
		f := writeFailed(err, sent)
		s.log.Warn("a change of a job's work failed", "store", s.String(), "job_id", c.jobID, "error", s.explain(f))
		return false, f
	}
	return result.MatchedCount > 0, nil
}

// judge tells of a record as it was read whether the change was made. The failure is negative when neither that is so nor
// the token holds the lease.
func (c *leaseChange) judge(r stored, f *failure) (job.Work, *failure) {
	switch {
	case f != nil:
		return job.Work{}, f
	case c.done(r.Work):
		return r.Work, nil
	case r.Work.Holds(c.token):
		return job.Work{}, &failure{fateRetry, errChanged}
	}
	return job.Work{}, &failure{fateRefused, job.ErrLeaseLost}
}

// negative tells whether the failure is an answer: that there is no such job, or that the lease is lost.
func (f *failure) negative() bool {
	return errors.Is(f, job.ErrNotFound) || errors.Is(f, job.ErrLeaseLost)
}

// Unclaim implements [job.Store].
func (s *Store) Unclaim(ctx context.Context, claims []job.Claimed) error {
	done, err := s.enter()
	if err != nil {
		return err
	}
	defer done()
	for i := range claims {
		if c := &claims[i]; c.Granted {
			err = errors.Join(err, s.unclaim(ctx, c))
		}
	}
	return err
}

func (s *Store) unclaim(ctx context.Context, c *job.Claimed) error {
	held := running(c.Lease.Token)
	held.Due = c.Lease.Expires
	next, err := held.Unclaim(c.Lease.Token, c.Lease.Expires, s.now())
	if err != nil {
		return nil // an empty token holds nothing
	}
	next.Attempts = held.Attempts
	update := append(workChange(&held, &next), bson.E{Key: "$inc", Value: bson.D{{Key: inWork(workAttempts), Value: int32(-1)}}})
	for t := s.newTries(ctx); ; {
		tracked, sent := track(ctx)
		result, err := s.coll.UpdateOne(tracked, bson.D{
			{Key: fieldJobID, Value: c.Record.JobID},
			{Key: inWork(workState), Value: job.StateLeased.String()},
			{Key: inWork(workToken), Value: c.Lease.Token},
			{Key: inWork(workDue), Value: c.Lease.Expires},
		}, update)
		var f *failure
		switch {
		case err != nil:
			f = writeFailed(err, sent)
		case result.MatchedCount > 0:
			return nil
		default:
			// One that another call was told of since is due later; one that is gone, maybe by an earlier try, is not held.
			r, rf := s.read(ctx, c.Record.JobID, false)
			if f = rf; f == nil && (!r.Work.Holds(c.Lease.Token) || !r.Work.Due.Equal(c.Lease.Expires)) || f != nil && f.negative() {
				return nil
			} else if f == nil {
				f = &failure{fateRetry, errChanged}
			}
		}
		if !t.again(f) {
			return t.err()
		}
	}
}
