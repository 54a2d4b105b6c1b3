package job

import (
	"crypto/rand"
	"strings"
	"time"
)

// noAttemptsLeft is the error of work that nobody gave a reason for.
const noAttemptsLeft = "every attempt was used up"

// NewToken makes a lease's token.
func NewToken() string { return rand.Text() }

// Grant is a lease that somebody asks for.
type Grant struct {
	Token    string
	Duration time.Duration
	// RequestID and Fingerprint are the RecordDelivery call's; ClaimID is the ClaimWork call's.
	RequestID   string
	Fingerprint string
	ClaimID     string
	// Caller is the name of the caller whose call it is; empty where none are configured.
	Caller string
	// MaxAttempts is how many leases the job may have; 0 is no limit.
	MaxAttempts int
}

// Free tells whether the work may be claimed: it is queued and due, or its lease has lapsed. Work without a due time, which
// we never write, is not free.
func (w *Work) Free(now time.Time) bool {
	return (w.State == StateQueued || w.State == StateLeased) && !w.Due.IsZero() && !now.Before(w.Due)
}

// Claim returns the work under a new lease, or dead when its attempts are used up. The work must be free.
func (w Work) Claim(g Grant, now time.Time) Work {
	if g.MaxAttempts > 0 && int(w.Attempts) >= g.MaxAttempts {
		if w.Error == "" {
			w.Error = noAttemptsLeft
		}
		w.State, w.Token = StateDead, ""
		return w.settled()
	}
	if w.State == StateLeased {
		w.Lapses++
	}
	w.State = StateLeased
	w = w.dueIn(g.Duration, now)
	w.Token = g.Token
	// Milliseconds keep the number growing beyond a deletion, which takes the stored one away.
	w.Generation = max(w.Generation+1, now.UnixMilli())
	w.Attempts++
	w.RequestID, w.RequestFingerprint, w.ClaimID, w.Caller = g.RequestID, g.Fingerprint, g.ClaimID, g.Caller
	return w
}

// settled clears what only running or waiting work has.
func (w Work) settled() Work {
	w.Due, w.Granted, w.RequestID, w.RequestFingerprint, w.ClaimID, w.Caller = time.Time{}, 0, "", "", "", ""
	return w
}

// dueIn is the work when it is due d from now on.
func (w Work) dueIn(d time.Duration, now time.Time) Work {
	w.Due, w.Granted = Millis(now.Add(d)), d.Truncate(time.Millisecond)
	return w
}

// suspectLapses is after how many leases in a row without a word of their holder a job counts as suspect: it may be what
// ends those who work on it.
const suspectLapses = 5

// Notable tells whether a person should hear of what has become of the work: it died, or its holders vanish.
func (w *Work) Notable() (died, suspect bool) {
	return w.State == StateDead, w.State == StateLeased && w.Lapses == suspectLapses
}

// Anchor returns the work with its due time measured anew, when that lies further ahead than what was granted and the
// allowance together: a clock that was ahead has set it. The work is then due when what was granted has passed once more,
// and not at once, since the holder of a lease may be alive.
func (w Work) Anchor(allowance time.Duration, now time.Time) (_ Work, anchored bool) {
	waits := w.State == StateQueued || w.State == StateLeased
	if !waits || w.Due.Sub(now) <= w.Granted+allowance {
		return w, false
	}
	return w.dueIn(w.Granted, now), true
}

// Holds tells whether token is that of the current lease, lapsed or not.
func (w *Work) Holds(token string) bool {
	return w.State == StateLeased && token != "" && w.Token == token
}

// did tells whether token is the one whose operation left the work in this state.
func (w *Work) did(token string, state WorkState) bool {
	return w.State == state && token != "" && w.Token == token
}

// Renew lets the lease run anew, but never makes it shorter: a renewal that lands late must not take back what a later one
// was told. One that asks for no more than there is makes it a millisecond longer: a store whose former primary takes what
// changes nothing knows from the change that the lease is held. ErrLeaseLost when token does not hold it.
func (w Work) Renew(token string, d time.Duration, now time.Time) (Work, error) {
	if !w.Holds(token) {
		return w, ErrLeaseLost
	}
	if renewed := w.dueIn(d, now); renewed.Due.After(w.Due) {
		w.Due = renewed.Due
	} else {
		w = w.Retell()
	}
	w.Granted = max(w.Granted, d.Truncate(time.Millisecond))
	return w, nil
}

// Complete ends the work with a result. Repeated with the same token it changes nothing. ErrLeaseLost otherwise.
func (w Work) Complete(token, result string) (Work, error) {
	switch {
	case w.did(token, StateCompleted):
		return w, nil
	case !w.Holds(token):
		return w, ErrLeaseLost
	}
	w.State, w.Result, w.Error, w.Lapses = StateCompleted, result, "", 0
	return w.settled(), nil
}

// Release gives the work back, or up. Repeated with the same token it changes nothing. ErrLeaseLost otherwise.
func (w Work) Release(token string, r Release, now time.Time) (Work, error) {
	switch {
	case w.did(token, StateQueued), w.did(token, StateDead):
		return w, nil
	case !w.Holds(token):
		return w, ErrLeaseLost
	}
	if r.NotStarted {
		w.Lapses = 0
		w.Attempts--
		w = w.settled()
		w.State = StateQueued
		return w.dueIn(0, now), nil
	}
	w.Error, w.Lapses = r.Error, 0
	w = w.settled()
	if r.Dead {
		w.State = StateDead
		return w, nil
	}
	w.State = StateQueued
	return w.dueIn(r.Delay, now), nil
}

// Retell is the work once its lease was told to a second call with the same request id. The lease runs a millisecond
// longer, by which the first call, should it be cancelled, knows that it must not take the lease back.
func (w Work) Retell() Work {
	w.Due, w.Granted = w.Due.Add(time.Millisecond), w.Granted+time.Millisecond
	return w
}

// Unclaim takes a claim back whose answer nobody got: the work is due as of now, and the attempt does not count. The
// generation stays, since the token may have been seen. ErrLeaseLost when the token does not hold the lease any more, or
// the lease does not end when it was granted to: somebody else was told of it.
func (w Work) Unclaim(token string, expires, now time.Time) (Work, error) {
	if !w.Holds(token) || !w.Due.Equal(expires) {
		return w, ErrLeaseLost
	}
	w = w.settled()
	w.State, w.Token = StateQueued, ""
	w.Attempts--
	return w.dueIn(0, now), nil
}

// Group is the group of a job, which its work is found by: the id up to its first ":", empty without one.
func Group(jobID string) string {
	group, _, found := strings.Cut(jobID, ":")
	if !found {
		return ""
	}
	return group
}

// ClaimRequest asks for work.
type ClaimRequest struct {
	// RequestID is never empty.
	RequestID string
	// Caller is the name of the caller whose call this is; empty where none are configured.
	Caller string
	Max    int
	Lease  time.Duration
	// Events is empty for any.
	Events []string
	// Prefix is what the ids of the jobs begin with. It ends in ":", or is empty: any.
	Prefix string
	// MaxBytes bounds the claimed bodies together; the first is returned whatever its size.
	MaxBytes int
}

// Claimed is a job with the lease that a claim got on it. The record has its body.
type Claimed struct {
	Record Record
	Lease  Lease
	// Granted is true when this call was granted the lease; false when an earlier one with the same request id was.
	Granted bool
}
