package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// minRenewPause is the shortest pause between two renewals, but for the last one before the end.
const minRenewPause = 100 * time.Millisecond

// holding is a lease that is held while its work is done.
type holding struct {
	c     *Client
	jobID string
	token string
	lease time.Duration
	// until is when the lease ends at the earliest, on our own monotonic clock.
	until time.Time
	// lost is the service's word that the lease is gone. It matches ErrLeaseLost.
	lost error
}

// keep renews the lease again and again until ctx ends. It ends the work when the lease is lost, or may be: it has run out
// without a renewal that succeeded.
func (h *holding) keep(ctx context.Context, endWork context.CancelCauseFunc) {
	failure := errors.New("no answer came in time")
	for {
		left := time.Until(h.until)
		if left <= 0 {
			endWork(fmt.Errorf("%w: it ran out before it was renewed: %w", ErrLeaseLost, failure))
			return
		}
		// A third, spread by a quarter either way: leases that were granted at once are not renewed at once.
		pause := left/4 + time.Duration(h.c.random()*float64(left/6))
		timer := time.NewTimer(min(max(pause, minRenewPause), left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		// Not all that is left: a call that hangs leaves time for another one.
		once, cancel := context.WithTimeout(ctx, time.Until(h.until)/2)
		err := h.renew(once)
		cancel()
		if h.lost != nil {
			endWork(h.lost)
			return
		}
		if err != nil {
			failure = err
		}
	}
}

// renew renews the lease once.
func (h *holding) renew(ctx context.Context) error {
	lease, sent, err := h.c.renewLease(ctx, &joboncev1.RenewLeaseRequest{
		JobId: h.jobID, LeaseToken: h.token, LeaseDuration: durationpb.New(h.lease),
	})
	if err != nil {
		return h.note(err)
	}
	h.until = sent.Add(lease.GetRemaining().AsDuration())
	return nil
}

// complete says that the work is done.
func (h *holding) complete(ctx context.Context, result string) error {
	ctx, cancel := h.settling(ctx)
	defer cancel()
	return h.note(h.c.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: h.jobID, LeaseToken: h.token, Result: result}))
}

// release gives the work back.
func (h *holding) release(ctx context.Context, delay time.Duration, reason string) error {
	ctx, cancel := h.settling(ctx)
	defer cancel()
	return h.note(h.c.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{
		JobId: h.jobID, LeaseToken: h.token, RetryDelay: durationpb.New(delay), Error: reason,
	}))
}

// notStarted gives work back that was not begun.
func (h *holding) notStarted(ctx context.Context) error {
	ctx, cancel := h.settling(ctx)
	defer cancel()
	return h.note(h.c.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{JobId: h.jobID, LeaseToken: h.token, NotStarted: true}))
}

// giveUp makes the job dead.
func (h *holding) giveUp(ctx context.Context, reason string) error {
	ctx, cancel := h.settling(ctx)
	defer cancel()
	return h.note(h.c.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{
		JobId: h.jobID, LeaseToken: h.token, Dead: true, Error: reason,
	}))
}

// settling is the context of a call that ends the work: whoever asked for the work may be gone by then.
func (h *holding) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := h.c.timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// note returns err, and remembers it when it says that the lease is gone: for good, a token never holds again.
func (h *holding) note(err error) error {
	switch {
	case errors.Is(err, ErrLeaseLost):
		h.lost = err
	case errors.Is(err, ErrJobNotFound): // Deleted, and the lease with it.
		h.lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	default:
		return err
	}
	return h.lost
}
