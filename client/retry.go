package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// RetryPolicy says how a call that failed is repeated. It is repeated when the service is overloaded, cannot reach its
// store or does not know the outcome, and when the connection failed; never when the service refused it. The call's
// deadline always bounds it: a retry that the deadline would overtake is not waited for. An attempt that may be followed by
// another, at another instance, gets half of the time that is left, but 1 to 30 s, so that an instance which hangs does not
// have it all. A target that is one address has no other, and is waited for.
type RetryPolicy struct {
	// MaxAttempts is the number of attempts, the first included. 0: as many as the time allows.
	MaxAttempts int
	// MaxElapsed is the time after which no further attempt starts. 0: the call's deadline alone decides.
	MaxElapsed time.Duration
	// BaseDelay is the mean delay before the second attempt; each later one is twice as long. The delays are spread by
	// half either way, and what the service asks to wait is added. 0: 50 ms.
	BaseDelay time.Duration
	// MaxDelay is the longest mean delay. 0: 2 s.
	MaxDelay time.Duration
}

// delayGrowth is by how much each mean delay is longer than the one before. docs/retry-policy.json has it too.
const delayGrowth = 2

func (p *RetryPolicy) complete() error {
	if p.MaxAttempts < 0 || p.MaxElapsed < 0 || p.BaseDelay < 0 || p.MaxDelay < 0 {
		return errors.New("a field is negative")
	}
	if p.BaseDelay == 0 {
		p.BaseDelay = 50 * time.Millisecond
	}
	if p.MaxDelay == 0 {
		p.MaxDelay = 2 * time.Second
	}
	if p.BaseDelay > p.MaxDelay {
		return fmt.Errorf("BaseDelay %v is above MaxDelay %v", p.BaseDelay, p.MaxDelay)
	}
	return nil
}

// An attempt that may be followed by another gets no less and no more.
const (
	minAttempt = time.Second
	maxAttempt = 30 * time.Second
)

// retry makes attempts until one succeeds, one fails for good, or there is no time or no try left. It returns nil or
// the last error that says something. wait is how long the service was asked to wait before it answers. The library's own
// loop would answer with the context's error alone, and would begin anew with the shortest delay whenever the service names
// one.
func (c *Client) retry(ctx context.Context, wait time.Duration, attempt func(context.Context) *Error) *Error {
	start := time.Now()
	deadline, ok := ctx.Deadline()
	if !ok && c.timeout > 0 {
		deadline = start.Add(c.timeout + wait)
	}
	delays := backoff.ExponentialBackOff{
		InitialInterval: c.policy.BaseDelay, MaxInterval: c.policy.MaxDelay, Multiplier: delayGrowth, RandomizationFactor: 0.5,
	}
	var last *Error
	for n := 1; ; n++ {
		once, cancel := ctx, context.CancelFunc(func() {})
		if end := attemptEnd(deadline, wait, c.single && !deadline.IsZero() || n == c.policy.MaxAttempts); !end.IsZero() {
			once, cancel = context.WithDeadline(ctx, end)
		}
		err := attempt(once)
		cancel()
		if err == nil {
			return nil
		}
		last = err.after(last)
		if !err.retryable() {
			return last
		}
		if cause := c.ended(ctx, deadline); cause != nil {
			return last.because(cause)
		}
		if n == c.policy.MaxAttempts {
			return last
		}
		// Added, not the larger of the two: callers that were turned away together must not come back together.
		delay := err.RetryDelay + delays.NextBackOff()
		if c.policy.MaxElapsed > 0 && time.Since(start)+delay > c.policy.MaxElapsed {
			return last
		}
		if !deadline.IsZero() && time.Until(deadline) <= delay {
			return last.because(context.DeadlineExceeded)
		}
		if cause := c.wait(ctx, delay); cause != nil {
			return last.because(cause)
		}
	}
}

// attemptEnd is when an attempt that begins now ends at the latest; zero: never. deadline is the call's, zero when it has
// none; the last attempt has all the time that is left, and so has each where no other instance could take the next.
func attemptEnd(deadline time.Time, wait time.Duration, last bool) time.Time {
	switch {
	case last:
		return deadline
	case deadline.IsZero():
		return time.Now().Add(wait + maxAttempt)
	}
	limit := (time.Until(deadline) - wait) / 2
	end := time.Now().Add(wait + min(max(minAttempt, limit), maxAttempt))
	if end.After(deadline) {
		return deadline
	}
	return end
}

// ended says why there is no point in another attempt, if there is none.
func (c *Client) ended(ctx context.Context, deadline time.Time) error {
	select {
	case <-c.done:
		return ErrClosed
	default:
	}
	if ctx.Err() == nil && !deadline.IsZero() && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// wait returns nil after d, and sooner when the call is over.
func (c *Client) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempt makes one call and reads its error.
func attempt[Req, Resp any](
	ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, *Error) {
	var server peer.Peer
	resp, err := call(ctx, req, grpc.Peer(&server))
	if err == nil {
		return resp, nil
	}
	e := fromStatus(status.Convert(err))
	// gRPC names the peer as soon as the call is given to a connection. Without one nothing can have been sent.
	e.OutcomeUnknown = server.Addr != nil && !e.refused()
	e.contextOver = ctx.Err() != nil && e.ReasonText == "" && (e.Code == codes.DeadlineExceeded || e.Code == codes.Canceled)
	return resp, e
}

// retryable says whether the same call, with the same request_id, may succeed later.
func (e *Error) retryable() bool {
	if e.final {
		return false
	}
	switch e.Reason {
	case joboncev1.ErrorReason_ERROR_REASON_OVERLOADED,
		joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE,
		joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:
		return true
	case joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED:
		// The transport's own errors, and reasons that a newer service gives.
		return e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded || e.Code == codes.Canceled
	default:
		return false
	}
}

// refused says whether the error itself tells that nothing was written.
func (e *Error) refused() bool {
	switch e.Reason {
	case joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED,
		joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN,
		joboncev1.ErrorReason_ERROR_REASON_INTERNAL:
		return false
	default:
		return true
	}
}

// after returns what to report when e came after prev in one call.
func (e *Error) after(prev *Error) *Error {
	if prev == nil {
		return e
	}
	reported := *e
	if e.contextOver {
		reported = *prev // That the time is over says less than what it was spent on.
	}
	reported.OutcomeUnknown = e.OutcomeUnknown || prev.OutcomeUnknown
	return &reported
}

// because returns e as ended by cause, which [errors.Is] then matches too.
func (e *Error) because(cause error) *Error {
	reported := *e
	reported.cause = cause
	return &reported
}
