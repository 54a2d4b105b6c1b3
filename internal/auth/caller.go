// Package auth says who may call what: callers and their rights from the auth file, by tokens, client certificates and
// OIDC tokens; and the certificates of the listeners. It knows nothing of gRPC.
package auth

import (
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Rights is a set of rights.
type Rights uint16

// The rights. A caller records with the work modes that it has the right to.
const (
	RecordUntracked Rights = 1 << iota
	RecordLeased
	RecordQueued
	Work
	Read
	ReadBodies
	Expect
	Admin
	// Metrics is to read /metrics, where that needs a right. It is a right to no call.
	Metrics

	// Record is what the word "record" gives.
	Record = RecordUntracked | RecordLeased | RecordQueued
	// Any is every right to call.
	Any = Record | Work | Read | ReadBodies | Expect | Admin
)

// String names the rights as the auth file does: who has one of them has what needs r.
func (r Rights) String() string {
	var all []string
	for _, of := range []struct {
		right Rights
		word  string
	}{{Record, "record"}, {Work, "work"}, {Read, "read"}, {ReadBodies, "read_bodies"}, {Expect, "expect"}, {Admin, "admin"}, {Metrics, "metrics"}} {
		if r&of.right != 0 {
			all = append(all, of.word)
		}
	}
	return strings.Join(all, " or ")
}

// words are the rights as the auth file has them.
var words = map[string]Rights{
	"record": Record, "work": Work, "read": Read, "read_bodies": ReadBodies | Read, "expect": Expect, "metrics": Metrics, "admin": Admin | ReadBodies | Read,
}

// modes are the work modes that the right to record may be narrowed to.
var modes = map[string]Rights{"untracked": RecordUntracked, "leased": RecordLeased, "queued": RecordQueued}

// Caller is who makes a call, by one of its credentials. It does not change.
type Caller struct {
	Name   string
	Rights Rights
	// Prefix is what the ids of the caller's jobs begin with. It ends in ":", or is empty: all jobs.
	Prefix string
	// Expires is when the credential does. The zero time: never.
	Expires time.Time
	// rate is shared by all credentials of the name; nil: any.
	rate *rate.Limiter
	// gone ends when calls that are under way must, since the file has the credential no more, or with other rights.
	gone context.Context
	end  context.CancelFunc
}

// May tells whether the caller has one of the rights.
func (c *Caller) May(any Rights) bool { return c.Rights&any != 0 }

// Covers tells whether the job is one of the caller's.
func (c *Caller) Covers(jobID string) bool { return strings.HasPrefix(jobID, c.Prefix) }

// Wait is how long the caller has to wait before it may call: 0 when it may now, which counts as a call.
func (c *Caller) Wait(now time.Time) time.Duration {
	if c.rate == nil {
		return 0
	}
	r := c.rate.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// newLimiter makes a limiter of so many calls a second, which lets a second's worth of them come at once.
func newLimiter(perSecond float64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
}

// limit is the caller's rate in calls a second; 0: any.
func limit(c *Caller) float64 {
	if c.rate == nil {
		return 0
	}
	return float64(c.rate.Limit())
}

// same tells whether nothing about the caller has changed.
func (c *Caller) same(as *Caller) bool {
	return c.Name == as.Name && c.Rights == as.Rights && c.Prefix == as.Prefix && c.Expires.Equal(as.Expires) && limit(c) == limit(as)
}

// Bound returns a context that ends a minute after the caller has lost its rights: its credential has expired, or the file
// has it no more.
func (c *Caller) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.gone, cancel)
	release := func() { stop(); cancel() }
	if c.Expires.IsZero() {
		return ctx, release
	}
	ctx, expire := context.WithDeadline(ctx, c.Expires.Add(graceTime))
	return ctx, func() { expire(); release() }
}

// callerKey is the context's key for the caller.
type callerKey struct{}

// WithCaller returns a context that has the caller.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that the context has; nil when there is none.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}
