package mongostore

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// stored is a record and its work as it stands in the document.
type stored struct {
	job.Record
	work bson.Raw
}

// unchanged matches the document for as long as nobody has changed its work: by the values as they were read, whatever
// their types, so that what was found can always be taken.
func (r *stored) unchanged() bson.D {
	f := bson.D{{Key: fieldJobID, Value: r.JobID}}
	for _, field := range []string{workState, workGeneration, workDue, workGranted} {
		is := bson.E{Key: "$exists", Value: false}
		if v := r.work.Lookup(field); v.Type != 0 {
			is = bson.E{Key: "$eq", Value: v}
		}
		f = append(f, bson.E{Key: inWork(field), Value: bson.D{is}})
	}
	return f
}

// decode reads a document. Others write to the collection too, so a field of an unexpected type counts as absent, except
// that the counter may be any number. The error is about a payload that cannot be rendered.
func decode(doc bson.Raw, withBody bool) (stored, error) {
	r := stored{Record: job.Record{Work: job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}}}
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
			r.LastSeen = timeOf(v)
		case fieldDeliveries:
			r.Deliveries = intOf(v)
		case fieldFingerprint:
			r.Fingerprint = bytesOf(v)
		case fieldRequestID:
			r.RequestID = textOf(v)
		case fieldSource:
			r.Source = textOf(v)
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
	if !withBody {
		r.Body = job.Body{}
		return r, nil
	}
	if r.Body.Kind == job.BodyNone && len(embedded.Value) > 0 {
		// Somebody else's record: its payload is all there is.
		if r.Body, err = render(embedded); err != nil {
			return r, err
		}
	}
	return r, nil
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
