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
	changed := false
	_, err = s.decideOn(ctx, q.JobID, func(ctx context.Context, r *stored) (*failure, error) {
		if r == nil {
			return nil, job.ErrNotFound
		}
		next, err := s.requeued(&r.Record, &q)
		if err != nil {
			return nil, err
		}
		out = r.Record
		if next == r.Work {
			return nil, nil
		}
		f := s.swap(ctx, r, &next, r.bodyDropped())
		out.Work, changed = next, f == nil
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

// decideOn reads a job and has change change it, on the condition that it is as it was read, until that is done; r is nil
// where there is none. What change refuses is refused only when it does so on the job as it stands at that moment, and not when
// an earlier try may have made the change.
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
// of which that leaves anything open are made one by one.
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
	left := make([]int, len(ds))
	for i := range ds {
		left[i] = i
	}
	if len(ds) > 1 {
		left = s.deleteTogether(ctx, ds, out)
	}
	for _, i := range left {
		out[i].Deleted, out[i].Err = s.deleteAlone(ctx, &ds[i])
	}
	return out
}

// deleteTogether makes deletions in one bulk, and returns the places of those that are to be made one by one.
func (s *Store) deleteTogether(ctx context.Context, ds []job.Deletion, out []job.DeleteOutcome) (left []int) {
	ctx, endSession := s.session(ctx)
	defer endSession()
	ids := make([]string, len(ds))
	for i := range ds {
		ids[i] = ds[i].JobID
	}
	records, _, err := s.find(ctx, ids)
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
		case err != nil:
			left = append(left, i)
			continue
		case remove:
			models = append(models, mongo.NewDeleteOneModel().SetFilter(asRead(&r, &ds[i])))
			gone = append(gone, mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: fieldID, Value: ds[i].JobID}}))
		case next == r.Record:
			continue
		case next.Work.State == job.StateDead && r.Work.State != job.StateDead:
			left = append(left, i) // by itself, to know that it was this call that did it
			continue
		default:
			models = append(models, mongo.NewUpdateOneModel().SetFilter(asRead(&r, &ds[i])).SetUpdate(erasure(&r.Record, &next)))
		}
		sent = append(sent, i)
	}
	if len(models) == 0 {
		return left
	}
	if len(gone) > 0 {
		if _, err := s.expected.BulkWrite(ctx, gone, options.BulkWrite().SetOrdered(false)); err != nil {
			return append(left, sent...)
		}
	}
	result, err := s.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err != nil || result.DeletedCount+result.MatchedCount != int64(len(models)) {
		return append(left, sent...) // those that were made are found to be so
	}
	for _, i := range sent {
		out[i].Deleted = true
	}
	return left
}

// asRead matches the document for as long as the job's work is as it was read, and the job is the one that is meant; for
// retention, also for as long as no delivery came.
func asRead(r *stored, d *job.Deletion) bson.D {
	f := r.unchanged()
	if !r.FirstSeen.IsZero() {
		f = append(f, bson.E{Key: fieldFirstSeen, Value: r.FirstSeen})
	}
	if !d.ActiveBefore.IsZero() && !r.LastSeen.IsZero() {
		f = append(f, bson.E{Key: fieldLastSeen, Value: r.LastSeen})
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

// deleteAlone makes one deletion.
func (s *Store) deleteAlone(ctx context.Context, d *job.Deletion) (deleted bool, err error) {
	sent, absent := false, false
	refused, err := s.decideOn(ctx, d.JobID, func(ctx context.Context, r *stored) (*failure, error) {
		if absent = r == nil; absent {
			return nil, job.ErrNotFound
		}
		next, gone, err := s.deletion(&r.Record, d)
		if err != nil {
			return nil, err
		}
		if !gone && next == r.Record {
			deleted = sent
			return nil, nil
		}
		if gone {
			if f := s.forget(ctx, d.JobID); f != nil {
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
			sent = sent || f.fate == fateUnknown
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
		return sent, nil
	}
	return deleted && err == nil, err
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

// readPauses reads the pauses.
func (s *Store) readPauses(ctx context.Context) ([]job.Pause, *failure) {
	var pauses []job.Pause
	f := s.each(ctx, s.pausedJobs, bson.D{}, options.Find(), func(doc bson.Raw) bool {
		if prefix, is := doc.Lookup(fieldID).StringValueOK(); is {
			pauses = append(pauses, job.Pause{Prefix: prefix, Since: timeOf(doc.Lookup(pauseSince)), Reason: textOf(doc.Lookup(pauseReason))})
		}
		return true
	})
	slices.SortFunc(pauses, func(a, b job.Pause) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return pauses, f
}

// Pause implements [job.Store].
func (s *Store) Pause(ctx context.Context, prefix, reason string) (job.Pause, error) {
	since := job.Millis(s.now())
	var kept job.Pause
	err := s.changePauses(ctx, func(ctx context.Context, before []job.Pause) (bool, error) {
		for _, kept = range before {
			if kept.Prefix == prefix {
				return true, nil
			}
		}
		if len(before) >= job.MaxPauses {
			return false, job.ErrTooManyPauses
		}
		_, err := s.pausedJobs.UpdateOne(ctx, bson.D{{Key: fieldID, Value: prefix}}, newPause(since, reason), options.UpdateOne().SetUpsert(true))
		return false, err
	})
	return kept, err
}

// Unpause implements [job.Store].
func (s *Store) Unpause(ctx context.Context, prefix string) (was bool, err error) {
	err = s.changePauses(ctx, func(ctx context.Context, before []job.Pause) (bool, error) {
		if !slices.ContainsFunc(before, func(p job.Pause) bool { return p.Prefix == prefix }) {
			return true, nil
		}
		was = true
		_, err := s.pausedJobs.DeleteOne(ctx, bson.D{{Key: fieldID, Value: prefix}})
		return false, err
	})
	return was, err
}

// changePauses has change change the pauses, given those that there are, until it says that it is done.
func (s *Store) changePauses(ctx context.Context, change func(ctx context.Context, before []job.Pause) (done bool, err error)) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, endSession := s.session(ctx)
	defer endSession()
	for t := s.newTries(ctx); ; {
		before, f := s.loadPauses(ctx)
		if f == nil {
			tracked, sent := track(ctx)
			done, err := change(tracked, before)
			switch {
			case done, errors.Is(err, job.ErrWrongState):
				return err
			case err == nil:
				continue // and see
			}
			if f = writeFailed(err, sent); mongo.IsDuplicateKeyError(err) {
				f.fate = fateRetry
			}
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
