package mongostore

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

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
	filter := append(heldWith(c.Record.JobID, c.Lease.Token), bson.E{Key: inWork(workDue), Value: c.Lease.Expires})
	update := endOf(held, next)
	for t := s.newTries(ctx); ; {
		tracked, sent := track(ctx)
		result, err := s.coll.UpdateOne(tracked, filter, update)
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
