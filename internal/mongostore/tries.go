package mongostore

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// maxTries bounds how often one operation is tried. Writers that collide on one id come through within a few.
	maxTries = 40
	// maxStrange bounds it where the database answers with a code that we do not know.
	maxStrange = 3
)

// tries is what an operation knows of its tries so far.
type tries struct {
	ctx        context.Context
	newPause   func() backoff.BackOff
	explain    func(error) error // of a cause, for the log
	pause      backoff.BackOff   // nil until one is needed
	n, strange int
	// unknown is true once a try may have been applied without our knowing: then no later failure means "not applied".
	unknown bool
	// last is how the latest try failed.
	last *failure
}

func (s *Store) newTries(ctx context.Context) *tries {
	return &tries{ctx: ctx, newPause: s.opts.NewPause, explain: s.explain}
}

// note takes a failure in. It tells whether another try may help.
func (t *tries) note(f *failure) bool {
	t.n++
	t.last = f
	switch f.fate {
	case fateUnknown:
		t.unknown = true
	case fateStrange:
		t.unknown = true
		t.strange++
	}
	return !f.hopeless() && t.n < maxTries && t.strange < maxStrange
}

// again notes a failure and waits. It tells whether to try again.
func (t *tries) again(f *failure) bool { return t.note(f) && t.wait() }

// wait waits before the next try, and tells whether the context still lives.
func (t *tries) wait() bool {
	if t.pause == nil {
		t.pause = t.newPause()
	}
	timer := time.NewTimer(t.pause.NextBackOff())
	defer timer.Stop()
	select {
	case <-t.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// err is the error of an operation that is given up. A context that ended is said as well.
func (t *tries) err() error {
	var err error
	switch {
	case t.unknown:
		err = job.ErrOutcomeUnknown
	case t.last.fate == fateRefused:
		err = errRefused
	case t.last.fate == fateUnusable:
		err = job.ErrRecordUnusable
	default:
		err = job.ErrUnavailable
	}
	if t.last.away() {
		err = fmt.Errorf("%w: %w", err, errAway)
	}
	err = fmt.Errorf("%w: %v", err, t.explain(t.last.cause))
	if t.ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, t.ctx.Err())
	}
	return err
}

// defaultPause is how long to wait between tries: short at first, since most are about writers that collide.
func defaultPause() backoff.BackOff {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 2*time.Millisecond, 500*time.Millisecond, 1.7
	return pause
}
