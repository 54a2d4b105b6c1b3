package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// standing is what is read of a job to tell how its work stands.
var standing = bson.D{
	{Key: fieldJobID, Value: 1}, {Key: inWork(workState), Value: 1}, {Key: inWork(workGeneration), Value: 1},
	{Key: inWork(workDue), Value: 1}, {Key: inWork(workGranted), Value: 1},
}

// Standings implements [job.Follower].
func (s *Store) Standings(ctx context.Context, jobIDs []string) (map[string]job.Standing, error) {
	done, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	paused, err := s.inForce(ctx)
	if err != nil {
		return nil, err
	}
	found := make(map[string]job.Standing, len(jobIDs))
	opts := options.Find().SetProjection(standing)
	f := s.each(ctx, s.coll, filterAll(jobIDs), opts, func(doc bson.Raw) bool {
		if r, err := decode(doc, false); err == nil && r.JobID != "" {
			found[r.JobID] = job.Standing{State: r.Work.State, Generation: r.Work.Generation, Free: s.free(&r.Work) && !job.Paused(paused, r.JobID)}
		}
		return true
	})
	if f != nil {
		return nil, fmt.Errorf("%w: %v", job.ErrUnavailable, s.explain(f))
	}
	return found, nil
}

// Resume implements [job.Follower].
func (s *Store) Resume(ctx context.Context, d job.Delivery) job.Outcome {
	done, err := s.begin(ctx)
	if err != nil {
		return job.Outcome{Err: err}
	}
	defer done()
	if d.Mode == job.ModeLeased {
		if err := s.timed(ctx); err != nil {
			return job.Outcome{Err: err}
		}
	}
	ctx, endSession := s.session(ctx)
	defer endSession()
	r, f := s.read(ctx, d.JobID, false)
	switch {
	case f == nil:
		return s.outcome(ctx, &group{jobID: d.JobID, record: r}, &d)
	case errors.Is(f, job.ErrNotFound):
		return job.Outcome{Err: job.ErrNotFound}
	case f.fate == fateUnusable:
		return job.Outcome{Err: fmt.Errorf("%w: %w", job.ErrRecordUnusable, f)}
	}
	return job.Outcome{Err: fmt.Errorf("%w: %v", job.ErrUnavailable, s.explain(f))}
}
