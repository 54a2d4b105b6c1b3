package sqlitestore

import (
	"context"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// WithPragmas returns the options with pragmas for the writer, which come after its own and so replace them.
func (o Options) WithPragmas(pragmas ...string) Options {
	o.pragmas = append(o.pragmas[:len(o.pragmas):len(o.pragmas)], pragmas...)
	return o
}

// WithClock returns the options with other clocks than the machine's.
func (o Options) WithClock(read func() (wall time.Time, mono time.Duration)) Options {
	o.readClock = read
	return o
}

// Tend does the n-th turn of the upkeep.
func (s *Store) Tend(n int) { s.tend(context.Background(), n) }

// BreakDown takes the store out of service.
func (s *Store) BreakDown(err error) { s.breakDown(err) }

// GetOpen is Get from after it has found the store open.
func (s *Store) GetOpen(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	return s.get(ctx, jobID, withBody)
}
