package mongostore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

// Copied is what became of records that were to be copied.
type Copied struct {
	// Written is how many were not there before, Present how many were there already, the same in all.
	Written, Present int
	// Differing are the ids of jobs that have another record here. It was left as it is.
	Differing []string
}

// Copy writes records of another store as they are, with their payloads, deliveries and work. A job that is recorded here
// already keeps its record, so copying again does no harm and goes on where an earlier copy ended. When it fails, some
// may have been written. At most a few MiB should be copied at a time: it is one bulk. The error matches that of a context
// which has ended.
func (s *Store) Copy(ctx context.Context, records []job.Record) (Copied, error) {
	var out Copied
	if err := ctx.Err(); err != nil {
		return out, interruptedError{err}
	}
	done, err := s.enter()
	if err != nil {
		return out, err
	}
	defer done()
	ctx, endSession := s.session(ctx)
	defer endSession()
	pending := make([]copying, len(records))
	for i := range records {
		r, embed := &records[i], s.embedding()
		if sum := sha256.Sum256([]byte(r.Body.Data)); string(sum[:]) != r.Fingerprint {
			embed = min(embed, besideText) // It was edited, and nobody could tell that its document gives it back.
		}
		pending[i] = copying{record: r, embed: embed}
	}
	slices.SortFunc(pending, func(a, b copying) int { return cmp.Compare(a.record.JobID, b.record.JobID) })
	for t := s.newTries(ctx); len(pending) > 0; {
		var again []copying
		for len(pending) > 0 {
			n := s.fill(pending)
			some, err := s.copy(ctx, pending[:n], &out)
			if err != nil {
				return out, err
			}
			again, pending = append(again, some...), pending[n:]
		}
		if pending = again; len(pending) == 0 {
			break
		}
		more := t.again(&failure{fateUnknown, pending[0].why})
		if err := ctx.Err(); err != nil { // what the driver made of it says less
			return out, interruptedError{err}
		}
		if !more {
			return out, fmt.Errorf("%d jobs could not be copied, job %q among them: %w", len(pending), pending[0].record.JobID, pending[0].why)
		}
	}
	return out, nil
}

// CopyExpectations writes expectations of another store as they are. One that is here already stays as it is.
func (s *Store) CopyExpectations(ctx context.Context, all []job.Expectation) error {
	models := make([]mongo.WriteModel, len(all))
	for i := range all {
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: fieldID, Value: all[i].JobID}}).SetUpdate(newExpectation(&all[i], job.NewToken())).SetUpsert(true)
	}
	return s.copyBeside(ctx, s.expected, models)
}

// CopyPauses writes pauses of another store as they are. One that is here already stays as it is.
func (s *Store) CopyPauses(ctx context.Context, all []job.Pause) error {
	models := make([]mongo.WriteModel, len(all))
	for i, p := range all {
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: fieldID, Value: p.Prefix}}).SetUpdate(newPause(p.Since, p.Reason)).SetUpsert(true)
	}
	return s.copyBeside(ctx, s.pausedJobs, models)
}

// copyBeside makes upserts that may be repeated, so many at a time.
func (s *Store) copyBeside(ctx context.Context, coll *mongo.Collection, models []mongo.WriteModel) error {
	done, err := s.enter()
	if err != nil {
		return err
	}
	defer done()
	for part := range slices.Chunk(models, copiedAtOnce) {
		for t := s.newTries(ctx); ; {
			tracked, sent := track(ctx)
			_, err := coll.BulkWrite(tracked, part, options.BulkWrite().SetOrdered(false))
			if err == nil {
				break
			}
			if !t.again(writeFailed(err, sent)) {
				return t.err()
			}
		}
	}
	return nil
}

// copiedAtOnce is how many of what stands beside the jobs are copied at a time.
const copiedAtOnce = 1000

// fill writes the upserts of as many records as go into one bulk, and tells how many those are.
func (s *Store) fill(pending []copying) (n int) {
	size := 0
	for n < len(pending) {
		c := &pending[n]
		c.update, c.embedded = copyOf(c.record, c.embed)
		if size += len(c.update) + len(c.record.JobID) + 256; n > 0 && size > maxBulk {
			break
		}
		n++
	}
	return n
}

// interruptedError is the error of a context that has ended, for people.
type interruptedError struct{ cause error }

func (interruptedError) Error() string   { return "interrupted" }
func (e interruptedError) Unwrap() error { return e.cause }

// copying is a record on its way.
type copying struct {
	record   *job.Record
	embed    embedding
	embedded bool // in the latest try
	update   bson.Raw
	looks    int // how often a hint of it was refused, and the unique index was found good
	// why is why it is to be tried again.
	why error
}

// copy sends one bulk and counts what came of it. It returns the records that are to be sent again; the error is about
// one that the database takes in no form.
func (s *Store) copy(ctx context.Context, pending []copying, out *Copied) (again []copying, err error) {
	hint := s.hintName()
	models := make([]mongo.WriteModel, len(pending))
	for i, c := range pending {
		m := mongo.NewUpdateOneModel().SetFilter(filter(c.record.JobID)).SetUpdate(c.update).SetUpsert(true)
		if hint != "" {
			m.SetHint(hint)
		}
		models[i] = m
	}
	tracked, sent := track(ctx)
	result, err := s.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if sent.commands > 1 || err != nil && (!errors.As(err, &bulk) || bulk.WriteConcernError != nil) {
		for i := range pending {
			pending[i].why = s.explain(cmp.Or(err, errSplit))
		}
		return slices.Clone(pending), nil // whatever was written is found to be there by the next try
	}
	failed := failedItems(bulk)
	confirm := len(failed) > 0 && s.deployment.Load().kind == sharded // see [round.write]
	var there []copying
	for i, c := range pending {
		e, bad := failed[i]
		_, written := result.UpsertedIDs[int64(i)]
		switch {
		case bad && hint != "" && aboutHint(e.Code):
			if err := s.indexSuspect(ctx); err != nil {
				return nil, err
			}
			if c.looks++; c.looks == mostLooks {
				return nil, refused(&c, e)
			}
			c.why = e
			again = append(again, c)
		case bad && c.embedded && aboutDocument(e.Code):
			c.embed, c.why = textAlone, e
			again = append(again, c)
		case bad && (&failure{itemFate(e), e}).hopeless():
			return nil, refused(&c, e)
		case bad: // it lost a race, for example, and the next try says to what
			c.why = e
			again = append(again, c)
		case written && !confirm:
			out.Written++
		default:
			there = append(there, c)
		}
	}
	return append(again, s.compare(ctx, there, out)...), nil
}

func refused(c *copying, e mongo.WriteError) error {
	return fmt.Errorf("job %q: the database refuses it: %w", c.record.JobID, e)
}

// compare counts the records that are here already, by whether they are the same. It returns those of which it could
// not be found out.
func (s *Store) compare(ctx context.Context, there []copying, out *Copied) (again []copying) {
	if len(there) == 0 {
		return nil
	}
	ids := make(bson.A, len(there))
	for i, c := range there {
		ids[i] = c.record.JobID
	}
	records := make(map[string]job.Record, len(there))
	var unreadable error
	f := s.each(ctx, s.coll, bson.D{{Key: fieldJobID, Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find(), func(doc bson.Raw) bool {
		r, err := decode(doc, true)
		records[r.JobID], unreadable = r.Record, err
		return err == nil
	})
	if err := cmp.Or(f.orNil(), unreadable); err != nil {
		for i := range there {
			there[i].why = s.explain(err)
		}
		return there
	}
	for _, c := range there {
		switch r, ok := records[c.record.JobID]; {
		case !ok: // deleted since
			c.why = job.ErrNotFound
			again = append(again, c)
		case sameRecord(r, *c.record):
			out.Present++
		default:
			out.Differing = append(out.Differing, c.record.JobID)
		}
	}
	return again
}

func sameRecord(a, b job.Record) bool {
	ca, cb := a.LastConflict, b.LastConflict
	if (ca == nil) != (cb == nil) || ca != nil && *ca != *cb {
		return false
	}
	a.LastConflict, b.LastConflict = nil, nil
	return a == b
}

// copyOf writes the upsert that makes a record as it is, and tells whether the body is in it as a document.
func copyOf(r *job.Record, embed embedding) (update bson.Raw, embedded bool) {
	top, b := bsoncore.AppendDocumentStart(make([]byte, 0, 1024+len(r.Body.Data)*5/2))
	insert, b := bsoncore.AppendDocumentElementStart(b, "$setOnInsert")
	b, embedded = appendRecord(b, r, embed)
	b = bsoncore.AppendInt64Element(b, fieldDeliveries, r.Deliveries)
	if !r.LastSeen.IsZero() {
		b = bsoncore.AppendTimeElement(b, fieldLastSeen, r.LastSeen)
	}
	if !r.BodyDropped.IsZero() {
		b = bsoncore.AppendTimeElement(b, fieldPayloadDropped, r.BodyDropped)
	}
	if r.Conflicts > 0 {
		b = bsoncore.AppendInt64Element(b, fieldConflicts, r.Conflicts)
	}
	if c := r.LastConflict; c != nil {
		b = appendConflict(b, c)
	}
	return bson.Raw(end(end(b, insert), top)), embedded
}
