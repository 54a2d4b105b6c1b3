package mongostore

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/payload"
)

// stored is a record and its work as it stands in the document.
type stored struct {
	job.Record
	work bson.Raw
	// lastSeen and deliveries are these fields as they were read.
	lastSeen, deliveries bson.RawValue
	// form is how the payload document gives the body back; noForm where it need not.
	form payload.Form
}

const (
	noForm      payload.Form = -1
	unknownForm payload.Form = -2
)

// errForm: a newer version wrote the body in a way that this one does not know.
var errForm = errors.New("its payload_form is none that this version knows")

// unchanged matches the document for as long as nobody has changed its work: by the values as they were read, whatever
// their types, so that what was found can always be taken.
func (r *stored) unchanged() bson.D {
	f := bson.D{{Key: fieldJobID, Value: r.JobID}}
	for _, field := range []string{workState, workGeneration, workDue, workGranted} {
		f = append(f, bson.E{Key: inWork(field), Value: asItIs(r.work, field)})
	}
	return f
}

// asItIs matches what a field of a document is, whatever its type.
func asItIs(doc bson.Raw, field string) bson.D { return is(doc.Lookup(field)) }

// is matches a field that has the value, or is not there.
func is(v bson.RawValue) bson.D {
	if v.Type != 0 {
		return bson.D{{Key: "$eq", Value: v}}
	}
	return bson.D{{Key: "$exists", Value: false}}
}

// bodyDropped matches the document for as long as its body was dropped, or was not, as it was read.
func (r *stored) bodyDropped() bson.E {
	is := bson.E{Key: "$type", Value: "date"}
	if r.BodyDropped.IsZero() {
		is = bson.E{Key: "$not", Value: bson.D{is}}
	}
	return bson.E{Key: fieldPayloadDropped, Value: bson.D{is}}
}

// decode reads a document. Others write to the collection too, so a field of an unexpected type counts as absent, except
// that the counter may be any number. The error is about a payload that cannot be rendered.
func decode(doc bson.Raw, withBody bool) (stored, error) {
	r := stored{Record: job.Record{Work: job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}}, form: noForm}
	elements, err := doc.Elements()
	if err != nil {
		return r, fmt.Errorf("malformed document: %w", err)
	}
	var embedded bson.RawValue
	for _, e := range elements {
		v := e.Value()
		switch e.Key() {
		case fieldJobID:
			r.JobID = textOf(v)
		case fieldEvent:
			r.Event = textOf(v)
		case fieldStatus:
			r.Status = textOf(v)
		case fieldFirstSeen:
			r.FirstSeen = timeOf(v)
		case fieldLastSeen:
			r.LastSeen, r.lastSeen = timeOf(v), cloned(v)
		case fieldDeliveries:
			r.Deliveries, r.deliveries = intOf(v), cloned(v)
		case fieldFingerprint:
			r.Fingerprint = bytesOf(v)
		case fieldRequestID:
			r.RequestID = textOf(v)
		case fieldCaller:
			r.Caller = textOf(v)
		case fieldSource:
			r.Source = textOf(v)
		case fieldContentType:
			r.ContentType = textOf(v)
		case fieldTraceparent:
			r.Traceparent = textOf(v)
		case fieldPayloadOmitted:
			r.BodyOmitted = max(0, intOf(v))
		case fieldConflicts:
			r.Conflicts = intOf(v)
		case fieldLastConflict:
			if d, ok := v.DocumentOK(); ok {
				r.LastConflict = decodeConflict(d)
			}
		case fieldWork:
			if d, ok := v.DocumentOK(); ok {
				r.work = slices.Clone(d)
				r.Work = decodeWork(d)
			}
		case fieldPayloadDropped:
			r.BodyDropped = timeOf(v)
		case fieldPayload:
			embedded = v
		case fieldPayloadForm:
			r.form = formIn(v)
		case fieldPayloadText:
			if s := textOf(v); s != "" || v.Type == bson.TypeString {
				r.Body = job.Body{Kind: job.BodyText, Data: s}
			}
		case fieldPayloadBytes:
			if v.Type == bson.TypeBinary {
				r.Body = job.Body{Kind: job.BodyBytes, Data: bytesOf(v)}
			}
		}
	}
	if r.Work.RequestID != "" && r.work.Lookup(workFingerprint).Type == 0 {
		r.Work.RequestFingerprint = r.Fingerprint
	}
	if !withBody {
		r.Body = job.Body{}
		return r, nil
	}
	if r.Body.Kind == job.BodyNone {
		r.Body, r.BodyEdited, err = r.bodyOf(embedded)
	}
	return r, err
}

// formIn is the form that a document names.
func formIn(v bson.RawValue) payload.Form {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		f, isDouble := v.DoubleOK()
		if n := intOf(v); (!isDouble || f == float64(n)) && 0 <= n && n <= int64(payload.MaxForm) {
			return payload.Form(n)
		}
	}
	return unknownForm
}

// bodyOf is the body that a payload document gives back. What is not ours is rendered as it stands, and so is what was ours
// and has been edited.
func (r *stored) bodyOf(embedded bson.RawValue) (b job.Body, edited bool, err error) {
	switch {
	case r.form == unknownForm:
		return b, false, errForm
	case len(embedded.Value) == 0:
		return b, r.form != noForm && r.BodyDropped.IsZero(), nil
	case r.form != noForm && embedded.Type == bson.TypeEmbeddedDocument:
		// Drivers of other languages make doubles of whole numbers when they write a document back.
		for _, integers := range []bool{false, true} {
			text, ok := payload.Render(make([]byte, 0, len(embedded.Value)), embedded.Value, r.form, integers, job.MaxBodyBytes)
			if sum := sha256.Sum256(text); ok && string(sum[:]) == r.Fingerprint {
				return job.Body{Kind: job.BodyText, Data: string(text)}, false, nil
			}
		}
	}
	b, err = render(embedded)
	return b, r.form != noForm, err
}

// decodeWork reads a work subdocument. One that cannot be read is in a state that is not known: it starts no work.
func decodeWork(doc bson.Raw) job.Work {
	w := job.Work{State: job.StateUnknown}
	granted := job.MaxLease
	elements, err := doc.Elements()
	if err != nil {
		return w
	}
	for _, e := range elements {
		v := e.Value()
		switch e.Key() {
		case workState:
			w.State = job.StateNamed(textOf(v))
		case workMode:
			w.Mode = job.ModeNamed(textOf(v))
		case workDue:
			w.Due = timeOf(v)
		case workGranted:
			granted = time.Duration(intOf(v)) * time.Millisecond
		case workLapses:
			w.Lapses = int32(intOf(v))
		case workRequeues:
			w.Requeues = int32(intOf(v))
		case workToken:
			w.Token = textOf(v)
		case workGeneration:
			w.Generation = intOf(v)
		case workAttempts:
			w.Attempts = int32(intOf(v))
		case workRequestID:
			w.RequestID = textOf(v)
		case workFingerprint:
			w.RequestFingerprint = bytesOf(v)
		case workClaimID:
			w.ClaimID = textOf(v)
		case workLease:
			if d, ok := v.DocumentOK(); ok {
				w.Caller = textOf(d.Lookup(leaseCaller))
			}
		case workResult:
			w.Result = textOf(v)
		case workError:
			w.Error = textOf(v)
		}
	}
	if !w.Due.IsZero() {
		w.Granted = granted
	}
	return w
}

func decodeConflict(doc bson.Raw) *job.Conflict {
	c := job.Conflict{}
	text := func(key string) string { return textOf(doc.Lookup(key)) }
	c.Kind = job.ConflictNamed(text(conflictKind))
	c.Event, c.Status, c.Time = text(conflictEvent), text(conflictStatus), timeOf(doc.Lookup(conflictTime))
	return &c
}

// cloned is a value that stays when the document it is of is gone.
func cloned(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)}
}

func timeOf(v bson.RawValue) time.Time {
	if ms, ok := v.DateTimeOK(); ok {
		return time.UnixMilli(ms).UTC()
	}
	return time.Time{}
}

// intOf is a number of any type as a whole one, and the nearest that an int64 can hold. JavaScript writers leave int32, int64
// or double, others Decimal128.
func intOf(v bson.RawValue) int64 {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.AsInt64OK()
		return n
	case bson.TypeDouble:
		if f, _ := v.DoubleOK(); !math.IsNaN(f) {
			n, _ := big.NewFloat(f).Int64()
			return n
		}
	case bson.TypeDecimal128:
		d, _ := v.Decimal128OK()
		if f, _, err := big.ParseFloat(d.String(), 10, 128, big.ToZero); err == nil {
			n, _ := f.Int64()
			return n
		}
	}
	return 0
}

// textOf is a string of valid UTF-8. BSON promises that, but no database checks it, and no answer of ours could hold
// anything else.
func textOf(v bson.RawValue) string {
	s, ok := v.StringValueOK()
	if !ok {
		return ""
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func bytesOf(v bson.RawValue) string {
	_, b, _ := v.BinaryOK()
	return string(b)
}
