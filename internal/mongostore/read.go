package mongostore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// confirmTimeout bounds a confirming read where its caller sets no shorter time. The driver tells the database of it.
	confirmTimeout = 5 * time.Second
	// maxMisses bounds how many reads of absent jobs are confirmed in a second: a linearizable read writes to the oplog.
	maxMisses = 500
)

// unlinearCodes are of a server that does not take the read concern linearizable: BadValue, FailedToParse,
// IllegalOperation, InvalidOptions, CommandNotSupported, NotAReplicaSet, ReadConcernMajorityNotEnabled, NotImplemented.
var unlinearCodes = []int32{2, 9, 20, 72, 115, 123, 148, 238}

var withoutBody = bson.D{{Key: fieldPayload, Value: 0}, {Key: fieldPayloadText, Value: 0}, {Key: fieldPayloadBytes, Value: 0}}

// Get implements [job.Store]. What it finds is committed at a majority; around a failover it may be what the former primary
// had committed last. That there is no record is confirmed.
func (s *Store) Get(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	done, err := s.enter()
	if err != nil {
		return job.Record{}, err
	}
	defer done()
	r, f := s.read(ctx, jobID, withBody)
	if errors.Is(f.orNil(), job.ErrNotFound) && s.deployment.Load().kind != standalone {
		r, f = s.confirmMiss(ctx, jobID, withBody)
	}
	switch {
	case f == nil:
		return r.Record, nil
	case errors.Is(f, job.ErrNotFound):
		return job.Record{}, job.ErrNotFound
	case f.fate == fateUnusable:
		return job.Record{}, fmt.Errorf("%w: %w", job.ErrRecordUnusable, f)
	case ctx.Err() != nil:
		return job.Record{}, fmt.Errorf("%w: %w: %v", job.ErrUnavailable, ctx.Err(), s.explain(f))
	}
	return job.Record{}, fmt.Errorf("%w: %v", job.ErrUnavailable, s.explain(f))
}

// read reads one record. The failure says whether trying again may help; it matches job.ErrNotFound where the database
// says that there is none, which a deposed primary may say as well.
func (s *Store) read(ctx context.Context, jobID string, withBody bool) (stored, *failure) {
	return s.readFrom(ctx, s.coll, jobID, withBody)
}

func (s *Store) readFrom(ctx context.Context, coll *mongo.Collection, jobID string, withBody bool) (stored, *failure) {
	opts := options.FindOne()
	if !withBody {
		opts.SetProjection(withoutBody)
	}
	tracked, sent := track(ctx)
	doc, err := coll.FindOne(tracked, filter(jobID), opts).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return stored{}, &failure{fateRefused, job.ErrNotFound}
	}
	if err != nil {
		f := readFailed(err, sent)
		s.log.Warn("a read failed", "store", s.String(), "error", s.explain(f))
		return stored{}, f
	}
	r, err := decode(doc, withBody)
	if err == nil && r.JobID != jobID {
		err = errForeignID
	}
	if err != nil {
		s.log.Error("a stored record cannot be used", "store", s.String(), "job_id", jobID, "error", err)
		return stored{}, &failure{fateUnusable, err}
	}
	return r, nil
}

// errForeignID: the filter matched a document whose job_id is not that text, such as a list that contains it.
var errForeignID = errors.New("its job_id is not a text, or a list of texts")

// find reads the records with the ids, without their payloads. The ids under which there is what cannot be used are in
// unusable.
func (s *Store) find(ctx context.Context, ids []string) (records map[string]stored, unusable map[string]error, err error) {
	f := filter(ids[0])
	if len(ids) > 1 {
		f = filterAll(ids)
	}
	cursor, err := s.coll.Find(ctx, f, options.Find().SetProjection(withoutBody).
		SetLimit(int64(len(ids))).SetBatchSize(int32(len(ids)+1)))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	records, unusable = make(map[string]stored, len(ids)), map[string]error{}
	for cursor.Next(ctx) {
		r, err := decode(cursor.Current, false)
		if err != nil {
			return nil, nil, err
		}
		if r.JobID != "" {
			records[r.JobID] = r
			continue
		}
		ids, _ := cursor.Current.Lookup(fieldJobID).ArrayOK()
		texts, _ := ids.Values()
		for _, v := range texts {
			unusable[textOf(v)] = errForeignID
		}
	}
	return records, unusable, cursor.Err()
}

// confirm reads one record as it stands at this moment: not as a primary that was deposed, and does not know it, has it.
// Negative answers rest on it. It does not belong to the session of a call.
func (s *Store) confirm(ctx context.Context, jobID string, withBody bool) (stored, *failure) {
	ctx, cancel := context.WithTimeout(mongo.NewSessionContext(ctx, nil), confirmTimeout)
	defer cancel()
	if t := s.deployment.Load(); t.kind == standalone || s.unlinear.Load() {
		return s.read(ctx, jobID, withBody)
	}
	r, f := s.readFrom(ctx, s.linear, jobID, withBody)
	if hasCode(f.orNil(), unlinearCodes...) {
		s.log.Warn("the database does not take the read concern linearizable: around a failover, a job may be called absent, "+
			"or a lease lost, that is not", "store", s.String(), "error", s.explain(f))
		s.unlinear.Store(true)
		return s.read(ctx, jobID, withBody)
	}
	return r, f
}

// confirming is a collection, and the context to read it with, as confirm reads that of the jobs; the collection itself where the
// server cannot.
func (s *Store) confirming(ctx context.Context, coll *mongo.Collection) (context.Context, context.CancelFunc, *mongo.Collection) {
	if s.deployment.Load().kind == standalone || s.unlinear.Load() {
		return ctx, func() {}, coll
	}
	ctx, cancel := context.WithTimeout(mongo.NewSessionContext(ctx, nil), confirmTimeout)
	return ctx, cancel, linearCollection(coll)
}

// confirmMiss confirms that there is no record: one at a time for an id, and so many in a second. What began before this
// call says nothing to it: the record may have been made since. So it waits for the next one then.
func (s *Store) confirmMiss(ctx context.Context, jobID string, withBody bool) (r stored, f *failure) {
	for range 2 {
		began := false
		if r, f, began = s.joinMiss(ctx, jobID, withBody); began || !errors.Is(f.orNil(), job.ErrNotFound) {
			break
		}
	}
	return r, f
}

// joinMiss confirms that there is no record, or waits for the answer to who began with that before: began tells which.
func (s *Store) joinMiss(ctx context.Context, jobID string, withBody bool) (_ stored, _ *failure, began bool) {
	type confirmed struct {
		r stored
		f *failure
	}
	var mine atomic.Bool
	key := fmt.Sprint(withBody, jobID)
	answer := s.misses.DoChan(key, func() (any, error) {
		mine.Store(true)
		done, err := s.enter() // it may outlast the call that began it
		if err != nil {
			return confirmed{f: &failure{fateUnsent, err}}, nil
		}
		defer done()
		if !s.missRate.Allow() {
			return confirmed{f: &failure{fateRetry, errors.New("too many reads of jobs that are not there")}}, nil
		}
		r, f := s.confirm(context.WithoutCancel(ctx), jobID, withBody)
		return confirmed{r, f}, nil
	})
	select {
	case a := <-answer:
		c := a.Val.(confirmed)
		return c.r, c.f, mine.Load()
	case <-ctx.Done():
		return stored{}, &failure{fateRetry, ctx.Err()}, false
	}
}

// linearCollection is the collection as confirm reads it.
func linearCollection(coll *mongo.Collection) *mongo.Collection {
	return coll.Clone(options.Collection().SetReadConcern(readconcern.Linearizable()))
}

// filter is equality on exactly the unique index's key, which lets the server resolve most collisions by itself.
func filter(jobID string) bson.Raw {
	i, b := bsoncore.AppendDocumentStart(make([]byte, 0, len(jobID)+32))
	return end(bsoncore.AppendStringElement(b, fieldJobID, jobID), i)
}

func filterAll(ids []string) bson.Raw {
	top, b := bsoncore.AppendDocumentStart(nil)
	in, b := bsoncore.AppendDocumentElementStart(b, fieldJobID)
	list, b := bsoncore.AppendArrayElementStart(b, "$in")
	for i, id := range ids {
		b = bsoncore.AppendStringElement(b, strconv.Itoa(i), id)
	}
	return end(end(end(b, list), in), top)
}
