package mongostore

import (
	"context"

	"github.com/jobonce/jobonce/internal/job"
)

// Get implements [job.Store].
func (s *Store) Get(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	done, err := s.enter()
	if err != nil {
		return job.Record{}, err
	}
	defer done()
	return s.readOne(ctx, jobID, withBody)
}
