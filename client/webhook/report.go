package webhook

import (
	"context"
	"time"
)

// Reason says in a word what became of a request. The set is closed: see [Reasons]. It is the label of metrics.
type Reason string

// What can become of a request.
const (
	// Accepted: everything that was to be recorded is recorded.
	Accepted Reason = "accepted"
	// Handshaken: the sender asked whether the endpoint is ours, and was answered.
	Handshaken Reason = "handshake"
	// Unreadable: it is verified, and no id could be read, or an expression failed. It is kept whole as
	// "<source>:unreadable:<sha256>".
	Unreadable Reason = "unreadable"

	// MethodNotAllowed: it is no POST.
	MethodNotAllowed Reason = "method"
	// EmptyBody: there is no body.
	EmptyBody Reason = "empty_body"
	// EncodedBody: the body has a Content-Encoding, such as gzip.
	EncodedBody Reason = "encoded_body"
	// BrokenBody: the body ended early, or could not be read.
	BrokenBody Reason = "broken_body"
	// SlowBody: the body did not come in time.
	SlowBody Reason = "slow_body"
	// TooLarge: the body, or an item of it, is larger than what is taken.
	TooLarge Reason = "too_large"
	// TooManyItems: the body holds more than 10,000 events.
	TooManyItems Reason = "too_many_items"

	// SignatureMissing: a header of the signature is not there.
	SignatureMissing Reason = "signature_missing"
	// SignatureRepeated: a header of the signature is there twice.
	SignatureRepeated Reason = "signature_repeated"
	// SignatureMalformed: the signature, or its time, is not of the sender's form.
	SignatureMalformed Reason = "signature_malformed"
	// SignatureStale: it was signed too long ago.
	SignatureStale Reason = "signature_stale"
	// SignatureAhead: it was signed too far in the future.
	SignatureAhead Reason = "signature_ahead"
	// SignatureWrong: no secret gives this signature.
	SignatureWrong Reason = "signature_wrong"
	// KeyUnavailable: the key or certificate could not be fetched.
	KeyUnavailable Reason = "key_unavailable"
	// HandshakeRefused: a handshake that brought the wrong token, or asks for what is not done.
	HandshakeRefused Reason = "handshake_refused"
	// HandshakeFailed: a handshake that could not be completed this time.
	HandshakeFailed Reason = "handshake_failed"

	// Invalid: the service refused a field.
	Invalid Reason = "invalid"
	// NotRecorded: the service could not record it, or it is not known whether it did.
	NotRecorded Reason = "not_recorded"
	// WorkPending: the work that this handler does itself is not done yet.
	WorkPending Reason = "work_pending"
)

// Reasons returns every reason.
func Reasons() []Reason {
	return []Reason{
		Accepted, Handshaken, Unreadable, MethodNotAllowed, EmptyBody, EncodedBody, BrokenBody, SlowBody, TooLarge, TooManyItems,
		SignatureMissing, SignatureRepeated, SignatureMalformed, SignatureStale, SignatureAhead, SignatureWrong, KeyUnavailable,
		HandshakeRefused, HandshakeFailed, Invalid, NotRecorded, WorkPending,
	}
}

// Report is what became of one request.
type Report struct {
	// Source is the source's name.
	Source string
	// Reason says what became of it.
	Reason Reason
	// Verified is true when the signature was found good.
	Verified bool
	// Items counts the events in the request: Recorded are durable (duplicates included), Filtered were left out by When,
	// Unreadable had no id. What is left failed.
	Items, Recorded, Filtered, Unreadable int
	// First counts the recorded ones that were not known before.
	First int
	// Status is the HTTP status of the answer.
	Status int
	// Duration is the time from the headers to the answer.
	Duration time.Duration
	// JobID is the id of the first item. Empty where there was none.
	JobID string
	// Err says more, for the log. Nil with Accepted and Handshaken. It has no secret and nothing of a body in it; one of the
	// service is a [*client.Error].
	Err error
}

// ReportFunc hears of every request, after its answer is decided and before it is sent. It is called from several
// goroutines.
type ReportFunc func(context.Context, Report)
