package mongostore

import (
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// decode reads a document. Others write to the collection too, so a field of an unexpected type counts as absent, except
// that the counter may be any number. The error is about a payload that cannot be rendered.
func decode(doc bson.Raw, withBody bool) (job.Record, error) {
	r := job.Record{Work: job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}}
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
				r.Work = decodeWork(d)
			}
		case fieldPayloadDropped:
			r.PayloadDropped = timeOf(v)
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

func intOf(v bson.RawValue) int64 {
	n, _ := v.AsInt64OK() // int32, int64 and double; a JavaScript writer may leave any of them
	return n
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
