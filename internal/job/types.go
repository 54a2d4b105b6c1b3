package job

import (
	"time"
)

// WorkMode says who does the downstream work of a job. The numbers are those of the proto enum.
type WorkMode uint8

// The work modes.
const (
	ModeUnspecified WorkMode = iota
	// ModeUntracked promises one first delivery and nothing about the work.
	ModeUntracked
	// ModeLeased gives the recorder a lease that it must complete.
	ModeLeased
	// ModeQueued leaves the work to workers.
	ModeQueued
)

// WorkState is where the downstream work stands. The numbers are those of the proto enum.
type WorkState uint8

// The work states. StateUnknown is one that this version has no name for: a newer version wrote it, or somebody by hand.
// Such work starts nothing, is never claimed and never changed. A record without any work is StateUntracked.
const (
	StateUnknown WorkState = iota
	StateUntracked
	StateQueued
	StateLeased
	StateCompleted
	StateDead
)

// Disposition is what a delivery turned out to be. The numbers are those of the proto enum.
type Disposition uint8

// The dispositions.
const (
	DispositionNone Disposition = iota
	First
	Duplicate
	Reclaimed
	Pending
	InProgress
	Completed
	Dead
)

// BodyKind tells an absent body from an empty one, and text from bytes.
type BodyKind uint8

// The kinds of body.
const (
	// BodyNone: the delivery had no body, or it was not read from the store.
	BodyNone BodyKind = iota
	// BodyText: valid UTF-8, as received.
	BodyText
	// BodyBytes: any bytes; never read, only kept.
	BodyBytes
)

// Body is the body of a webhook, byte for byte. Data of a BodyBytes need not be UTF-8.
type Body struct {
	Kind BodyKind
	Data string
}

// Record is what is stored of a job.
type Record struct {
	JobID  string
	Event  string
	Status string
	// Body is filled in only where the payload was asked for.
	Body Body
	// BodyEdited: Body is not the one that was received, since somebody has changed what is stored.
	BodyEdited bool
	// BodyDropped is when retention dropped the body; zero when it did not.
	BodyDropped time.Time
	// Fingerprint is the SHA-256 of the first delivery's body; empty when that had none or was empty, and for records
	// that others wrote.
	Fingerprint string
	// RequestID is the logical call that created the record; empty for records that others wrote.
	RequestID string
	// Caller is the name of the caller that made that call; empty where none were configured.
	Caller string
	Source string
	// ContentType is the media type of the body, as it was given; Traceparent the W3C trace context. Empty when there is none.
	ContentType string
	Traceparent string
	// BodyOmitted is the size in bytes of a body that was too large to be kept; 0 when none was.
	BodyOmitted int64
	FirstSeen   time.Time
	// LastSeen is the latest delivery; the zero time where nobody kept it.
	LastSeen     time.Time
	Deliveries   int64
	Conflicts    int64
	LastConflict *Conflict
	Work         Work
}

// Work is the state of a job's downstream work.
type Work struct {
	State WorkState
	Mode  WorkMode
	// Due is when queued work may be claimed, or when the lease ends.
	Due time.Time
	// Granted is how far ahead Due was set: the length of the lease, or of the delay. It is in whole milliseconds, and
	// 0 where Due is not set. Records that were written before it was kept have MaxLease.
	Granted time.Duration
	// Token proves the holder of the latest lease; it stays after the lease was completed or released, so that the
	// same operation repeated can be recognised.
	Token string
	// Generation is the fencing number of the latest lease.
	Generation int64
	// Attempts counts the leases granted since the record was made or requeued.
	Attempts int32
	// Lapses counts the leases in a row that ended without a word of their holder.
	Lapses int32
	// Requeues counts how often an operator has put the work back into the queue.
	Requeues int32
	// RequestID is the RecordDelivery call that holds the running lease, RequestFingerprint that of its body.
	RequestID          string
	RequestFingerprint string
	// ClaimID is the ClaimWork call that holds the running lease.
	ClaimID string
	// Caller is the name of the caller that made the call which holds the running lease; empty where none were configured.
	Caller string
	Result string
	// Error is why the work was last not done.
	Error string
}

// ConflictKind says how a delivery disagrees with the stored one. The numbers are those of the proto enum.
type ConflictKind uint8

// The kinds of conflict.
const (
	ConflictNone ConflictKind = iota
	// ConflictEvent: event or status are set on both sides and differ.
	ConflictEvent
	// ConflictBody: only the content differs.
	ConflictBody
)

// Conflict is a delivery's disagreement with the stored one. The stored event and status stand in the record.
type Conflict struct {
	Kind ConflictKind
	// Event and Status are the disagreeing delivery's.
	Event  string
	Status string
	Time   time.Time
}

// Millis cuts t to whole milliseconds and makes it UTC: the resolution that every store keeps.
func Millis(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
