package job

import (
	"context"
	"time"
)

// Lease is the right to do the work of a job.
type Lease struct {
	Token      string
	Generation int64
	Expires    time.Time
	// Remaining is the time to Expires when the answer was made, by the store's clock.
	Remaining time.Duration
}

// Lease is the lease that the work is under, as of now.
func (w *Work) Lease(now time.Time) Lease {
	return Lease{Token: w.Token, Generation: w.Generation, Expires: w.Due, Remaining: max(0, w.Due.Sub(now))}
}

// LeaseChange is what the holder of a lease asks for. Make it with [RenewLease], [CompleteWork] or [ReleaseWork].
type LeaseChange struct {
	JobID, Token string
	Kind         ChangeKind
	// Duration is that of a renewal, Result that of a completion, Release that of a release.
	Duration time.Duration
	Result   string
	Release  Release
}

// ChangeKind says what a change does.
type ChangeKind int

// The kinds of changes.
const (
	Renewal ChangeKind = iota
	Completion
	Releasing
)

// LeaseOutcome is what became of a change.
type LeaseOutcome struct {
	// Lease is that of a renewal without an error.
	Lease Lease
	Err   error
}

// Release says how work goes on that was not done.
type Release struct {
	Delay time.Duration
	Error string
	Dead  bool
	// NotStarted takes the attempt back; the work is due at once. The other fields are then zero.
	NotStarted bool
}

// RenewLease is the change that lets a lease run anew from now, and never makes it shorter.
func RenewLease(jobID, token string, d time.Duration) LeaseChange {
	return LeaseChange{JobID: jobID, Token: token, Kind: Renewal, Duration: d}
}

// CompleteWork is the change that ends the work and keeps its result.
func CompleteWork(jobID, token, result string) LeaseChange {
	return LeaseChange{JobID: jobID, Token: token, Kind: Completion, Result: result}
}

// ReleaseWork is the change that gives the work back, or up.
func ReleaseWork(jobID, token string, r Release) LeaseChange {
	return LeaseChange{JobID: jobID, Token: token, Kind: Releasing, Release: r}
}

// Size is how many bytes of text the change carries.
func (c *LeaseChange) Size() int { return len(c.Result) + len(c.Release.Error) }

// Change makes a change. ErrLeaseLost when its token does not hold the lease. Repeated with the same token it changes
// nothing.
func (w Work) Change(c LeaseChange, now time.Time) (Work, error) {
	switch c.Kind {
	case Completion:
		return w.Complete(c.Token, c.Result)
	case Releasing:
		return w.Release(c.Token, c.Release, now)
	}
	return w.Renew(c.Token, c.Duration, now)
}

// Change makes one change of a lease.
func Change(ctx context.Context, w Worker, c LeaseChange) (Lease, error) {
	o := w.ChangeLeases(ctx, []LeaseChange{c})[0]
	return o.Lease, o.Err
}

// Renew makes one renewal.
func Renew(ctx context.Context, w Worker, jobID, token string, d time.Duration) (Lease, error) {
	return Change(ctx, w, RenewLease(jobID, token, d))
}

// Complete makes one completion.
func Complete(ctx context.Context, w Worker, jobID, token, result string) error {
	_, err := Change(ctx, w, CompleteWork(jobID, token, result))
	return err
}

// GiveBack makes one release.
func GiveBack(ctx context.Context, w Worker, jobID, token string, r Release) error {
	_, err := Change(ctx, w, ReleaseWork(jobID, token, r))
	return err
}
