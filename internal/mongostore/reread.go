package mongostore

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

// read reads the records of groups that were not new. It returns those to be tried again: the read failed, or the record
// is gone since the write, and then the job is to be written anew.
func (s *Store) read(ctx context.Context, groups []*group) (again []*group) {
	records, err := s.find(ctx, groups)
	if err != nil {
		s.log.Warn("a read of recorded jobs failed", "store", s.String(), "jobs", len(groups), "error", s.explain(err))
		for _, g := range groups {
			g.unknown = true
		}
		return groups
	}
	for _, g := range groups {
		r, ok := records[g.jobID]
		if !ok {
			g.written, g.unknown, g.update = false, true, update{} // a new record gets new times
			again = append(again, g)
			continue
		}
		g.record = r
	}
	return again
}

// find reads the groups' records, without their payloads.
func (s *Store) find(ctx context.Context, groups []*group) (map[string]job.Record, error) {
	f := filter(groups[0].jobID)
	if len(groups) > 1 {
		f = filterAll(groups)
	}
	cursor, err := s.coll.Find(ctx, f, options.Find().SetProjection(withoutBody).
		SetLimit(int64(len(groups))).SetBatchSize(int32(len(groups)+1)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	records := make(map[string]job.Record, len(groups))
	for cursor.Next(ctx) {
		r, err := decode(cursor.Current, false)
		if err != nil {
			return nil, err
		}
		records[r.JobID] = r
	}
	return records, cursor.Err()
}

var withoutBody = bson.D{{Key: fieldPayload, Value: 0}, {Key: fieldPayloadText, Value: 0}, {Key: fieldPayloadBytes, Value: 0}}

// filter is equality on exactly the unique index's key, which lets the server resolve most collisions by itself.
func filter(jobID string) bson.Raw {
	i, b := bsoncore.AppendDocumentStart(make([]byte, 0, len(jobID)+32))
	return end(bsoncore.AppendStringElement(b, fieldJobID, jobID), i)
}

func filterAll(groups []*group) bson.Raw {
	top, b := bsoncore.AppendDocumentStart(nil)
	in, b := bsoncore.AppendDocumentElementStart(b, fieldJobID)
	list, b := bsoncore.AppendArrayElementStart(b, "$in")
	for i, g := range groups {
		b = bsoncore.AppendStringElement(b, fmt.Sprint(i), g.jobID)
	}
	return end(end(end(b, list), in), top)
}
