package job

import (
	"errors"
	"fmt"
	"time"
)

// The sentinel errors of a store. Every error that a [Store] returns matches one of these, an [InvalidError], or counts
// as a fault of ours. The texts are for logs: clients are told what the server makes of the sentinel.
var (
	// ErrNotFound: nothing is recorded under the id.
	ErrNotFound = errors.New("job not found")
	// ErrUnavailable: the store could not be reached and nothing was sent to it, so nothing was written.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnready is an ErrUnavailable of a store that can be reached, and where something has to be done first, by itself
	// or by a person.
	ErrUnready = fmt.Errorf("%w, since it is not ready", ErrUnavailable)
	// ErrOutcomeUnknown: the write was sent and nobody knows whether it was applied. A retry with the same request id
	// finds out.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLeaseLost: the token does not hold the lease: somebody else claimed the work, or it is settled.
	ErrLeaseLost = errors.New("lease lost")
	// ErrRecordUnusable: what is stored under the id cannot be used, such as a counter that is no number. Only a person
	// can mend it; the log says what is wrong.
	ErrRecordUnusable = errors.New("stored record unusable")
	// ErrOverloaded: refused before anything was sent, because too much waits already.
	ErrOverloaded = errors.New("overloaded")
)

// How long a client does well to wait before it retries. An unknown outcome is worth asking again soon, since the write went through
// most of the time; a store that is away takes longer to come back.
const (
	RetryOverloaded  = 200 * time.Millisecond
	RetryUnavailable = 500 * time.Millisecond
	RetryUnknown     = 100 * time.Millisecond
)

// InvalidError is a request that can never succeed.
type InvalidError struct {
	// Field is the request's field at fault, by its proto name; empty when it is none's alone.
	Field string
	// Problem completes the sentence "field ...". It never repeats a payload.
	Problem string
	// TooLarge marks a payload over the limit, which has a reason of its own.
	TooLarge bool
}

func (e *InvalidError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + " " + e.Problem
}
