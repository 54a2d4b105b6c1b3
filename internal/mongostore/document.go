package mongostore

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/payload"
)

// The fields of the document. The first six are those of the plain upsert, see docs/mongodb.md.
const (
	fieldJobID      = "job_id"
	fieldEvent      = "event"
	fieldStatus     = "status"
	fieldPayload    = "payload"
	fieldFirstSeen  = "first_seen"
	fieldDeliveries = "deliveries"

	fieldPayloadText    = "payload_text"
	fieldPayloadForm    = "payload_form"
	fieldPayloadBytes   = "payload_bytes"
	fieldPayloadDropped = "payload_dropped"
	fieldFingerprint    = "fingerprint"
	fieldRequestID      = "request_id"
	fieldCaller         = "caller"
	fieldSource         = "source"
	fieldContentType    = "content_type"
	fieldTraceparent    = "traceparent"
	fieldPayloadOmitted = "payload_omitted" // bytes
	fieldLastSeen       = "last_seen"
	fieldConflicts      = "conflicts"
	fieldLastConflict   = "last_conflict"
	fieldWork           = "work"
)

// The fields of the subdocument last_conflict.
const (
	conflictKind   = "kind"
	conflictEvent  = "event"
	conflictStatus = "status"
	conflictTime   = "time"
)

// The fields of the work subdocument. A record without one is untracked.
const (
	workState       = "state"
	workMode        = "mode"
	workDue         = "due"
	workGranted     = "granted" // milliseconds
	workGroup       = "group"   // see [job.Group]; stands beside due
	workLapses      = "lapses"
	workRequeues    = "requeues"
	workToken       = "token"
	workGeneration  = "generation"
	workAttempts    = "attempts"
	workRequestID   = "request_id"
	workFingerprint = "fingerprint"
	workClaimID     = "claim_id"
	workResult      = "result"
	workError       = "error"
	workLease       = "lease" // a document; see [workChange]
)

// leaseCaller is the field of the subdocument lease.
const leaseCaller = "caller"

const (
	// maxDepth is how deeply a body may nest to be embedded. MongoDB documents 100 levels, and the record is one.
	maxDepth = 99
	// maxDocument bounds the whole document, under MongoDB's 16 MiB, and leaves room for what is added later.
	maxDocument = 15 << 20
	// ownFields is more than our own fields can take.
	ownFields = 64 << 10
)

// update is the upsert of a job, in BSON, ready to be sent.
type update struct {
	bytes []byte
	// embedded is true when the body is in it as a document as well.
	embedded bool
}

// embedding is whether a body is stored as a document, where it is one JSON object and BSON holds it faithfully.
type embedding uint8

const (
	// textAlone stores no document.
	textAlone embedding = iota
	// besideText stores the document and the text.
	besideText
	// insteadOfText leaves the text out where the document gives it back byte for byte.
	insteadOfText
)

// newUpdate writes the update for n deliveries of which r is the record that the first one makes.
func newUpdate(r *job.Record, n int, object bool, embed embedding) update {
	var u update
	if !object {
		embed = textAlone
	}
	// Most bodies grow by less than a quarter on their way to BSON, and stand in the update twice, or are rendered there.
	b := make([]byte, 0, 512+len(r.Body.Data)*5/2)
	top, b := bsoncore.AppendDocumentStart(b)

	insert, b := bsoncore.AppendDocumentElementStart(b, "$setOnInsert")
	b, u.embedded = appendRecord(b, r, embed)
	b = end(b, insert)

	inc, b := bsoncore.AppendDocumentElementStart(b, "$inc")
	b = end(bsoncore.AppendInt32Element(b, fieldDeliveries, int32(n)), inc)
	seen, b := bsoncore.AppendDocumentElementStart(b, "$max")
	b = end(bsoncore.AppendTimeElement(b, fieldLastSeen, r.LastSeen), seen)

	u.bytes = end(b, top)
	return u
}

// appendRecord appends what stays as it is while deliveries are counted. embedded tells whether the body is there as a
// document.
func appendRecord(b []byte, r *job.Record, embed embedding) (_ []byte, embedded bool) {
	b = appendNonEmpty(b, fieldEvent, r.Event)
	b = appendNonEmpty(b, fieldStatus, r.Status)
	form, once := payload.Form(0), false
	if embed != textAlone && r.Body.Kind == job.BodyText {
		start := len(b)
		b, form, embedded = appendEmbedded(b, r.Body.Data)
		once = embedded && embed == insteadOfText && givesBack(b, start, form, r.Body.Data)
	}
	b = bsoncore.AppendTimeElement(b, fieldFirstSeen, r.FirstSeen)
	switch {
	case once:
		b = bsoncore.AppendInt32Element(b, fieldPayloadForm, int32(form))
	case r.Body.Kind == job.BodyText:
		b = bsoncore.AppendStringElement(b, fieldPayloadText, r.Body.Data)
	case r.Body.Kind == job.BodyBytes:
		b = bsoncore.AppendBinaryElement(b, fieldPayloadBytes, 0, []byte(r.Body.Data))
	}
	if r.Fingerprint != "" {
		b = bsoncore.AppendBinaryElement(b, fieldFingerprint, 0, []byte(r.Fingerprint))
	}
	b = appendNonEmpty(b, fieldRequestID, r.RequestID)
	b = appendNonEmpty(b, fieldCaller, r.Caller)
	b = appendNonEmpty(b, fieldSource, r.Source)
	b = appendNonEmpty(b, fieldContentType, r.ContentType)
	b = appendNonEmpty(b, fieldTraceparent, r.Traceparent)
	if r.BodyOmitted > 0 {
		b = bsoncore.AppendInt64Element(b, fieldPayloadOmitted, r.BodyOmitted)
	}
	if r.Work.State != job.StateUntracked {
		work, d := bsoncore.AppendDocumentElementStart(b, fieldWork)
		d = appendWork(d, &r.Work, r.Work.RequestFingerprint != r.Fingerprint)
		if !r.Work.Due.IsZero() {
			d = bsoncore.AppendStringElement(d, workGroup, job.Group(r.JobID))
		}
		b = end(d, work)
	}
	return b, embedded
}

// inWork is the path of a field of the work subdocument.
func inWork(field string) string { return fieldWork + "." + field }

// workDocument writes the work, with what is empty left out: an index on a field holds only documents that have it.
// The fingerprint may be left out where it is the record's.
func workDocument(w *job.Work, fingerprint bool) bsoncore.Document {
	top, b := bsoncore.AppendDocumentStart(nil)
	return end(appendWork(b, w, fingerprint), top)
}

func appendWork(b []byte, w *job.Work, fingerprint bool) []byte {
	b = bsoncore.AppendStringElement(b, workState, w.State.String())
	b = bsoncore.AppendStringElement(b, workMode, w.Mode.String())
	if !w.Due.IsZero() {
		b = bsoncore.AppendTimeElement(b, workDue, w.Due)
		b = bsoncore.AppendInt64Element(b, workGranted, w.Granted.Milliseconds())
	}
	b = appendNonEmpty(b, workToken, w.Token)
	b = bsoncore.AppendInt64Element(b, workGeneration, w.Generation)
	b = bsoncore.AppendInt32Element(b, workAttempts, w.Attempts)
	if w.Lapses > 0 {
		b = bsoncore.AppendInt32Element(b, workLapses, w.Lapses)
	}
	if w.Requeues > 0 {
		b = bsoncore.AppendInt32Element(b, workRequeues, w.Requeues)
	}
	b = appendNonEmpty(b, workRequestID, w.RequestID)
	if w.RequestID != "" && fingerprint {
		b = bsoncore.AppendBinaryElement(b, workFingerprint, 0, []byte(w.RequestFingerprint))
	}
	b = appendNonEmpty(b, workClaimID, w.ClaimID)
	b = appendNonEmpty(b, workResult, w.Result)
	b = appendNonEmpty(b, workError, w.Error)
	if w.Caller != "" {
		lease, d := bsoncore.AppendDocumentElementStart(b, workLease)
		b = end(appendNonEmpty(d, leaseCaller, w.Caller), lease)
	}
	return b
}

// workChange is the update that turns the work before into the one after, field by field: a newer version may have put
// more beside ours. What is kept for as long as a lease stands under work.lease, and goes with it whole, whatever there is.
func workChange(before, after *job.Work) bson.D { return changeOf(workFields(before, after)) }

// workFields are the fields that [workChange] sets and unsets.
func workFields(before, after *job.Work) (set, unset bson.D) {
	was, is := bson.Raw(workDocument(before, true)), bson.Raw(workDocument(after, true))
	// Both documents are our own, and well formed.
	now, _ := is.Elements()
	for _, e := range now {
		if v := e.Value(); !v.Equal(was.Lookup(e.Key())) {
			set = append(set, bson.E{Key: inWork(e.Key()), Value: v})
		}
	}
	then, _ := was.Elements()
	for _, e := range then {
		if is.Lookup(e.Key()).Type == 0 && e.Key() != workLease {
			unset = append(unset, bson.E{Key: inWork(e.Key()), Value: ""})
		}
	}
	ended := before.State == job.StateLeased && (after.State != job.StateLeased || after.Token != before.Token)
	switch lease := is.Lookup(workLease); {
	case ended && lease.Type != 0 && lease.Equal(was.Lookup(workLease)):
		set = append(set, bson.E{Key: inWork(workLease), Value: lease})
	case ended && lease.Type == 0:
		unset = append(unset, bson.E{Key: inWork(workLease), Value: ""})
	}
	if !before.Due.IsZero() && after.Due.IsZero() {
		unset = append(unset, bson.E{Key: inWork(workGroup), Value: ""})
	}
	return set, unset
}

// changeOf is the update that sets and unsets these fields; nil without any.
func changeOf(set, unset bson.D) (change bson.D) {
	if len(set) > 0 {
		change = append(change, bson.E{Key: "$set", Value: set})
	}
	if len(unset) > 0 {
		change = append(change, bson.E{Key: "$unset", Value: unset})
	}
	return change
}

func appendConflict(b []byte, c *job.Conflict) []byte {
	d, b := bsoncore.AppendDocumentElementStart(b, fieldLastConflict)
	b = bsoncore.AppendStringElement(b, conflictKind, c.Kind.String())
	b = bsoncore.AppendStringElement(b, conflictEvent, c.Event)
	b = bsoncore.AppendStringElement(b, conflictStatus, c.Status)
	return end(bsoncore.AppendTimeElement(b, conflictTime, c.Time), d)
}

func appendNonEmpty(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return bsoncore.AppendStringElement(b, key, value)
}

// end closes the document that starts at index. bsoncore's own function fails only for an index outside of b.
func end(b []byte, index int32) []byte {
	b = append(b, 0)
	return bsoncore.UpdateLength(b, index, int32(len(b))-index)
}
