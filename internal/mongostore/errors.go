package mongostore

import (
	"context"
	"errors"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// fate is what a failure says about the write that it came from.
type fate uint8

// The fates, by what they leave open: of a write of many items the highest is what may be said of it.
const (
	// fateUnsent: nothing left this process, and the driver has waited for a server already.
	fateUnsent fate = iota
	// fateRetry: certainly not applied, and trying again helps: a race or a deadlock between writers.
	fateRetry
	// fateRefused: certainly not applied, and trying again does not help.
	fateRefused
	// fateUnusable: certainly not applied, since the stored document cannot take it.
	fateUnusable
	// fateStrange: as fateUnknown, by an error code of one item that we do not know.
	fateStrange
	// fateUnknown: sent, and nobody knows whether it was applied.
	fateUnknown
)

// failure is how one try failed. The cause is for the log: clients never see it.
type failure struct {
	fate  fate
	cause error
}

// unknown tells whether what failed may have been applied.
func (f *failure) unknown() bool { return f.fate == fateUnknown || f.fate == fateStrange }

func (f *failure) Error() string { return f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

// orNil is the failure as an error, which is nil where there is none.
func (f *failure) orNil() error {
	if f == nil {
		return nil
	}
	return f
}

// away tells whether no server was to be had.
func (f *failure) away() bool { return f != nil && f.fate == fateUnsent }

// hopeless tells whether another try is no use.
func (f *failure) hopeless() bool {
	return f.fate == fateUnsent || f.fate == fateRefused || f.fate == fateUnusable
}

// Codes of the server, from its list of error codes (src/mongo/base/error_codes.yml). The last two are DocumentDB's: a
// deadlock that PostgreSQL detected, and a document over 16 MiB.
const (
	codeBadValue             = 2
	codeTypeMismatch         = 14
	codeUnauthorized         = 13
	codeAuthenticationFailed = 18
	codeLockTimeout          = 24
	codeIndexNotFound        = 27
	codeCommandNotFound      = 59
	codeInvalidNamespace     = 73
	codeWriteConflict        = 112
	codeNotWritablePrimary   = 10107
	codeDuplicateKey         = 11000
	codeDocumentDBDeadlock   = 16908292
	codeDocumentDBTooLarge   = 302776349
)

// interruptedCodes are of a server that shuts down, steps down, was interrupted, is out of time or off the network: the
// retryable ones of the drivers' specification (retryable-writes.md), and MaxTimeMSExpired (50) and WriteConcernFailed
// (64). What such a server says of one item may be true of its neighbours, and it may have applied what it reports.
var interruptedCodes = map[int]bool{
	6: true, 7: true, 50: true, 64: true, 89: true, 91: true, 134: true, 189: true, 262: true, 9001: true, 10107: true,
	11600: true, 11602: true, 13435: true, 13436: true,
}

// permanentCodes mean that the server looked at the update and will never take it: FailedToParse, Unauthorized,
// InvalidLength, IllegalOperation, PathNotViable, ConflictingUpdateOperators, DollarPrefixedFieldName, EmptyFieldName,
// DottedFieldName, ImmutableField, InvalidOptions, InvalidNamespace, DocumentValidationFailure,
// CommandNotSupportedOnView, BSONObjectTooLarge, and two for an update that would make the document too large
// (src/mongo/db/update, 17419 and 17420). Codes that are in no list here are not taken for permanent: mongos reports lost
// connections as item errors, by the code of whatever went wrong between it and a shard.
var permanentCodes = map[int]bool{
	9: true, 13: true, 16: true, 20: true, 28: true, 40: true, 52: true, 56: true, 57: true, 66: true, 72: true, 73: true,
	121: true, 166: true, 10334: true, 17419: true, 17420: true, codeDocumentDBTooLarge: true,
}

// aboutDocument tells whether the code is about the embedded document, of which some databases take less than MongoDB:
// keys with a dollar or a dot, empty keys, or its size.
func aboutDocument(code int) bool {
	switch code {
	case 52, 56, 57, 10334, 17419, 17420, codeDocumentDBTooLarge:
		return true
	}
	return false
}

// aboutHint tells whether the code may be about an index that a hint names and that is not there.
func aboutHint(code int) bool { return code == codeBadValue || code == codeIndexNotFound }

// tracker notes how many commands of one operation may have been sent.
type tracker struct {
	// sent counts them all, the driver's own repetitions included.
	sent int
	// commands counts a repetition as the same command. More than one means that the driver has split a bulk, of whose
	// parts it may lose what the first one said.
	commands int
	txn      int64
}

type trackerKey struct{}

func track(ctx context.Context) (context.Context, *tracker) {
	t := &tracker{}
	return context.WithValue(ctx, trackerKey{}, t), t
}

// started notes a command. A repetition has the number of the transaction that makes it safe to repeat.
func (t *tracker) started(command bson.Raw) {
	t.sent++
	txn, numbered := command.Lookup("txnNumber").AsInt64OK()
	if !numbered || txn != t.txn || t.commands == 0 {
		t.commands++
	}
	t.txn = txn
}

// failed takes a command back that was announced, and then the deadline left no time to send it.
func (t *tracker) failed(err error) {
	if errors.Is(err, driver.ErrDeadlineWouldBeExceeded) {
		t.sent--
	}
}

// trackers feeds the trackers. The driver tells of a command right before it writes it to the connection: selecting a
// server and waiting for a connection come before that. An operation runs in its caller's goroutine, so there is no lock.
func trackers() *event.CommandMonitor {
	of := func(ctx context.Context, then func(*tracker)) {
		if t, ok := ctx.Value(trackerKey{}).(*tracker); ok {
			then(t)
		}
	}
	return &event.CommandMonitor{
		Started: func(ctx context.Context, e *event.CommandStartedEvent) {
			of(ctx, func(t *tracker) { t.started(e.Command) })
		},
		Failed: func(ctx context.Context, e *event.CommandFailedEvent) {
			of(ctx, func(t *tracker) { t.failed(e.Failure) })
		},
	}
}

// commandFailed judges an error that a whole command ended with. Whatever is not known for certain is fateUnknown: network
// errors, a server that is no longer primary or shuts down, interruptions, time limits, and codes that we do not know. What
// the last part of a split bulk was refused for says nothing of the first.
func commandFailed(err error, t *tracker) *failure {
	if t.sent == 0 {
		if passes(err) {
			return &failure{fateRetry, err}
		}
		return &failure{fateUnsent, err}
	}
	var ce mongo.CommandError
	if t.sent == 1 && errors.As(err, &ce) {
		switch ce.Code {
		case codeUnauthorized, codeAuthenticationFailed, codeCommandNotFound, codeInvalidNamespace:
			return &failure{fateRefused, err}
		}
	}
	return &failure{fateUnknown, err}
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

// writeFailed judges the error of a write of one document. What the driver has repeated may land yet, whatever the last of its tries failed of.
func writeFailed(err error, t *tracker) *failure {
	var one mongo.WriteException
	if !errors.As(err, &one) {
		return commandFailed(err, t)
	}
	f := worst(one.WriteErrors, err)
	if one.WriteConcernError != nil || t.sent > 1 {
		f.fate = fateUnknown
	}
	return f
}

// upsertFailed judges the error of an upsert by _id, in which two that make the same document meet as duplicates.
func upsertFailed(err error, t *tracker) *failure {
	f := writeFailed(err, t)
	if mongo.IsDuplicateKeyError(err) && !f.unknown() {
		f.fate = fateRetry
	}
	return f
}

// worst is the worst that may be true of items that failed.
func worst(items []mongo.WriteError, err error) *failure {
	f := &failure{fateRetry, err}
	for _, e := range items {
		f.fate = max(f.fate, itemFate(e))
	}
	return f
}

// itemFate judges the error of one item of a bulk.
func itemFate(e mongo.WriteError) fate {
	switch {
	case interruptedCodes[e.Code]:
		return fateUnknown
	case lostRace(e.Code):
		return fateRetry
	case e.Code == codeDuplicateKey && aboutJobID(e):
		return fateRetry
	case e.Code == codeDuplicateKey, permanentCodes[e.Code]:
		return fateRefused
	case e.Code == codeTypeMismatch, e.Code == codeBadValue, e.Code == codeIndexNotFound:
		// Our updates are well formed: it is the stored counter that is no number, or the largest there is. Where the code
		// is about a hint, the caller has seen to it before.
		return fateUnusable
	}
	return fateStrange
}

// lostRace tells whether the code is of a write that was not applied because of another one.
func lostRace(code int) bool {
	return code == codeWriteConflict || code == codeLockTimeout || code == codeDocumentDBDeadlock
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

// readFailed judges the error of a read, which changes nothing: either trying again may help, or not.
func readFailed(err error, t *tracker) *failure {
	f := commandFailed(err, t)
	if f.fate == fateUnknown {
		f.fate = fateRetry
	}
	return f
}

// strangeCode says once a minute that the database gave an item a code that we do not know.
func (s *Store) strangeCode(e mongo.WriteError, jobID string) {
	s.mu.Lock()
	last, now := s.strange[e.Code], time.Now()
	say := last.IsZero() || now.Sub(last) >= time.Minute
	if say {
		s.strange[e.Code] = now
	}
	s.mu.Unlock()
	if say {
		s.log.Error("the database gave an error code that is not known here, so nobody can tell whether the write was applied; "+
			"the delivery is tried three times and then told that its outcome is unknown",
			"store", s.String(), "code", e.Code, "job_id", jobID, "error", s.explain(e))
	}
}

var (
	// errSplit: the driver sent a bulk in several commands.
	errSplit = errors.New("the driver has split a bulk, so that a write concern error may be lost")
	// errUnsafe: one item of a bulk failed, and what is said of the others may be less than it seems.
	errUnsafe = errors.New("the bulk failed in part, so that a write concern error may be lost")
	// errAway: no server was to be had, so that the next call would wait for one too.
	errAway = errors.New("the database is away")
	// errRefused: the database does not take the write, for a reason that is not the job's.
	errRefused = errors.New("the database refuses the write")
)
