package job

import (
	"crypto/rand"
	"fmt"
	"time"
	"unicode/utf8"
)

// The limits of what workers say, in bytes and in jobs.
const (
	MaxResultBytes   = 64 << 10
	MaxErrorBytes    = 4 << 10
	MaxWorkerIDBytes = 128
	MaxTokenBytes    = 128
	MaxClaimJobs     = 100
	MaxClaimEvents   = 100
	MaxRetryDelay    = 24 * time.Hour

	// DefaultMaxAttempts is how many leases a job is granted before it counts as dead.
	DefaultMaxAttempts = 10
)

// noAttemptsLeft is the error of work that nobody gave a reason for.
const noAttemptsLeft = "every attempt was used up"

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
	// MaxAttempts is how many leases the job may have; 0 is no limit.
	MaxAttempts int
}

// Free tells whether the work may be claimed: it is queued and due, or its lease has lapsed.
func (w *Work) Free(now time.Time) bool {
	return (w.State == StateQueued || w.State == StateLeased) && !now.Before(w.Due)
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
	w.State = StateLeased
	w.Due = Millis(now.Add(g.Duration))
	w.Token = g.Token
	// Milliseconds keep the number growing beyond a deletion, which takes the stored one away.
	w.Generation = max(w.Generation+1, now.UnixMilli())
	w.Attempts++
	w.RequestID, w.RequestFingerprint, w.ClaimID = g.RequestID, g.Fingerprint, g.ClaimID
	return w
}

// settled clears what only running or waiting work has.
func (w Work) settled() Work {
	w.Due, w.RequestID, w.RequestFingerprint, w.ClaimID = time.Time{}, "", "", ""
	return w
}

// holds tells whether token is that of the current lease, lapsed or not.
func (w *Work) holds(token string) bool {
	return w.State == StateLeased && token != "" && w.Token == token
}

// did tells whether token is the one whose operation left the work in this state.
func (w *Work) did(token string, state WorkState) bool {
	return w.State == state && token != "" && w.Token == token
}

// Renew lets the lease run anew. ErrLeaseLost when token does not hold it.
func (w Work) Renew(token string, d time.Duration, now time.Time) (Work, error) {
	if !w.holds(token) {
		return w, ErrLeaseLost
	}
	w.Due = Millis(now.Add(d))
	return w, nil
}

// Complete ends the work with a result. Repeated with the same token it changes nothing. ErrLeaseLost otherwise.
func (w Work) Complete(token, result string) (Work, error) {
	switch {
	case w.did(token, StateCompleted):
		return w, nil
	case !w.holds(token):
		return w, ErrLeaseLost
	}
	w.State, w.Result, w.Error = StateCompleted, result, ""
	return w.settled(), nil
}

// Release says how work goes on that was not done.
type Release struct {
	Delay time.Duration
	Error string
	Dead  bool
}

// Release gives the work back, or up. Repeated with the same token it changes nothing. ErrLeaseLost otherwise.
func (w Work) Release(token string, r Release, now time.Time) (Work, error) {
	switch {
	case w.did(token, StateQueued), w.did(token, StateDead):
		return w, nil
	case !w.holds(token):
		return w, ErrLeaseLost
	}
	w.Error = r.Error
	w = w.settled()
	if r.Dead {
		w.State = StateDead
		return w, nil
	}
	w.State, w.Due = StateQueued, Millis(now.Add(r.Delay))
	return w, nil
}

// Retell is the work once its lease was told to a second call with the same request id. The lease runs a millisecond
// longer, by which the first call, should it be cancelled, knows that it must not take the lease back.
func (w Work) Retell() Work {
	w.Due = w.Due.Add(time.Millisecond)
	return w
}

// Unclaim takes a claim back whose answer nobody got: the work is due as of now, and the attempt does not count. The
// generation stays, since the token may have been seen. ErrLeaseLost when the token does not hold the lease any more, or
// the lease does not end when it was granted to: somebody else was told of it.
func (w Work) Unclaim(token string, expires, now time.Time) (Work, error) {
	if !w.holds(token) || !w.Due.Equal(expires) {
		return w, ErrLeaseLost
	}
	w = w.settled()
	w.State, w.Token, w.Due = StateQueued, "", Millis(now)
	w.Attempts--
	return w, nil
}

// ClaimRequest asks for work.
type ClaimRequest struct {
	// RequestID is never empty.
	RequestID string
	Max       int
	Lease     time.Duration
	// Events is empty for any.
	Events []string
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

// CheckLease checks the duration of a lease; nil when it is missing.
func CheckLease(d *time.Duration) error {
	if d == nil {
		return &InvalidError{Field: "lease_duration", Problem: "is required"}
	}
	if *d < MinLease || *d > MaxLease {
		return &InvalidError{Field: "lease_duration", Problem: fmt.Sprintf("must be %v to %v", MinLease, MaxLease)}
	}
	return nil
}

// CheckText checks a text of a request: at most limit bytes of UTF-8.
func CheckText(field, value string, limit int) error {
	if len(value) > limit {
		return &InvalidError{Field: field, Problem: fmt.Sprintf("is %d bytes; the limit is %d", len(value), limit)}
	}
	if !utf8.ValidString(value) {
		return &InvalidError{Field: field, Problem: "is not valid UTF-8"}
	}
	return nil
}

// CheckToken checks the token of a request. That it is well formed says nothing about whether it holds.
func CheckToken(token string) error {
	if token == "" {
		return &InvalidError{Field: "lease_token", Problem: "is required"}
	}
	return CheckText("lease_token", token, MaxTokenBytes)
}
