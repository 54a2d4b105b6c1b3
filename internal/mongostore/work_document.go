package mongostore

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
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
)

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
			w.Token, _ = v.StringValueOK()
		case workGeneration:
			w.Generation = intOf(v)
		case workAttempts:
			w.Attempts = int32(intOf(v))
		case workRequestID:
			w.RequestID, _ = v.StringValueOK()
		case workFingerprint:
			w.RequestFingerprint = bytesOf(v)
		case workClaimID:
			w.ClaimID, _ = v.StringValueOK()
		case workResult:
			w.Result, _ = v.StringValueOK()
		case workError:
			w.Error, _ = v.StringValueOK()
		}
	}
	if !w.Due.IsZero() {
		w.Granted = granted
	}
	return w
}

// asRead matches the document of r for as long as nobody has changed its work.
func asRead(r *job.Record) bson.D {
	return bson.D{
		{Key: fieldJobID, Value: r.JobID},
		{Key: inWork(workState), Value: r.Work.State.String()},
		{Key: inWork(workGeneration), Value: r.Work.Generation},
		{Key: inWork(workDue), Value: r.Work.Due},
	}
}

// setWork replaces the work.
func setWork(w *job.Work) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: fieldWork, Value: bson.Raw(workDocument(w))}}}}
}
