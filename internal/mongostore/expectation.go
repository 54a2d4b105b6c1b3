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

func decodeExpectation(doc bson.Raw) job.Expectation {
	leased, _ := doc.Lookup(expectedLeased).BooleanOK()
	return job.Expectation{
		JobID: textOf(doc.Lookup(fieldID)), StatusURL: textOf(doc.Lookup(expectedURL)), Created: timeOf(doc.Lookup(expectedCreated)),
		Overdue: timeOf(doc.Lookup(expectedOverdue)), GiveUp: timeOf(doc.Lookup(expectedGiveUp)), Due: timeOf(doc.Lookup(expectedDue)),
		Leased: leased, Token: textOf(doc.Lookup(expectedToken)), Polls: int32(intOf(doc.Lookup(expectedPolls))),
		Error: textOf(doc.Lookup(expectedLastError)), GivenUp: timeOf(doc.Lookup(expectedGivenUp)),
	}
}

// newExpectation is the upsert that keeps an expectation where there is none.
func newExpectation(e *job.Expectation) bson.D {
	var set bson.D
	for _, f := range expectationFields(e) {
		if f.Value != nil {
			set = append(set, f)
		}
	}
	return bson.D{{Key: "$setOnInsert", Value: set}}
}

// readExpectation reads one; the failure matches job.ErrNoExpectation where there is none. confirmed reads it as it stands at
// this moment.
func (s *Store) readExpectation(ctx context.Context, jobID string, confirmed bool) (job.Expectation, *failure) {
	coll := s.expected
	if confirmed && s.deployment.Load().kind != standalone && !s.unlinear.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(mongo.NewSessionContext(ctx, nil), confirmTimeout)
		defer cancel()
		coll = linearCollection(coll)
	}
	tracked, sent := track(ctx)
	doc, err := coll.FindOne(tracked, bson.D{{Key: fieldID, Value: jobID}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return job.Expectation{}, &failure{fateRefused, job.ErrNoExpectation}
	}
	if err != nil {
		var ce mongo.CommandError
		if coll != s.expected && errors.As(err, &ce) && unlinearCodes[ce.Code] {
			return s.readExpectation(ctx, jobID, false)
		}
		return job.Expectation{}, readFailed(err, sent)
	}
	return decodeExpectation(doc), nil
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

// forget removes the expectation of a job, if there is one.
func (s *Store) forget(ctx context.Context, jobID string) *failure {
	tracked, sent := track(ctx)
	if _, err := s.expected.DeleteOne(tracked, bson.D{{Key: fieldID, Value: jobID}}); err != nil {
		return writeFailed(err, sent)
	}
	return nil
}

// forgetRecorded removes the expectation of a job that is recorded, and tells whether it is. One whose record was missed is
// found out later.
func (s *Store) forgetRecorded(ctx context.Context, jobID string) (recorded bool, f *failure) {
	records, unusable, err := s.find(ctx, []string{jobID})
	if err != nil {
		return false, &failure{fateRetry, err}
	}
	if len(records)+len(unusable) == 0 {
		return false, nil
	}
	return true, s.forget(ctx, jobID)
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
		_, err := s.expected.UpdateOne(tracked, bson.D{{Key: fieldID, Value: req.JobID}}, newExpectation(&e), options.UpdateOne().SetUpsert(true))
		var f *failure
		if err != nil {
			f = s.expectFailed(err, sent)
		} else {
			t.unknown = true // as far as what follows fails
			if recorded, f = s.forgetRecorded(ctx, req.JobID); f == nil && recorded {
				return job.Expectation{}, true, nil
			}
			if f == nil {
				if kept, f = s.readExpectation(ctx, req.JobID, false); f == nil {
					return kept, false, nil
				}
				f = &failure{fateRetry, f} // somebody has removed it, since the job is recorded
			}
		}
		if !t.again(f) {
			return job.Expectation{}, false, t.err()
		}
	}
}

// expectFailed judges the error of an upsert by _id, in which two that make the same document meet as duplicates.
func (s *Store) expectFailed(err error, sent *tracker) *failure {
	f := writeFailed(err, sent)
	if mongo.IsDuplicateKeyError(err) {
		f.fate = fateRetry
	}
	return f
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
	var due []job.Expectation
	var ids []string
	f := s.each(ctx, s.expected, bson.D{{Key: expectedDue, Value: bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: s.now()}}}},
		options.Find().SetSort(bson.D{{Key: expectedDue, Value: 1}}).SetLimit(int64(req.Max)), func(doc bson.Raw) bool {
			e := decodeExpectation(doc)
			due, ids = append(due, e), append(ids, e.JobID)
			return true
		})
	if f != nil {
		return out, s.readError(ctx, f)
	}
	if len(due) == 0 {
		return out, nil
	}
	out.More = len(due) == req.Max
	records, unusable, err := s.find(ctx, ids)
	if err != nil {
		return out, s.readError(ctx, &failure{fateRetry, err})
	}
	for i := range due {
		_, recorded := records[due[i].JobID]
		if _, bad := unusable[due[i].JobID]; recorded || bad {
			if s.forget(ctx, due[i].JobID) == nil { // else the next claim does
				out.Recorded++
			}
			continue
		}
		e := due[i].Claim(req.Lease, s.now())
		switch failed := s.swapExpectation(ctx, &due[i], &e); {
		case failed != nil && !errors.Is(failed, errChanged):
			f = failed // the lease lapses, if it was granted
		case failed != nil: // somebody was faster
		case e.GivenUp.IsZero():
			out.Jobs = append(out.Jobs, e)
		default:
			out.GivenUp = append(out.GivenUp, e)
		}
	}
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
			if e != before {
				f = s.swapExpectation(ctx, &before, &e)
			}
			if f == nil {
				t.unknown = true // as far as what follows fails
				if recorded, f = s.forgetRecorded(ctx, p.JobID); f == nil {
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
	for t := s.newTries(ctx); ; {
		tracked, sent := track(ctx)
		result, err := s.expected.DeleteOne(tracked, bson.D{{Key: fieldID, Value: jobID}})
		var f *failure
		switch {
		case err != nil:
			f = writeFailed(err, sent)
		case result.DeletedCount > 0 || t.unknown:
			return nil
		default:
			if _, f = s.readExpectation(ctx, jobID, true); errors.Is(f.orNil(), job.ErrNoExpectation) {
				return job.ErrNoExpectation
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
func (s *Store) ListExpectations(ctx context.Context, which job.ExpectationFilter, after string, size int) (page []job.Expectation, next string, err error) {
	done, err := s.begin(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	last, examined, now := after, 0, s.now()
	most := size * job.ExaminedPerJob
	f := s.each(ctx, s.expected, bson.D{{Key: fieldID, Value: bson.D{{Key: "$gt", Value: after}}}},
		options.Find().SetSort(bson.D{{Key: fieldID, Value: 1}}).SetLimit(int64(most+1)), func(doc bson.Raw) bool {
			if len(page) == size || examined == most {
				next = last
				return false
			}
			e := decodeExpectation(doc)
			if last, examined = e.JobID, examined+1; which.Matches(&e, now) {
				page = append(page, e)
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
	return s.countIn(ctx, s.expected, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{
			{Key: expectedOverdue, Value: bson.D{{Key: "$lte", Value: s.now()}}},
			{Key: expectedGivenUp, Value: bson.D{{Key: "$exists", Value: false}}},
		}}},
		{{Key: "$limit", Value: job.MaxCount}},
	})
}
