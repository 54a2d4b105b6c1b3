package mongostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// Requeue implements [job.Store].
func (s *Store) Requeue(ctx context.Context, q job.Requeue) (job.Record, bool, error) {
	done, err := s.begin(ctx)
	if err != nil {
		return job.Record{}, false, err
	}
	defer done()
	var out job.Record
	changed := false // by this call, or by an earlier try of it as far as anybody knows
	_, err = s.decideOn(ctx, q.JobID, func(ctx context.Context, r *stored) (*failure, error) {
		if r == nil {
			return nil, job.ErrNotFound
		}
		next, err := s.requeued(&r.Record, &q)
		if err != nil {
			return nil, err
		}
		if out = r.Record; next == r.Work {
			return nil, errNothing
		}
		f := s.swap(ctx, r, &next, r.bodyDropped())
		out.Work, changed = next, changed || f == nil || f.unknown()
		return f, nil
	})
	if err != nil {
		return job.Record{}, false, err
	}
	return out, changed, nil
}

// requeued is [job.Record.Requeue]. A lease runs for as long as nobody else could take it over.
func (s *Store) requeued(r *job.Record, q *job.Requeue) (job.Work, error) {
	next, err := r.Requeue(q, s.lapsed())
	if err == nil && next != r.Work {
		next.Due = job.Millis(s.now())
	}
	return next, err
}

// deletion is [job.Record.Delete]. A lease runs for as long as nobody else could take it over, and the next job of the id may
// get its first lease by the clock of another member.
func (s *Store) deletion(r *job.Record, d *job.Deletion) (next job.Record, gone bool, err error) {
	next, gone, err = r.Delete(d, s.lapsed())
	if !next.BodyDropped.Equal(r.BodyDropped) {
		next.BodyDropped = job.Millis(s.now())
	}
	return next, gone, err
}

// errNothing says that there is nothing to change.
var errNothing = errors.New("the job is as it is to be already")

// decideOn reads a job and has change change it, on the condition that it is as it was read, until that is done; r is nil
// where there is none. What change refuses is refused only when it does so on the job as it stands at that moment, and not when
// an earlier try may have made the change. So is errNothing believed only of the job as it stands; it is no error.
func (s *Store) decideOn(ctx context.Context, jobID string, change func(ctx context.Context, r *stored) (f *failure, refused error)) (refused bool, err error) {
	ctx, endSession := s.session(ctx)
	defer endSession()
	once := func(read func(context.Context, string, bool) (stored, *failure)) (*failure, error) {
		if err := s.timed(ctx); err != nil {
			return &failure{fateRetry, err}, nil
		}
		r, f := read(ctx, jobID, false)
		switch {
		case f == nil:
			return change(ctx, &r)
		case f.negative():
			return change(ctx, nil)
		}
		return f, nil
	}
	for t := s.newTries(ctx); ; {
		f, refused := once(s.read)
		if refused != nil {
			f, refused = once(s.confirm)
		}
		switch {
		case refused == errNothing:
			return false, nil
		case refused != nil && t.unknown:
			return true, fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, refused)
		case refused != nil:
			return true, refused
		case f == nil:
			return false, nil
		case !t.again(f):
			return false, t.err()
		}
	}
}

// Delete implements [job.Store]. Several are one read and one bulk, on the condition that each job is as it was read; those
// of which that leaves anything open are made one by one, until the database is found to be away.
func (s *Store) Delete(ctx context.Context, ds []job.Deletion) []job.DeleteOutcome {
	out := make([]job.DeleteOutcome, len(ds))
	done, err := s.begin(ctx)
	if err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer done()
	left, doubted, made := make([]int, len(ds)), []int(nil), int64(0)
	for i := range ds {
		left[i] = i
	}
	if len(ds) > 1 {
		left, doubted, made = s.deleteTogether(ctx, ds, out)
	}
	var away error // of those that are not tried any more: each would wait for a server
	alone := func(i int) (done bool) {
		if away != nil {
			out[i].Err = away
			return false
		}
		if out[i].Deleted, done, out[i].Err = s.deleteAlone(ctx, &ds[i]); errors.Is(out[i].Err, errAway) {
			away = s.readError(ctx, &failure{fateUnsent, fmt.Errorf("not tried after %w", out[i].Err)})
		}
		return done
	}
	for _, i := range left {
		alone(i)
	}
	failed := made == int64(len(doubted)) // the bulk, which may have made any of them
	for _, i := range doubted {
		o, done := &out[i], alone(i)
		switch {
		case done && made > 0:
			o.Deleted = true
			made--
		case o.Err != nil && (failed || made > 0 && errors.Is(o.Err, job.ErrUnavailable)):
			if o.Err = fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, o.Err); ctx.Err() != nil {
				o.Err = fmt.Errorf("%w: %w", o.Err, ctx.Err())
			}
		}
	}
	return out
}

// deleteTogether makes deletions in one bulk, and returns the places of those that are to be made one by one. Of those in doubt
// it has made some, as many as made, and the database does not tell which: those that are found to be done.
func (s *Store) deleteTogether(ctx context.Context, ds []job.Deletion, out []job.DeleteOutcome) (left, doubted []int, made int64) {
	ctx, endSession := s.session(ctx)
	defer endSession()
	ids := make([]string, len(ds))
	for i := range ds {
		ids[i] = ds[i].JobID
	}
	expected, f := make(map[string]expectation), (*failure)(nil)
	if slices.ContainsFunc(ds, func(d job.Deletion) bool { return d.Kind == job.DeleteJob }) {
		f = s.each(ctx, s.expected, bson.D{{Key: fieldID, Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find(), func(doc bson.Raw) bool {
			e := decodeExpectation(doc)
			expected[e.JobID] = e
			return true
		})
	}
	var records map[string]stored
	var err error
	if f == nil {
		records, _, err = s.find(ctx, ids)
	}
	if err != nil || s.timed(ctx) != nil {
		records = nil
	}
	var models, gone []mongo.WriteModel
	var sent []int
	for i := range ds {
		r, is := records[ds[i].JobID]
		if !is {
			left = append(left, i)
			continue
		}
		next, remove, err := s.deletion(&r.Record, &ds[i])
		switch {
		case err != nil, !remove && next == r.Record: // to be confirmed
			left = append(left, i)
			continue
		case remove:
			models = append(models, mongo.NewDeleteOneModel().SetFilter(asRead(&r, &ds[i])))
			if e, is := expected[r.JobID]; is {
				gone = append(gone, mongo.NewDeleteOneModel().SetFilter(thatVery(&e)))
			}
		case next.Work.State == job.StateDead && r.Work.State != job.StateDead:
			left = append(left, i) // by itself, to know that it was this call that did it
			continue
		default:
			models = append(models, mongo.NewUpdateOneModel().SetFilter(asRead(&r, &ds[i])).SetUpdate(erasure(&r.Record, &next)))
		}
		sent = append(sent, i)
	}
	if len(models) == 0 {
		return left, nil, 0
	}
	if len(gone) > 0 {
		if _, err := s.expected.BulkWrite(ctx, gone, options.BulkWrite().SetOrdered(false)); err != nil {
			return append(left, sent...), nil, 0
		}
	}
	tracked, t := track(ctx)
	result, err := s.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(false))
	switch {
	case err != nil && t.sent == 0:
		return append(left, sent...), nil, 0
	case err != nil:
		return left, sent, int64(len(sent))
	}
	if made = result.DeletedCount + result.MatchedCount; made < int64(len(models)) {
		return left, sent, made
	}
	for _, i := range sent {
		out[i].Deleted = true
	}
	return left, nil, 0
}

// asRead matches the document for as long as the job's work and body are as they were read, and the job is the one that is meant, which a
// job that is recorded anew is not, however soon; for retention, also for as long as no delivery came, whoever counts it. Records of others have no
// request id: one of those is known by the millisecond in which it was first seen.
func asRead(r *stored, d *job.Deletion) bson.D {
	f := append(r.unchanged(), r.bodyDropped())
	if r.RequestID != "" {
		f = append(f, bson.E{Key: fieldRequestID, Value: r.RequestID})
	}
	if !r.FirstSeen.IsZero() {
		f = append(f, bson.E{Key: fieldFirstSeen, Value: r.FirstSeen})
	}
	if !d.ActiveBefore.IsZero() {
		f = append(f, bson.E{Key: fieldLastSeen, Value: is(r.lastSeen)}, bson.E{Key: fieldDeliveries, Value: is(r.deliveries)})
	}
	return f
}

// erasure is the update that drops a body, and what else differs between the record before and the one after.
func erasure(before, after *job.Record) bson.D {
	set, unset := workFields(&before.Work, &after.Work)
	if !after.BodyDropped.Equal(before.BodyDropped) {
		set = append(set, bson.E{Key: fieldPayloadDropped, Value: after.BodyDropped})
		for _, field := range []string{fieldPayload, fieldPayloadText, fieldPayloadBytes, fieldPayloadForm} {
			unset = append(unset, bson.E{Key: field, Value: ""})
		}
	}
	if before.LastConflict != nil && after.LastConflict == nil {
		unset = append(unset, bson.E{Key: fieldLastConflict, Value: ""})
	}
	return changeOf(set, unset)
}

// deleteAlone makes one deletion. done tells that there was nothing to do any more; deleted is true all the same when an earlier
// try may have done it.
func (s *Store) deleteAlone(ctx context.Context, d *job.Deletion) (deleted, done bool, err error) {
	var expected *expectation
	if d.Kind == job.DeleteJob {
		if expected, err = s.expectedOf(ctx, d.JobID); err != nil {
			return false, false, err
		}
	}
	sent, absent, meant := false, false, (*stored)(nil)
	refused, err := s.decideOn(ctx, d.JobID, func(ctx context.Context, r *stored) (*failure, error) {
		if absent = r == nil || meant != nil && r.RequestID != meant.RequestID; absent {
			return nil, job.ErrNotFound
		}
		next, gone, err := s.deletion(&r.Record, d)
		if err != nil {
			return nil, err
		}
		meant = r
		if done = !gone && next == r.Record; done {
			return nil, errNothing
		}
		if gone && expected != nil {
			if _, f := s.forget(ctx, expected); f != nil {
				return f, nil
			}
		}
		tracked, t := track(ctx)
		n, failed := int64(0), error(nil)
		if gone {
			var result *mongo.DeleteResult
			if result, failed = s.coll.DeleteOne(tracked, asRead(r, d)); failed == nil {
				n = result.DeletedCount
			}
		} else {
			var result *mongo.UpdateResult
			if result, failed = s.coll.UpdateOne(tracked, asRead(r, d), erasure(&r.Record, &next)); failed == nil {
				n = result.MatchedCount
			}
		}
		switch {
		case failed != nil:
			f := writeFailed(failed, t)
			sent = sent || f.unknown()
			s.log.Warn("a deletion failed", "store", s.String(), "job_id", d.JobID, "error", s.explain(f))
			return f, nil
		case n == 0:
			return &failure{fateRetry, errChanged}, nil
		}
		if deleted = true; !gone {
			s.opts.Watch.Tell(d.JobID, &r.Work, &next.Work)
		}
		return nil, nil
	})
	if absent && refused { // gone is gone, whoever did it
		done, err = true, nil
	}
	return err == nil && (deleted || done && sent), err == nil && done, err
}

// expectedOf is what is expected of a job at this moment; nil when nothing is.
func (s *Store) expectedOf(ctx context.Context, jobID string) (*expectation, error) {
	for t := s.newTries(ctx); ; {
		e, f := s.readExpectation(ctx, jobID, true)
		switch {
		case f == nil:
			return &e, nil
		case errors.Is(f, job.ErrNoExpectation):
			return nil, nil
		case !t.again(f):
			return nil, t.err()
		}
	}
}

// The fields of a pause, beside the _id, which is the prefix.
const (
	pauseSince  = "since"
	pauseReason = "reason"
)

// newPause is the upsert that keeps a pause where there is none.
func newPause(since time.Time, reason string) bson.D {
	return bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: pauseSince, Value: since}, {Key: pauseReason, Value: reason}}}}
}

// readPauses reads the pauses as they stand at this moment: a primary that was deposed, and does not know it, would not have the
// latest.
func (s *Store) readPauses(ctx context.Context) ([]job.Pause, *failure) {
	var pauses []job.Pause
	take := func(doc bson.Raw) bool {
		if _, is := doc.Lookup(fieldID).StringValueOK(); is {
			pauses = append(pauses, decodePause(doc))
		}
		return true
	}
	linear, cancel, from := s.confirming(ctx, s.pausedJobs)
	defer cancel()
	var f *failure
	if from != s.pausedJobs {
		if f = s.allLinear(linear, from, take); f != nil { // as the driver repeats its own reads
			f = s.allLinear(linear, from, take)
		}
	}
	if from == s.pausedJobs || hasCode(f.orNil(), unlinearCodes...) {
		f = s.each(ctx, s.pausedJobs, bson.D{}, options.Find(), take)
	}
	slices.SortFunc(pauses, func(a, b job.Pause) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return pauses, f
}

// allLinear calls f with all documents of a small collection, by one linearizable read. The driver says how long the
// context leaves it, as it does not for finds of several documents.
func (s *Store) allLinear(ctx context.Context, coll *mongo.Collection, f func(doc bson.Raw) bool) *failure {
	tracked, sent := track(ctx)
	reply, err := coll.Database().RunCommand(tracked, bson.D{
		{Key: "find", Value: coll.Name()}, {Key: "batchSize", Value: 10 * job.MaxPauses}, {Key: "singleBatch", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}},
	}).Raw()
	if err != nil {
		return readFailed(err, sent)
	}
	batch, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	docs, err := batch.Values()
	if err != nil {
		return &failure{fateRetry, err}
	}
	for _, v := range docs {
		if doc, is := v.DocumentOK(); is {
			f(doc)
		}
	}
	return nil
}

func decodePause(doc bson.Raw) job.Pause {
	return job.Pause{Prefix: textOf(doc.Lookup(fieldID)), Since: timeOf(doc.Lookup(pauseSince)), Reason: textOf(doc.Lookup(pauseReason))}
}

// Pause implements [job.Store].
func (s *Store) Pause(ctx context.Context, prefix, reason string) (kept job.Pause, err error) {
	since := job.Millis(s.now())
	err = s.changePause(ctx, prefix, func(ctx context.Context, doc bson.Raw, all []job.Pause) (done bool, err error) {
		switch {
		case doc != nil:
			kept = decodePause(doc)
			return true, nil
		case len(all) >= job.MaxPauses:
			return false, job.ErrTooManyPauses
		}
		_, err = s.pausedJobs.UpdateOne(ctx, bson.D{{Key: fieldID, Value: prefix}}, newPause(since, reason), options.UpdateOne().SetUpsert(true))
		return false, err
	})
	return kept, err
}

// Unpause implements [job.Store].
func (s *Store) Unpause(ctx context.Context, prefix string) (was bool, err error) {
	err = s.changePause(ctx, prefix, func(ctx context.Context, doc bson.Raw, _ []job.Pause) (done bool, err error) {
		if doc == nil {
			return true, nil
		}
		was = true
		_, err = s.pausedJobs.DeleteOne(ctx, bson.D{{Key: fieldID, Value: prefix}, {Key: pauseSince, Value: asItIs(doc, pauseSince)}})
		return false, err
	})
	return was, err
}

// changePause has change change the pause of a prefix until it says that it is done. It is given the pause as it stands at that
// moment, since a pause that an operator is told of is in force, and one that was ended is not; and all of them, which are
// in force here by then.
func (s *Store) changePause(
	ctx context.Context, prefix string, change func(ctx context.Context, doc bson.Raw, all []job.Pause) (done bool, err error),
) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, endSession := s.session(ctx)
	defer endSession()
	for t := s.newTries(ctx); ; {
		doc, f := s.readOne(ctx, s.pausedJobs, prefix, true)
		var all []job.Pause
		if f == nil {
			all, f = s.loadPauses(ctx)
		}
		if f == nil {
			tracked, sent := track(ctx)
			done, err := change(tracked, doc, all)
			switch {
			case done, errors.Is(err, job.ErrWrongState):
				return err
			case err == nil:
				t.unknown = true // as far as what follows fails
				continue         // and see
			}
			f = upsertFailed(err, sent)
		}
		if !t.again(f) {
			return t.err()
		}
	}
}

// Pauses implements [job.Store].
func (s *Store) Pauses(ctx context.Context) ([]job.Pause, error) {
	done, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	pauses, f := s.loadPauses(ctx)
	if f != nil {
		return nil, s.readError(ctx, f)
	}
	return pauses, nil
}
