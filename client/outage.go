package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// manyUnavailable is how many jobs in a row must find what they need away for it to be an outage. One alone may be a job that
// its service cannot take.
const manyUnavailable = 3

// outage knows whether what the work of a worker needs is away, by how its jobs end. While it is, one job at a time goes out
// to find out.
type outage struct {
	log *slog.Logger
	// begun gives back what has been claimed and not started.
	begun func()

	mu     sync.Mutex
	failed map[string]bool // the jobs of which the latest in a row found it away
	since  time.Time       // zero: there is no outage
	pauses *backoff.ExponentialBackOff
	next   time.Time // when the next job may go out
	probe  string    // the job that is out
	// changed holds one sign that a job may go out earlier than it was to.
	changed chan struct{}
}

func newOutage(log *slog.Logger, begun func()) *outage {
	return &outage{
		log: log, begun: begun, failed: make(map[string]bool), changed: make(chan struct{}, 1),
		pauses: &backoff.ExponentialBackOff{
			InitialInterval: time.Second, MaxInterval: 30 * time.Second, Multiplier: 2, RandomizationFactor: 0.5,
		},
	}
}

// ended is told what the function of a job returned, and says whether that is due to the outage.
func (o *outage) ended(jobID string, err error) bool {
	switch {
	case errors.As(err, new(*unavailableError)):
		return o.foundAway(jobID, err)
	case errors.As(err, new(*notStartedError)), errors.Is(err, context.Canceled), errors.Is(err, ErrLeaseLost):
		return false // It says nothing.
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.failed)
	if !o.since.IsZero() {
		o.log.Info("what the work needs is back; claiming goes on", "after", time.Since(o.since))
		o.since = time.Time{}
		o.pauses.Reset()
		o.sign()
	}
	return false
}

func (o *outage) foundAway(jobID string, err error) bool {
	o.mu.Lock()
	begins := false
	o.failed[jobID] = true
	switch {
	case !o.since.IsZero():
		if jobID == o.probe {
			o.pause(err)
		}
	case len(o.failed) >= manyUnavailable:
		begins = true
		o.since = time.Now()
		o.pause(err)
		o.log.Warn("what the work needs is away; claiming pauses, and one job at a time finds out when it is back", "error", logged(err))
	default:
		o.mu.Unlock()
		return false
	}
	o.mu.Unlock()
	if begins {
		o.begun()
	}
	return true
}

// pause sets when the next job may go out: later each time, and not before the error allows.
func (o *outage) pause(err error) {
	d := o.pauses.NextBackOff()
	if asked := (*retryInError)(nil); errors.As(err, &asked) {
		d = max(d, min(asked.delay, time.Hour))
	}
	o.next = time.Now().Add(d)
}

// away tells whether there is an outage.
func (o *outage) away() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero()
}

// pass waits, while there is an outage, until a job may go out, and says whether it goes alone.
func (o *outage) pass(ctx context.Context) (alone bool) {
	for ctx.Err() == nil {
		o.mu.Lock()
		left := time.Until(o.next)
		switch {
		case o.since.IsZero():
			o.mu.Unlock()
			return false
		case o.probe != "":
			left = time.Hour // its end is a sign
		case left <= 0:
			o.mu.Unlock()
			return true
		}
		o.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-o.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return false
}

// sent notes the job that goes out alone, and over that it is no longer out, whatever became of it.
func (o *outage) sent(jobID string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.probe = jobID
}

func (o *outage) over(jobID string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if jobID == o.probe {
		o.probe = ""
		o.sign()
	}
}

// sign wakes who waits in pass.
func (o *outage) sign() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}
