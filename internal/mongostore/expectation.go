package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
)

// The fields of an expectation, beside the _id, which is the job's id. What is empty is left out.
const (
	fieldID           = "_id"
	expectedURL       = "status_url"
	expectedCreated   = "created"
	expectedOverdue   = "overdue"
	expectedGiveUp    = "give_up"
	expectedDue       = "due"
	expectedGroup     = "group" // see [job.Group]
	expectedBy        = "by"    // which call has expected the job last
	expectedLeased    = "leased"
	expectedToken     = "token"
	expectedPolls     = "polls"
	expectedLastError = "error"
	expectedGivenUp   = "given_up"
)

// expectationFields are the fields but for the _id. Those that are empty are nil.
func expectationFields(e *job.Expectation) bson.D {
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	at := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return t
	}
	return bson.D{
		{Key: expectedURL, Value: e.StatusURL}, {Key: expectedCreated, Value: e.Created}, {Key: expectedOverdue, Value: e.Overdue},
		{Key: expectedGiveUp, Value: e.GiveUp}, {Key: expectedDue, Value: at(e.Due)}, {Key: expectedLeased, Value: e.Leased},
		{Key: expectedToken, Value: text(e.Token)}, {Key: expectedPolls, Value: e.Polls}, {Key: expectedLastError, Value: text(e.Error)},
		{Key: expectedGivenUp, Value: at(e.GivenUp)},
	}
}

// expectation is one as it is stored. Whoever expects the job, also once more, writes by; who removes it because the job is
// recorded does so on the condition of what by was before it looked for the record. The job may have been deleted since, and be
// expected anew.
type expectation struct {
	job.Expectation
	by string
}

func decodeExpectation(doc bson.Raw) expectation {
	leased, _ := doc.Lookup(expectedLeased).BooleanOK()
	return expectation{job.Expectation{
		JobID: textOf(doc.Lookup(fieldID)), StatusURL: textOf(doc.Lookup(expectedURL)), Created: timeOf(doc.Lookup(expectedCreated)),
		Overdue: timeOf(doc.Lookup(expectedOverdue)), GiveUp: timeOf(doc.Lookup(expectedGiveUp)), Due: timeOf(doc.Lookup(expectedDue)),
		Leased: leased, Token: textOf(doc.Lookup(expectedToken)), Polls: int32(intOf(doc.Lookup(expectedPolls))),
		Error: textOf(doc.Lookup(expectedLastError)), GivenUp: timeOf(doc.Lookup(expectedGivenUp)),
	}, textOf(doc.Lookup(expectedBy))}
}

// newExpectation is the upsert that keeps an expectation where there is none, by a call.
func newExpectation(e *job.Expectation, by string) bson.D {
	set := bson.D{{Key: expectedGroup, Value: job.Group(e.JobID)}}
	for _, f := range expectationFields(e) {
		if f.Value != nil {
			set = append(set, f)
		}
	}
	return bson.D{{Key: "$setOnInsert", Value: set}, {Key: "$set", Value: bson.D{{Key: expectedBy, Value: by}}}}
}

// readExpectation reads one; the failure matches job.ErrNoExpectation where there is none. confirmed reads it as it stands at
// this moment.
func (s *Store) readExpectation(ctx context.Context, jobID string, confirmed bool) (expectation, *failure) {
	switch doc, f := s.readOne(ctx, s.expected, jobID, confirmed); {
	case f != nil:
		return expectation{}, f
	case doc == nil:
		return expectation{}, &failure{fateRefused, job.ErrNoExpectation}
	default:
		return decodeExpectation(doc), nil
	}
}

// readOne reads the document with the _id in a collection beside that of the jobs; nil where there is none. confirmed is
// as [Store.confirm] has it.
func (s *Store) readOne(ctx context.Context, coll *mongo.Collection, id string, confirmed bool) (bson.Raw, *failure) {
	from := coll
	if confirmed {
		var cancel context.CancelFunc
		ctx, cancel, from = s.confirming(ctx, coll)
		defer cancel()
	}
	tracked, sent := track(ctx)
	doc, err := from.FindOne(tracked, bson.D{{Key: fieldID, Value: id}}).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil, nil
	case from != coll && hasCode(err, unlinearCodes...):
		return s.readOne(ctx, coll, id, false)
	case err != nil:
		return nil, readFailed(err, sent)
	}
	return doc, nil
}

// swapExpectation changes one, provided that it is as it was read.
func (s *Store) swapExpectation(ctx context.Context, before, after *job.Expectation) *failure {
	filter := bson.D{{Key: fieldID, Value: before.JobID}}
	var set, unset bson.D
	is := expectationFields(after)
	for i, was := range expectationFields(before) {
		condition := bson.E{Key: "$eq", Value: was.Value}
		if was.Value == nil {
			condition = bson.E{Key: "$exists", Value: false}
		}
		filter = append(filter, bson.E{Key: was.Key, Value: bson.D{condition}})
		switch {
		case is[i].Value == was.Value:
		case is[i].Value == nil:
			unset = append(unset, bson.E{Key: was.Key, Value: ""})
		default:
			set = append(set, is[i])
		}
	}
	tracked, sent := track(ctx)
	result, err := s.expected.UpdateOne(tracked, filter, changeOf(set, unset))
	if err != nil {
		return writeFailed(err, sent)
	}
	if result.MatchedCount == 0 {
		return &failure{fateRetry, errChanged}
	}
	return nil
}

// thatVery matches the expectation for as long as nobody has expected the job since.
func thatVery(e *expectation) bson.D {
	by := bson.E{Key: "$eq", Value: e.by}
	if e.by == "" {
		by = bson.E{Key: "$exists", Value: false}
	}
	return bson.D{{Key: fieldID, Value: e.JobID}, {Key: expectedBy, Value: bson.D{by}}}
}

// forget removes an expectation, and tells whether it was there. It must have been read before the job was found to be recorded.
func (s *Store) forget(ctx context.Context, e *expectation) (was bool, f *failure) {
	tracked, sent := track(ctx)
	result, err := s.expected.DeleteOne(tracked, thatVery(e))
	if err != nil {
		return false, writeFailed(err, sent)
	}
	return result.DeletedCount > 0, nil
}

// forgetRecorded removes the expectation if its job is recorded, and tells whether it is. One whose record was missed is
// found out later.
func (s *Store) forgetRecorded(ctx context.Context, e *expectation) (recorded bool, f *failure) {
	records, unusable, err := s.find(ctx, []string{e.JobID})
	if err != nil {
		return false, &failure{fateRetry, err}
	}
	if len(records)+len(unusable) == 0 {
		return false, nil
	}
	_, f = s.forget(ctx, e)
	return true, f
}

// Expect implements [job.Store]. It writes first, and then looks: a delivery that is recorded before it looks is seen, and
// one that is recorded later is seen by whoever claims what is overdue.
func (s *Store) Expect(ctx context.Context, req job.ExpectRequest) (kept job.Expectation, recorded bool, err error) {
	done, err := s.begin(ctx)
	if err != nil {
		return kept, false, err
	}
	defer done()
	ctx, endSession := s.session(ctx)
	defer endSession()
	e := req.Expectation(s.now())
	for t := s.newTries(ctx); ; {
		tracked, sent := track(ctx)
		mine := expectation{e, job.NewToken()}
		_, err := s.expected.UpdateOne(tracked, bson.D{{Key: fieldID, Value: req.JobID}}, newExpectation(&e, mine.by), options.UpdateOne().SetUpsert(true))
		var f *failure
		if err != nil {
			f = upsertFailed(err, sent)
		} else {
			t.unknown = true // as far as what follows fails
			if recorded, f = s.forgetRecorded(ctx, &mine); f == nil && recorded {
				return job.Expectation{}, true, nil
			}
			if f == nil { // somebody may have removed it with a job that was recorded
				if mine, f = s.readExpectation(ctx, req.JobID, false); f == nil {
					return mine.Expectation, false, nil
				}
			}
			if errors.Is(f.orNil(), job.ErrNoExpectation) {
				f = &failure{fateRetry, f}
			}
		}
		if !t.again(f) {
			return job.Expectation{}, false, t.err()
		}
	}
}

// dueExpectations reads what a claim may hand out, the longest due first.
func (s *Store) dueExpectations(ctx context.Context, req *job.OverdueRequest) (due []expectation, f *failure) {
	filter, index := bson.D{{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: s.now()}}}}, expectedDueIndex
	if req.Prefix != "" {
		filter = append(filter, bson.E{Key: expectedGroup, Value: job.Group(req.Prefix)}, bson.E{Key: fieldID, Value: beginsWith(req.Prefix)})
		index = expectedGroupIndex
	}
	opts := options.Find().SetSort(bson.D{{Key: expectedDue, Value: 1}}).SetLimit(int64(req.Max))
	f = s.along(ctx, s.expected, index, filter, opts, func(doc bson.Raw) bool {
		due = append(due, decodeExpectation(doc))
		return true
	})
	return due, f
}

// text matches texts, and not lists with a text in them.
func text() bson.D {
	return bson.D{{Key: "$type", Value: "string"}, {Key: "$not", Value: bson.D{{Key: "$type", Value: "array"}}}}
}

// beginsWith matches texts that begin with the prefix, if there is one.
func beginsWith(prefix string) bson.D {
	d := append(text(), bson.E{Key: "$gte", Value: prefix})
	if end := job.Behind(prefix); end != "" {
		d = append(d, bson.E{Key: "$lt", Value: end})
	}
	return d
}

// ClaimOverdue implements [job.Store].
func (s *Store) ClaimOverdue(ctx context.Context, req job.OverdueRequest) (out job.Overdue, err error) {
	done, err := s.beginAdmin(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	if err := s.timed(ctx); err != nil {
		return out, err
	}
	ctx, endSession := s.session(ctx)
	defer endSession()
	due, f := s.dueExpectations(ctx, &req)
	if f != nil {
		return out, s.readError(ctx, f)
	}
	if len(due) == 0 {
		return out, nil
	}
	out.More = len(due) == req.Max
	ids := make([]string, len(due))
	for i := range due {
		ids[i] = due[i].JobID
	}
	records, unusable, err := s.find(ctx, ids)
	if err != nil {
		return out, s.readError(ctx, &failure{fateRetry, err})
	}
	away := false // then each of the others would wait for a server
	for i := 0; i < len(due) && !away; i++ {
		_, recorded := records[due[i].JobID]
		if _, bad := unusable[due[i].JobID]; recorded || bad {
			switch _, failed := s.forget(ctx, &due[i]); {
			case failed == nil:
				out.Recorded++
			case failed.away():
				away, f = true, failed
			} // else the next claim does
			continue
		}
		e := due[i].Claim(req.Lease, s.now())
		failed := s.swapExpectation(ctx, &due[i].Expectation, &e)
		if failed != nil && !errors.Is(failed, errChanged) {
			// The change may have been made: nobody else tells of one that is given up.
			is, unread := s.readExpectation(ctx, e.JobID, false)
			if away = failed.away() || unread.away(); unread == nil && is.Expectation == e {
				failed = nil
			}
		}
		switch {
		case failed != nil && !errors.Is(failed, errChanged):
			f = failed // the lease lapses, if it was granted
		case failed != nil: // somebody was faster
		case e.GivenUp.IsZero():
			out.Jobs = append(out.Jobs, e)
		default:
			out.GivenUp = append(out.GivenUp, e)
		}
	}
	// Where none of them could be had there is no use in calling again at once.
	out.More = out.More && len(out.Jobs)+len(out.GivenUp)+out.Recorded > 0
	if f != nil && len(out.Jobs)+len(out.GivenUp) == 0 {
		return job.Overdue{}, fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, s.explain(f))
	}
	return out, nil
}

// ReportPoll implements [job.Store].
func (s *Store) ReportPoll(ctx context.Context, p job.PollReport) (e job.Expectation, recorded bool, err error) {
	done, err := s.begin(ctx)
	if err != nil {
		return e, false, err
	}
	defer done()
	ctx, endSession := s.session(ctx)
	defer endSession()
	confirmed := false
	for t := s.newTries(ctx); ; {
		before, f := s.readExpectation(ctx, p.JobID, confirmed)
		if f == nil || errors.Is(f, job.ErrNoExpectation) {
			var refused error
			if f != nil {
				refused = job.ErrNoExpectation
			} else {
				e, refused = before.Report(&p, s.now())
			}
			switch {
			case refused != nil && confirmed && t.unknown:
				return job.Expectation{}, false, fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, refused)
			case refused != nil && confirmed:
				return job.Expectation{}, false, refused
			case refused != nil:
				confirmed = true
				continue
			}
			confirmed, f = false, nil
			if e != before.Expectation {
				f = s.swapExpectation(ctx, &before.Expectation, &e)
			}
			if f == nil {
				t.unknown = true // as far as what follows fails
				if recorded, f = s.forgetRecorded(ctx, &before); f == nil {
					return e, recorded, nil
				}
			}
		}
		if !t.again(f) {
			return job.Expectation{}, false, t.err()
		}
	}
}

// CancelExpectation implements [job.Store].
func (s *Store) CancelExpectation(ctx context.Context, jobID string) error {
	done, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, endSession := s.session(ctx)
	defer endSession()
	confirmed := false
	for t := s.newTries(ctx); ; {
		e, f := s.readExpectation(ctx, jobID, confirmed)
		absent := errors.Is(f.orNil(), job.ErrNoExpectation)
		switch {
		case absent && confirmed && t.unknown:
			return nil
		case absent && confirmed:
			return job.ErrNoExpectation
		case absent:
			confirmed = true
			continue
		case f == nil:
			was := false
			if was, f = s.forget(ctx, &e); was {
				return nil
			}
			if f == nil {
				f = &failure{fateRetry, errChanged}
			}
		}
		if !t.again(f) {
			return t.err()
		}
	}
}

// ListExpectations implements [job.Store].
func (s *Store) ListExpectations(
	ctx context.Context, which job.ExpectationFilter, prefix, after string, size int,
) (page []job.Expectation, next string, err error) {
	done, err := s.begin(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	last, examined, now := after, 0, s.now()
	most := size * job.ExaminedPerJob
	ids := append(bson.D{{Key: "$gt", Value: after}}, beginsWith(prefix)...)
	f := s.each(ctx, s.expected, bson.D{{Key: fieldID, Value: ids}},
		options.Find().SetSort(bson.D{{Key: fieldID, Value: 1}}).SetLimit(int64(most+1)), func(doc bson.Raw) bool {
			if len(page) == size || examined == most {
				next = last
				return false
			}
			e := decodeExpectation(doc)
			if last, examined = e.JobID, examined+1; which.Matches(&e.Expectation, now) {
				page = append(page, e.Expectation)
			}
			return true
		})
	if f != nil {
		return nil, "", s.readError(ctx, f)
	}
	return page, next, nil
}

// CountOverdue implements [job.Store].
func (s *Store) CountOverdue(ctx context.Context) (int64, error) {
	done, err := s.beginAdmin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	return s.count(ctx, s.expected, expectedOverdueIndex, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{
			{Key: expectedOverdue, Value: bson.D{{Key: "$lte", Value: s.now()}}},
			{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}}}, // it was not given up
		}}},
		{{Key: "$limit", Value: job.MaxCount}},
	})
}
