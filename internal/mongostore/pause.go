package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// pausesEvery is how often the pauses are read. What was read twice as long ago is read again before work is started.
const pausesEvery = time.Second

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
			return all, nil
		}
	}
}

// inForce are the pauses in force now: nobody may have paused work two seconds ago without their saying so. The error matches
// job.ErrUnavailable.
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
		ids := bson.D{{Key: "$gte", Value: p.Prefix}}
		if end := job.Behind(p.Prefix); end != "" {
			ids = append(ids, bson.E{Key: "$lt", Value: end})
		}
		under = append(under, bson.D{{Key: fieldJobID, Value: ids}})
	}
	return bson.D{{Key: "$nor", Value: under}}
}
