package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// ChangeLeases implements [job.Store].
func (s *Store) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	out := make([]job.LeaseOutcome, len(changes))
	for i := range changes {
		out[i] = s.changeOne(ctx, &changes[i])
	}
	return out
}

// ChangeEach implements [job.EachChanger].
func (s *Store) ChangeEach(ctx context.Context, changes []job.LeaseChange, settle func(int, job.LeaseOutcome)) {
	var all sync.WaitGroup
	for i := range changes {
		all.Go(func() { settle(i, s.changeOne(ctx, &changes[i])) })
	}
	all.Wait()
}

func (s *Store) changeOne(ctx context.Context, c *job.LeaseChange) (o job.LeaseOutcome) {
	if c.Kind == job.Renewal {
		o.Lease, o.Err = s.renew(ctx, c.JobID, c.Token, c.Duration)
	} else {
		o.Err = s.end(ctx, c.JobID, c.Token, func(w job.Work) (job.Work, error) { return w.Change(*c, s.now()) })
	}
	return o
}

func (s *Store) renew(ctx context.Context, jobID, token string, d time.Duration) (job.Lease, error) {
	c := &leaseChange{jobID: jobID, token: token}
	due := time.Time{}
	c.write = func(ctx context.Context) (*job.Work, *failure) {
		now, err := s.grantTime(ctx)
		if err != nil {
			return nil, &failure{fateUnsent, err}
		}
		due = job.Millis(now.Add(d))
		return s.writeRenewal(ctx, jobID, token, due, d)
	}
	c.done = func(w job.Work) bool { return w.Holds(token) && !w.Due.Before(due) }
	w, err := s.changeLease(ctx, c)
	if err != nil {
		return job.Lease{}, err
	}
	w = s.told(w)
	return w.Lease(s.latest()), nil
}

// writeRenewal sends a renewal, and gives the work as it is then, or nil where the token holds no lease. It never makes the
// lease shorter: one that lands late must not take back what the caller of a later one was told.
func (s *Store) writeRenewal(ctx context.Context, jobID, token string, due time.Time, d time.Duration) (*job.Work, *failure) {
	tracked, sent := track(ctx)
	max := func(field string, ours any) bson.E { // of absent values that of the other
		return bson.E{Key: inWork(field), Value: bson.D{{Key: "$max", Value: bson.A{"$" + inWork(field), ours}}}}
	}
	granted := bson.E{Key: inWork(workGranted), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + inWork(workGranted), job.MaxLease.Milliseconds()}}}}
	doc, err := s.coll.FindOneAndUpdate(tracked, heldWith(jobID, token), mongo.Pipeline{
		{{Key: "$set", Value: bson.D{granted}}},
		{{Key: "$set", Value: bson.D{max(workDue, due), max(workGranted, d.Milliseconds())}}},
	}, options.FindOneAndUpdate().SetReturnDocument(options.After).
		SetProjection(bson.D{{Key: fieldJobID, Value: 1}, {Key: fieldWork, Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		f := writeFailed(err, sent)
		var ce mongo.CommandError
		if sent.sent == 1 && errors.As(err, &ce) && lostRace(int(ce.Code)) {
			f.fate = fateRetry
		}
		s.log.Warn("a lease could not be renewed", "store", s.String(), "job_id", jobID, "error", s.explain(f))
		return nil, f
	}
	r, err := decode(doc, false)
	if err != nil {
		return nil, &failure{fateUnknown, err}
	}
	return &r.Work, nil
}

// end ends a lease. The work that the token has ended already is left as it is by the change.
func (s *Store) end(ctx context.Context, jobID, token string, change func(job.Work) (job.Work, error)) error {
	c := &leaseChange{jobID: jobID, token: token}
	c.write = func(ctx context.Context) (*job.Work, *failure) { return s.writeEnd(ctx, jobID, token, change) }
	c.done = func(w job.Work) bool {
		next, err := change(w)
		return err == nil && next == w
	}
	_, err := s.changeLease(ctx, c)
	return err
}

// writeEnd sends the end of a lease, and gives the work in the fields that change, or nil where the token holds no lease.
func (s *Store) writeEnd(ctx context.Context, jobID, token string, change func(job.Work) (job.Work, error)) (*job.Work, *failure) {
	held := running(token)
	next, err := change(held)
	if err != nil {
		return nil, nil // an empty token holds nothing
	}
	attempts := next.Attempts - held.Attempts
	next.Attempts = held.Attempts
	update := workChange(&held, &next)
	if attempts != 0 {
		update = append(update, bson.E{Key: "$inc", Value: bson.D{{Key: inWork(workAttempts), Value: attempts}}})
	}
	tracked, sent := track(ctx)
	result, err := s.coll.UpdateOne(tracked, heldWith(jobID, token), update)
	if err != nil {
		f := writeFailed(err, sent)
		s.log.Warn("a change of a job's work failed", "store", s.String(), "job_id", jobID, "error", s.explain(f))
		return nil, f
	}
	if result.MatchedCount == 0 {
		return nil, nil
	}
	s.opts.Watch.Tell(jobID, &held, &next)
	return &next, nil
}

// heldWith matches the job while the token holds the lease on its work. An empty token holds nothing, and is never stored.
func heldWith(jobID, token string) bson.D {
	return bson.D{
		{Key: fieldJobID, Value: jobID},
		{Key: inWork(workState), Value: job.StateLeased.String()},
		{Key: inWork(workToken), Value: token},
	}
}

// leaseChange is a change of work by the holder of its lease.
type leaseChange struct {
	jobID, token string
	// write sends it. It gives the work as changed, or nil where the token holds no lease.
	write func(ctx context.Context) (*job.Work, *failure)
	// done tells of work as it was read whether the change was made.
	done func(w job.Work) bool
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
	within, endSession := s.session(ctx)
	defer endSession()
	doubt := false // what was to be confirmed could not be
	for t := s.newTries(ctx); ; {
		changed, f := c.write(within)
		if changed != nil {
			return *changed, nil
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
				f = seen
			}
		}
		if !t.again(f) {
			t.unknown = t.unknown || doubt
			return job.Work{}, t.err()
		}
	}
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
