package mongostore

import (
	"context"
	"errors"
	"fmt"
	"net"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/jobonce/jobonce/internal/job"
)

// fate is what an error says about the write that it came from.
type fate uint8

const (
	// fateUnsent: nothing left this process.
	fateUnsent fate = iota
	// fateUnknown: sent, and nobody knows whether it was applied.
	fateUnknown
	// fateRetry: certainly not applied, and trying again helps: a race or a deadlock between writers.
	fateRetry
	// fateRefused: certainly not applied, and trying again does not help.
	fateRefused
)

// Codes of the server, from its list of error codes (src/mongo/base/error_codes.yml); the last one is DocumentDB's for a
// deadlock that PostgreSQL detected.
const (
	codeUnauthorized         = 13
	codeAuthenticationFailed = 18
	codeCommandNotFound      = 59
	codeInvalidNamespace     = 73
	codeWriteConflict        = 112
	codeLockTimeout          = 24
	codeDuplicateKey         = 11000
	codeDocumentDBDeadlock   = 16908292
)

// unknownCodes are of a server that is shutting down, stepping down, interrupted, out of time or off the network: what
// it says of one item may be true of its neighbours, and it may have applied what it reports.
var unknownCodes = map[int]bool{
	6: true, 7: true, 50: true, 64: true, 89: true, 91: true, 189: true, 262: true, 9001: true, 10107: true,
	11600: true, 11602: true, 13435: true, 13436: true,
}

// tracker notes how many commands of one operation may have been sent, repetitions and parts of a large bulk included.
// The driver tells a CommandMonitor of a command right before it writes it to the connection; selecting a server and
// waiting for a connection come before that.
type tracker struct{ sent int }

type trackerKey struct{}

func track(ctx context.Context) (context.Context, *tracker) {
	t := &tracker{}
	return context.WithValue(ctx, trackerKey{}, t), t
}

func (t *tracker) started() { t.sent++ }

// failed takes a command back that was announced, and then the deadline left no time to send it.
func (t *tracker) failed(err error) {
	if errors.Is(err, driver.ErrDeadlineWouldBeExceeded) {
		t.sent--
	}
}

// monitor feeds the trackers. An operation runs in its caller's goroutine, so they need no lock.
func monitor() *event.CommandMonitor {
	of := func(ctx context.Context, then func(*tracker)) {
		if t, ok := ctx.Value(trackerKey{}).(*tracker); ok {
			then(t)
		}
	}
	return &event.CommandMonitor{
		Started: func(ctx context.Context, _ *event.CommandStartedEvent) { of(ctx, (*tracker).started) },
		Failed: func(ctx context.Context, e *event.CommandFailedEvent) {
			of(ctx, func(t *tracker) { t.failed(e.Failure) })
		},
	}
}

// commandFate judges an error that a whole command ended with. Whatever is not known for certain is fateUnknown: network
// errors, a server that is no longer primary or shuts down, interruptions, time limits, and codes that we do not know.
func commandFate(err error, t *tracker) fate {
	if t.sent == 0 {
		if passes(err) {
			return fateRetry
		}
		return fateUnsent
	}
	var ce mongo.CommandError
	if errors.As(err, &ce) {
		switch ce.Code {
		case codeUnauthorized, codeAuthenticationFailed, codeCommandNotFound, codeInvalidNamespace:
			return fateRefused
		}
	}
	return fateUnknown
}

// passes tells whether an error from before a command was sent may be gone at once: a new connection failed, or the
// failure of another command took them all away. Whoever has waited for a server, or for a connection, has waited already.
func passes(err error) bool {
	var selection topology.ServerSelectionError
	if errors.As(err, &selection) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var pool driver.RetryablePoolError
	var dial *net.OpError
	return errors.As(err, &pool) && pool.Retryable() || errors.As(err, &dial) || hungUp(err)
}

// writeFate judges the error of a write of one document, or of a bulk as a whole: the worst that may be true of any item.
func writeFate(err error, t *tracker) fate {
	var one mongo.WriteException
	var bulk mongo.BulkWriteException
	var items []mongo.WriteError
	concern := false
	switch {
	case errors.As(err, &one):
		items, concern = one.WriteErrors, one.WriteConcernError != nil
	case errors.As(err, &bulk):
		concern = bulk.WriteConcernError != nil
		for _, e := range bulk.WriteErrors {
			items = append(items, e.WriteError)
		}
	default:
		return commandFate(err, t)
	}
	f := fateRetry
	for _, e := range items {
		if of := itemFate(e); of == fateUnknown || f == fateRetry {
			f = of
		}
	}
	if concern {
		f = fateUnknown
	}
	return f
}

// itemFate judges the error of one item of a bulk, which the server gives only for an item that it did not apply.
func itemFate(e mongo.WriteError) fate {
	switch {
	case unknownCodes[e.Code]:
		return fateUnknown
	case e.Code == codeWriteConflict, e.Code == codeLockTimeout, e.Code == codeDocumentDBDeadlock:
		return fateRetry
	case e.Code == codeDuplicateKey && aboutJobID(e):
		return fateRetry
	}
	return fateRefused
}

// failedItems are the errors of a bulk's items, by their places in it.
func failedItems(bulk mongo.BulkWriteException) map[int]mongo.WriteError {
	failed := make(map[int]mongo.WriteError, len(bulk.WriteErrors))
	for _, e := range bulk.WriteErrors {
		failed[e.Index] = e.WriteError
	}
	return failed
}

// aboutJobID tells whether a duplicate key error is about our index, or does not say which one.
func aboutJobID(e mongo.WriteError) bool {
	pattern, ok := e.Raw.Lookup("keyPattern").DocumentOK()
	if !ok {
		return true
	}
	elements, err := pattern.Elements()
	return err != nil || len(elements) == 0 || len(elements) == 1 && elements[0].Key() == fieldJobID
}

// readFate judges the error of a read, which changes nothing: either trying again may help, or not.
func readFate(err error, t *tracker) fate {
	switch commandFate(err, t) {
	case fateUnsent, fateRefused:
		return fateUnsent
	}
	return fateRetry
}

// readError turns the error of a read into one of the domain's. A context that ended is said as well.
func readError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w: %v", job.ErrUnavailable, ctx.Err(), err)
	}
	return fmt.Errorf("%w: %v", job.ErrUnavailable, err)
}
