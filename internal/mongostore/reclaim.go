package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// maxClaims bounds how often one delivery tries to claim work that others keep changing.
const maxClaims = 5

// errMoving: others change the work all the time.
var errMoving = errors.New("the lease is being changed all the time")

// outcome decides one delivery on the group's record, and claims the work where the decision says so, or marks a lease as told
// again. The delivery is recorded already, so that no failure from here on means that nothing was written.
func (s *Store) outcome(ctx context.Context, g *group, d *job.Delivery) job.Outcome {
	t := s.newTries(ctx)
	var granted, retold job.Work // the work under the lease that this call was granted last, and that it marked
	for changes := 0; ; changes++ {
		work := &g.record.Work
		v := job.Decide(&g.record.Record, d, s.now())
		retell := tellsAgain(v) && work.Token != granted.Token && work.Token != retold.Token
		claim := changes < maxClaims && v.Claim && s.free(work)
		if claim {
			paused, err := s.inForce(ctx)
			if err != nil {
				return job.Outcome{Err: fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, err)} // it is recorded
			}
			claim = !job.Paused(paused, g.jobID)
		}
		switch {
		case retell && changes >= 2*maxClaims:
			return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, errMoving)}
		case retell || claim:
		case t.unknown && v.Disposition == job.Pending: // a claim may yet be applied
			return job.Outcome{Err: t.err()}
		default:
			o := s.answerOf(ctx, g.record.Record, v, &granted, &retold)
			if o.Granted == nil {
				return o
			}
			left, f := s.giveBackPaused(ctx, []job.Claimed{{Record: job.Record{JobID: g.jobID}, Lease: *o.Granted, Granted: true}})
			if f == nil && len(left) > 0 {
				return o
			}
			if f == nil { // it was paused meanwhile
				granted = job.Work{}
				g.record, f = s.read(ctx, g.jobID, true)
			}
			if f != nil {
				return job.Outcome{Err: fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, s.explain(f))} // it is recorded
			}
			continue
		}
		if g.record.form == unknownForm { // whoever gets the work must get the body
			s.log.Error("a stored record cannot be used", "store", s.String(), "job_id", g.jobID, "error", errForm)
			return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrRecordUnusable, errForm)}
		}
		next := work.Retell()
		if claim {
			now, known := s.time()
			if !known {
				if err := s.timed(ctx); err != nil {
					return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err())}
				}
				continue
			}
			next = work.Claim(d.Grant(s.opts.MaxAttempts), now)
		}
		switch f := s.swap(ctx, &g.record, &next); {
		case f != nil:
			if t.note(f); f.fate == fateRefused && !t.unknown {
				return job.Outcome{Err: t.err()}
			}
			if claim {
				granted = next // If it was: its token is of this call.
			}
		case claim:
			granted = next
			s.opts.Watch.Tell(g.jobID, work, &next)
		default:
			retold = next
		}
		// Granted, lost or unknown: the record tells, and our request id in it is our own success.
		for {
			record, f := s.read(ctx, g.jobID, true)
			if f == nil {
				g.record = record
				break
			}
			if !t.again(f) {
				t.unknown = true
				return job.Outcome{Err: t.err()}
			}
		}
	}
}

// answerOf is the outcome of a delivery that was decided. Of a lease that it was granted, or has marked, it tells the end that it
// wrote, as claims do: a later one is of calls that renewed or marked the lease since, and were told of it themselves.
func (s *Store) answerOf(ctx context.Context, r job.Record, v job.Verdict, granted, retold *job.Work) job.Outcome {
	for _, ours := range []*job.Work{granted, retold} {
		if v.Leased && r.Work.Token == ours.Token {
			r.Work.Due, r.Work.Granted = ours.Due, ours.Granted
		}
	}
	o := s.answer(ctx, r, v)
	if v.Leased && r.Work.Token == granted.Token {
		lease := granted.Lease(s.latest())
		o.Granted = &lease
	}
	return o
}

// tellsAgain tells whether a delivery is told of a lease that the same call may have been granted before, and may be about to
// give back. That is to be marked, unless it was granted just now.
func tellsAgain(v job.Verdict) bool {
	return v.Leased && v.Disposition == job.Reclaimed
}

// answer is the outcome of a delivery that was decided. One that is to do the work gets the body.
func (s *Store) answer(ctx context.Context, r job.Record, v job.Verdict) job.Outcome {
	switch {
	case v.Disposition != job.Reclaimed:
		r.Body, r.BodyEdited = job.Body{}, false
	case r.Body.Kind == job.BodyNone:
		full, f := s.read(ctx, r.JobID, true)
		if f != nil && !errors.Is(f, job.ErrNotFound) {
			return job.Outcome{Err: fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, s.explain(f))}
		}
		r.Body, r.BodyEdited = full.Body, full.BodyEdited
	}
	r.Work = s.told(r.Work)
	return job.Answer(r, v, s.latest())
}

// errChanged: somebody else changed the work since it was read.
var errChanged = errors.New("the work was changed meanwhile")

// swap puts r's work into the state next, provided that it is still as read, and that the document meets what else is asked
// for.
func (s *Store) swap(ctx context.Context, r *stored, next *job.Work, also ...bson.E) *failure {
	change := workChange(&r.Work, next)
	for i, e := range change {
		if e.Key == "$set" && r.Work.Due.IsZero() && !next.Due.IsZero() { // requeued
			change[i].Value = append(e.Value.(bson.D), bson.E{Key: inWork(workGroup), Value: job.Group(r.JobID)})
		}
	}
	tracked, sent := track(ctx)
	result, err := s.coll.UpdateOne(tracked, append(r.unchanged(), also...), change)
	if err != nil {
		f := writeFailed(err, sent)
		s.log.Warn("a change of a job's work failed", "store", s.String(), "job_id", r.JobID, "error", s.explain(f))
		return f
	}
	if result.MatchedCount == 0 {
		return &failure{fateRetry, errChanged}
	}
	return nil
}
