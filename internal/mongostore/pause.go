package mongostore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// pausesEvery is how often the pauses are read. What was read twice as long ago is read again before work is started.
	pausesEvery = time.Second
	// passedFor is for how long paused work is passed over that was found in front of what is due, and passedLate how much later
	// than others, besides what clocks may be apart by, a write may land that makes work due. One that is tried again makes it due
	// at the time of the first try.
	passedFor, passedLate = time.Minute, 30 * time.Second
)

// pauses are those that were read last, and when that began.
type pauses struct {
	all  []job.Pause
	read time.Time
}

// loadPauses reads the pauses, which are in force here from then on.
func (s *Store) loadPauses(ctx context.Context) ([]job.Pause, *failure) {
	began := time.Now()
	all, f := s.readPauses(ctx)
	if f != nil {
		return nil, f
	}
	for {
		before := s.pauses.Load()
		if before != nil && before.read.After(began) { // somebody has seen later ones
			return all, nil
		}
		if s.pauses.CompareAndSwap(before, &pauses{all, began}) {
			if before == nil || !slices.Equal(before.all, all) {
				s.passed.Store(nil)
			}
			return all, nil
		}
	}
}

// inForce are the pauses in force now: nobody may have paused work two seconds ago, or before a read that takes longer than that,
// without their saying so. The error matches job.ErrUnavailable.
func (s *Store) inForce(ctx context.Context) ([]job.Pause, error) {
	if p := s.pauses.Load(); p != nil && time.Since(p.read) <= 2*s.opts.PausesEvery {
		return p.all, nil
	}
	all, f := s.loadPauses(ctx)
	if f != nil {
		return nil, fmt.Errorf("%w: it is not known which claims are paused: %v", job.ErrUnavailable, s.explain(f))
	}
	return all, nil
}

// giveBackPaused gives the claims back, of those that were granted just now, whose work was paused before it is told that it was
// granted: since they were looked for, writes and reads may have taken their time. It returns the others. Between the last look at
// the pauses and that there is nothing that takes any.
func (s *Store) giveBackPaused(ctx context.Context, claims []job.Claimed) ([]job.Claimed, *failure) {
	for {
		paused, err := s.inForce(ctx)
		if err != nil {
			return nil, &failure{fateRetry, err}
		}
		i := slices.IndexFunc(claims, func(c job.Claimed) bool { return c.Granted && job.Paused(paused, c.Record.JobID) })
		if i < 0 {
			return claims, nil
		}
		if err := s.unclaim(ctx, &claims[i]); err != nil {
			s.log.Warn("a claim of paused work could not be given back; its lease lapses", "store", s.String(), "job_id", claims[i].Record.JobID, "error", s.explain(err))
		}
		claims = slices.Delete(claims, i, i+1)
	}
}

// passed is up to when what is due was found to be paused, by these pauses, and when all of it was looked at.
type passed struct {
	by     []job.Pause
	until  time.Time // of the store's clock
	looked time.Time
}

// passedUntil is from when on what is due need be looked at: hundreds of thousands of jobs may be paused in front of it. It is zero
// once a minute, since jobs may have been copied here that had been due before.
func (s *Store) passedUntil(pauses []job.Pause) time.Time {
	p := s.passed.Load()
	if p == nil || time.Since(p.looked) > passedFor || !slices.Equal(p.by, pauses) {
		return time.Time{}
	}
	return p.until
}

// pass notes that a look at what is due from then on found what is not paused at first.
func (s *Store) pass(pauses []job.Pause, from, first time.Time) {
	if len(pauses) == 0 {
		return
	}
	late := s.now().Add(-s.allowance() - passedLate)
	if first.After(late) {
		first = late
	}
	p := passed{by: pauses, until: first, looked: time.Now()}
	if before := s.passed.Load(); before != nil && !from.IsZero() {
		p.looked = before.looked
	}
	s.passed.Store(&p)
}

// keepPauses reads the pauses again and again.
func (s *Store) keepPauses(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.ready:
	}
	ticker := time.NewTicker(s.opts.PausesEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		part, cancel := context.WithTimeout(ctx, prepareTimeout)
		if _, f := s.loadPauses(part); f != nil && ctx.Err() == nil {
			s.log.Warn("cannot read which claims are paused; claims wait until that is known", "store", s.String(), "error", s.explain(f))
		}
		cancel()
	}
}

// notPaused matches jobs that are under none of the pauses. None of them is of all jobs.
func notPaused(pauses []job.Pause) bson.D {
	if len(pauses) == 0 {
		return nil
	}
	var under bson.A
	for _, p := range pauses {
		under = append(under, bson.D{{Key: fieldJobID, Value: beginsWith(p.Prefix)}})
	}
	return bson.D{{Key: "$nor", Value: under}}
}
