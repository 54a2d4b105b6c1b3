package mongostore

import (
	"errors"

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
	fieldPayloadBytes   = "payload_bytes"
	fieldPayloadDropped = "payload_dropped"
	fieldFingerprint    = "fingerprint"
	fieldRequestID      = "request_id"
	fieldSource         = "source"
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
	workLapses      = "lapses"
	workToken       = "token"
	workGeneration  = "generation"
	workAttempts    = "attempts"
	workRequestID   = "request_id"
	workFingerprint = "fingerprint"
	workClaimID     = "claim_id"
	workResult      = "result"
	workError       = "error"
	workLease       = "lease" // nothing of ours yet; see [workChange]
)

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

// newUpdate writes the update for n deliveries of which r is the record that the first one makes. With embed set, a body
// that is one JSON object and that BSON holds faithfully is stored as a document beside its text.
func newUpdate(r *job.Record, n int, object, embed bool) update {
	var u update
	// Most bodies grow by less than a quarter on their way to BSON, and stand in the update twice.
	b := make([]byte, 0, 512+len(r.Body.Data)*5/2)
	top, b := bsoncore.AppendDocumentStart(b)

	insert, b := bsoncore.AppendDocumentElementStart(b, "$setOnInsert")
	b, u.embedded = appendRecord(b, r, object && embed)
	b = end(b, insert)

	inc, b := bsoncore.AppendDocumentElementStart(b, "$inc")
	b = end(bsoncore.AppendInt32Element(b, fieldDeliveries, int32(n)), inc)
	seen, b := bsoncore.AppendDocumentElementStart(b, "$max")
	b = end(bsoncore.AppendTimeElement(b, fieldLastSeen, r.LastSeen), seen)

	u.bytes = end(b, top)
	return u
}

// appendRecord appends what stays as it is while deliveries are counted. With embed set, a body that is one JSON object
// stands there as a document as well, if BSON can hold it; embedded tells whether it does.
func appendRecord(b []byte, r *job.Record, embed bool) (_ []byte, embedded bool) {
	b = appendNonEmpty(b, fieldEvent, r.Event)
	b = appendNonEmpty(b, fieldStatus, r.Status)
	if embed && r.Body.Kind == job.BodyText {
		b, embedded = appendEmbedded(b, r.Body.Data)
	}
	b = bsoncore.AppendTimeElement(b, fieldFirstSeen, r.FirstSeen)
	switch r.Body.Kind {
	case job.BodyText:
		b = bsoncore.AppendStringElement(b, fieldPayloadText, r.Body.Data)
	case job.BodyBytes:
		b = bsoncore.AppendBinaryElement(b, fieldPayloadBytes, 0, []byte(r.Body.Data))
	}
	if r.Fingerprint != "" {
		b = bsoncore.AppendBinaryElement(b, fieldFingerprint, 0, []byte(r.Fingerprint))
	}
	b = appendNonEmpty(b, fieldRequestID, r.RequestID)
	b = appendNonEmpty(b, fieldSource, r.Source)
	if r.Work.State != job.StateUntracked {
		b = bsoncore.AppendDocumentElement(b, fieldWork, workDocument(&r.Work))
	}
	return b, embedded
}

// inWork is the path of a field of the work subdocument.
func inWork(field string) string { return fieldWork + "." + field }

// workDocument writes the work, with what is empty left out: an index on a field holds only documents that have it.
func workDocument(w *job.Work) bsoncore.Document {
	top, b := bsoncore.AppendDocumentStart(nil)
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
	if w.RequestID != "" {
		b = bsoncore.AppendStringElement(b, workRequestID, w.RequestID)
		b = bsoncore.AppendBinaryElement(b, workFingerprint, 0, []byte(w.RequestFingerprint))
	}
	b = appendNonEmpty(b, workClaimID, w.ClaimID)
	b = appendNonEmpty(b, workResult, w.Result)
	b = appendNonEmpty(b, workError, w.Error)
	return end(b, top)
}

// workChange is the update that turns the work before into the one after, field by field: a newer version may have put
// more beside ours. What such a version keeps for as long as a lease stands under work.lease, and goes with it.
func workChange(before, after *job.Work) bson.D {
	was, is := bson.Raw(workDocument(before)), bson.Raw(workDocument(after))
	var set, unset bson.D
	// Both documents are our own, and well formed.
	now, _ := is.Elements()
	for _, e := range now {
		if v := e.Value(); !v.Equal(was.Lookup(e.Key())) {
			set = append(set, bson.E{Key: inWork(e.Key()), Value: v})
		}
	}
	then, _ := was.Elements()
	for _, e := range then {
		if is.Lookup(e.Key()).Type == 0 {
			unset = append(unset, bson.E{Key: inWork(e.Key()), Value: ""})
		}
	}
	if before.State == job.StateLeased && (after.State != job.StateLeased || after.Token != before.Token) {
		unset = append(unset, bson.E{Key: inWork(workLease), Value: ""})
	}
	var change bson.D
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

// appendEmbedded appends the body as a document. When BSON cannot hold it, or not within the bounds, b comes back as it
// was.
func appendEmbedded(b []byte, body string) ([]byte, bool) {
	w := bsonWriter{b: b}
	if err := payload.Walk(body, fieldPayload, maxDepth, &w); err != nil || w.err != nil {
		return b, false
	}
	if len(w.b)-len(b)+len(body)+ownFields > maxDocument {
		return b, false
	}
	return w.b, true
}

// bsonWriter is a payload.Sink that appends BSON.
type bsonWriter struct {
	b     []byte
	open  []int32
	err   error
	stack [16]int32 // room for open in the common case
}

var errTooLarge = errors.New("document too large")

func (w *bsonWriter) begin(index int32, b []byte) {
	if w.open == nil {
		w.open = w.stack[:0]
	}
	w.b, w.open = b, append(w.open, index)
}

func (w *bsonWriter) end() {
	last := len(w.open) - 1
	w.b = end(w.b, w.open[last])
	w.open = w.open[:last]
}

// room stops the document from growing past what can be stored: small JSON can be large BSON.
func (w *bsonWriter) room() bool {
	if len(w.b) > maxDocument {
		w.err = errTooLarge
	}
	return w.err == nil
}

func (w *bsonWriter) BeginObject(key string) { w.begin(bsoncore.AppendDocumentElementStart(w.b, key)) }
func (w *bsonWriter) BeginArray(key string)  { w.begin(bsoncore.AppendArrayElementStart(w.b, key)) }
func (w *bsonWriter) EndObject()             { w.end() }
func (w *bsonWriter) EndArray()              { w.end() }

func (w *bsonWriter) String(key, value string) {
	if w.room() {
		w.b = bsoncore.AppendStringElement(w.b, key, value)
	}
}

func (w *bsonWriter) Int64(key string, value int64) {
	if w.room() {
		w.b = bsoncore.AppendInt64Element(w.b, key, value)
	}
}

func (w *bsonWriter) Double(key string, value float64) {
	if w.room() {
		w.b = bsoncore.AppendDoubleElement(w.b, key, value)
	}
}

func (w *bsonWriter) Bool(key string, value bool) {
	if w.room() {
		w.b = bsoncore.AppendBooleanElement(w.b, key, value)
	}
}

func (w *bsonWriter) Null(key string) {
	if w.room() {
		w.b = bsoncore.AppendNullElement(w.b, key)
	}
}

// end closes the document that starts at index. bsoncore's own function fails only for an index outside of b.
func end(b []byte, index int32) []byte {
	b = append(b, 0)
	return bsoncore.UpdateLength(b, index, int32(len(b))-index)
}
