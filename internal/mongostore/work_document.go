package mongostore

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

// The fields of the work subdocument. A record without one is untracked.
const (
	workState       = "state"
	workMode        = "mode"
	workDue         = "due"
	workToken       = "token"
	workGeneration  = "generation"
	workAttempts    = "attempts"
	workRequestID   = "request_id"
	workFingerprint = "fingerprint"
	workClaimID     = "claim_id"
	workResult      = "result"
	workError       = "error"
)

// The names of states and modes in the document, by their numbers.
var (
	stateNames = []string{"", "untracked", "queued", "leased", "completed", "dead"}
	modeNames  = []string{"", "untracked", "leased", "queued"}
)

// inWork is the path of a field of the work subdocument.
func inWork(field string) string { return fieldWork + "." + field }

// workDocument writes the work, with what is empty left out: an index on a field holds only documents that have it.
func workDocument(w *job.Work) bsoncore.Document {
	top, b := bsoncore.AppendDocumentStart(nil)
	b = bsoncore.AppendStringElement(b, workState, stateNames[w.State])
	b = bsoncore.AppendStringElement(b, workMode, modeNames[w.Mode])
	if !w.Due.IsZero() {
		b = bsoncore.AppendTimeElement(b, workDue, w.Due)
	}
	b = appendNonEmpty(b, workToken, w.Token)
	b = bsoncore.AppendInt64Element(b, workGeneration, w.Generation)
	b = bsoncore.AppendInt32Element(b, workAttempts, w.Attempts)
	if w.RequestID != "" {
		b = bsoncore.AppendStringElement(b, workRequestID, w.RequestID)
		b = bsoncore.AppendBinaryElement(b, workFingerprint, 0, []byte(w.RequestFingerprint))
	}
	b = appendNonEmpty(b, workClaimID, w.ClaimID)
	b = appendNonEmpty(b, workResult, w.Result)
	b = appendNonEmpty(b, workError, w.Error)
	return end(b, top)
}

// decodeWork reads a work subdocument. A state that we do not know counts as untracked: it starts no work.
func decodeWork(doc bson.Raw) job.Work {
	w := job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}
	elements, err := doc.Elements()
	if err != nil {
		return w
	}
	for _, e := range elements {
		v := e.Value()
		switch e.Key() {
		case workState:
			w.State = job.WorkState(named(stateNames, v, int(job.StateUntracked)))
		case workMode:
			w.Mode = job.WorkMode(named(modeNames, v, int(job.ModeUntracked)))
		case workDue:
			w.Due = timeOf(v)
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
	return w
}

// named is the number of a name, or the given one for a name that is not known.
func named(names []string, v bson.RawValue, unknown int) int {
	name, _ := v.StringValueOK()
	if i := slices.Index(names, name); i > 0 {
		return i
	}
	return unknown
}

// asRead matches the document of r for as long as nobody has changed its work.
func asRead(r *job.Record) bson.D {
	return bson.D{
		{Key: fieldJobID, Value: r.JobID},
		{Key: inWork(workState), Value: stateNames[r.Work.State]},
		{Key: inWork(workGeneration), Value: r.Work.Generation},
		{Key: inWork(workDue), Value: r.Work.Due},
	}
}

// setWork replaces the work.
func setWork(w *job.Work) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: fieldWork, Value: bson.Raw(workDocument(w))}}}}
}
