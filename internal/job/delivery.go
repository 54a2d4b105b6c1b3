package job

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jobonce/jobonce/internal/payload"
)

// Input is a delivery as it was sent: nothing is checked yet.
type Input struct {
	JobID  string
	Event  string
	Status string
	Body   Body
	// Opaque: the fields of the body are neither read nor compared, and count as unread.
	Opaque    bool
	RequestID string
	// Caller is the name of the caller whose call this is; empty where none are configured.
	Caller string
	Mode   WorkMode
	// Lease is nil when none was given; zero is not the same.
	Lease  *time.Duration
	Source string
	// ContentType is the media type of the body, Traceparent the W3C trace context.
	ContentType string
	Traceparent string
	// BodyOmitted is the size in bytes of a body that is too large to be kept.
	BodyOmitted int64
}

// Delivery is a checked delivery. Make one with [Input.Delivery].
type Delivery struct {
	JobID  string
	Event  string
	Status string
	// EventUnread and StatusUnread say whether the body may hold one where Event or Status is empty.
	EventUnread  Unread
	StatusUnread Unread
	Body         Body
	// Object is true when the body is text and exactly one JSON object, which a store may keep as a document. One behind a
	// byte-order mark is kept as text alone.
	Object bool
	// Fingerprint is the SHA-256 of the body, 32 bytes; empty when there is no body or an empty one.
	Fingerprint string
	// RequestID is never empty.
	RequestID string
	// Caller is the name of the caller whose call this is; empty where none are configured.
	Caller string
	Mode   WorkMode
	Lease  time.Duration
	Source string

	ContentType string
	// Traceparent is well-formed or empty; TraceparentUnread is whether there was one that is not.
	Traceparent       string
	TraceparentUnread bool
	BodyOmitted       int64
}

// Unread says why a delivery says nothing of what its body may hold. Nothing said is agreement; what cannot be read is not.
type Unread uint8

const (
	// UnreadNothing: it is said, or the body was read and holds none, or there is no body.
	UnreadNothing Unread = iota
	// UnreadBody: the body as a whole is bytes, opaque, or no JSON object.
	UnreadBody
	// UnreadValue: the body's own value is neither null nor a string within the limit.
	UnreadValue
)

// Delivery checks the input and completes it from its body. The error is an [*InvalidError] that names the field.
// maxBody is the limit of the body in bytes.
func (in Input) Delivery(maxBody int) (Delivery, error) {
	d := Delivery{
		JobID: in.JobID, Event: in.Event, Status: in.Status, Body: in.Body,
		RequestID: in.RequestID, Caller: in.Caller, Mode: in.Mode, Source: in.Source, ContentType: in.ContentType, BodyOmitted: in.BodyOmitted,
	}
	if err := in.checkOmitted(); err != nil {
		return d, err
	}
	if wellFormedTraceparent(in.Traceparent) {
		d.Traceparent = in.Traceparent
	} else {
		d.TraceparentUnread = in.Traceparent != ""
	}
	if n := len(in.Body.Data); n > maxBody {
		field := "payload"
		if in.Body.Kind == BodyBytes {
			field = "payload_bytes"
		}
		return d, &InvalidError{Field: field, Problem: fmt.Sprintf("is %d bytes; the limit is %d", n, maxBody), TooLarge: true}
	}
	info, err := d.fillFromBody(in.Opaque)
	if err != nil {
		return d, err
	}
	if d.JobID == "" {
		return d, d.errNoJobID(&info, in.Opaque)
	}
	if err := CheckJobID(d.JobID); err != nil {
		return d, err
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"event", d.Event, MaxEventBytes},
		{"status", d.Status, MaxStatusBytes},
		{"request_id", d.RequestID, MaxRequestIDBytes},
		{"source", d.Source, MaxSourceBytes},
	} {
		if err := CheckText(f.name, f.value, f.limit); err != nil {
			return d, err
		}
	}
	if err := CheckContentType(d.ContentType); err != nil {
		return d, err
	}
	if d.RequestID == d.JobID {
		return d, &InvalidError{Field: "request_id", Problem: "equals job_id; it must be a fresh random value for every incoming request"}
	}
	if d.RequestID == "" {
		d.RequestID = rand.Text()
	}
	if err := d.checkWork(in.Lease); err != nil {
		return d, err
	}
	if d.Body.Data != "" {
		sum := sha256.Sum256([]byte(d.Body.Data))
		d.Fingerprint = string(sum[:])
	}
	return d, nil
}

// fillFromBody takes the id, event and status from a JSON object, and refuses a body that says otherwise than the
// explicit fields do: a wrong key must never be stored. What it could not read it notes. It returns what it found.
func (d *Delivery) fillFromBody(opaque bool) (info payload.Info, err error) {
	if d.Body.Kind == BodyText {
		if !utf8.ValidString(d.Body.Data) {
			return info, &InvalidError{Field: "payload", Problem: "is not valid UTF-8; send it as payload_bytes"}
		}
		info = payload.Scan(d.Body.Data, payload.Limits{JobID: MaxJobIDBytes, Event: MaxEventBytes, Status: MaxStatusBytes})
		d.Object = info.Object && !info.BOM
	}
	whole := d.Body.Data != "" && (opaque || !info.Object) || d.BodyOmitted > 0
	if !whole {
		err = d.takeFrom(&info)
	}
	d.EventUnread, d.StatusUnread = unread(d.Event, whole, info.Event), unread(d.Status, whole, info.Status)
	return info, err
}

// checkOmitted checks the size of a body that was left out.
func (in *Input) checkOmitted() error {
	const field = "payload_omitted_bytes"
	switch {
	case in.BodyOmitted < 0:
		return &InvalidError{Field: field, Problem: "must not be negative"}
	case in.BodyOmitted > 0 && in.Body.Kind != BodyNone:
		return &InvalidError{Field: field, Problem: "must not be set beside a payload"}
	}
	return nil
}

// takeFrom takes what an object says.
func (d *Delivery) takeFrom(info *payload.Info) error {
	if info.JobID.Repeated {
		return &InvalidError{Field: "job_id", Problem: "stands twice in the payload; send it once, or set job_id and opaque_payload"}
	}
	for _, f := range []struct {
		name string
		have *string
		body string
	}{
		{"job_id", &d.JobID, info.JobID.Value},
		{"event", &d.Event, info.Event.Value},
		{"status", &d.Status, info.Status.Value},
	} {
		if f.body == "" {
			continue
		}
		if *f.have == "" {
			*f.have = f.body
		} else if *f.have != f.body {
			return &InvalidError{Field: f.name, Problem: "differs from the payload's own; set opaque_payload if the payload's means something else"}
		}
	}
	return nil
}

// unread is why a field of a delivery says nothing of what its body may hold: as a whole, or in its own member.
func unread(said string, whole bool, own payload.Field) Unread {
	switch {
	case said != "":
		return UnreadNothing
	case whole:
		return UnreadBody
	case own.Unread():
		return UnreadValue
	}
	return UnreadNothing
}

// checkWork checks the mode and the lease that goes with it.
func (d *Delivery) checkWork(lease *time.Duration) error {
	switch d.Mode {
	case ModeUnspecified:
		d.Mode = ModeUntracked
	case ModeUntracked, ModeLeased, ModeQueued:
	default:
		return &InvalidError{Field: "work_mode", Problem: fmt.Sprintf("%d is not known", d.Mode)}
	}
	if d.Mode != ModeLeased {
		if lease != nil {
			return &InvalidError{Field: "lease_duration", Problem: "goes with work_mode LEASED only"}
		}
		return nil
	}
	if err := CheckLease(lease); err != nil {
		return err
	}
	d.Lease = *lease
	return nil
}

// NewRecord is the record that the delivery makes when it is the first, before it is counted. A leased one is under its
// first lease from now on.
func (d *Delivery) NewRecord(now time.Time) Record {
	seen := Millis(now)
	r := Record{
		JobID: d.JobID, Event: d.Event, Status: d.Status, Body: d.Body, Fingerprint: d.Fingerprint,
		RequestID: d.RequestID, Caller: d.Caller, Source: d.Source, FirstSeen: seen, LastSeen: seen,
		ContentType: d.ContentType, Traceparent: d.Traceparent, BodyOmitted: d.BodyOmitted,
		Work: Work{State: StateUntracked, Mode: d.Mode},
	}
	switch d.Mode {
	case ModeQueued:
		r.Work.State = StateQueued
		r.Work = r.Work.dueIn(0, now)
	case ModeLeased:
		r.Work = r.Work.Claim(d.Grant(0), now)
	}
	return r
}

// Grant is a lease that the delivery asks for. It has a new token every time: a token that was released must not come back
// to life, not even in the hands of the same call. That a lease is the call's own shows in its request id.
func (d *Delivery) Grant(maxAttempts int) Grant {
	return Grant{Token: NewToken(), Duration: d.Lease, RequestID: d.RequestID, Fingerprint: d.Fingerprint, Caller: d.Caller,
		MaxAttempts: maxAttempts}
}
