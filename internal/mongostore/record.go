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
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

// maxTries bounds how often one delivery is written. Writers that collide on one id come through within a few.
const maxTries = 40

// group is the deliveries of one job within a call: one upsert writes them all and counts each. The first in the order
// of the call is the one that makes the record, if any does.
type group struct {
	jobID      string
	deliveries []*job.Delivery
	outcomes   []*job.Outcome

	update   update
	fresh    job.Record // the record that the update makes
	textOnly bool       // the database refused the embedded document

	// created is true when our upsert made the record, written when it was applied and acknowledged.
	created, written bool
	// unknown is true once a try may have been applied without our knowing; then no later failure is "not written".
	unknown bool
	// record is the record as it stands after the write.
	record job.Record
	// err is the last failure.
	err error
}

// Record implements [job.Store]: one bulk for all, and one read for those that were not the first. What collides, or
// may or may not have been applied, is repeated while the context lasts: with the request id in the record, repeating is
// how the truth is found out.
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(deliveries))
	groups := groupByJob(deliveries, out)
	done, err := s.enter()
	if err == nil {
		defer done()
		if err = ctx.Err(); err != nil {
			err = fmt.Errorf("%w: %w", job.ErrUnavailable, err)
		}
	}
	if err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	ctx, endSession := s.session(ctx)
	defer endSession()

	pause := newPause()
	pending := groups
	for try := 1; ; try++ {
		pending = s.attempt(ctx, pending)
		if len(pending) == 0 || try == maxTries || !sleep(ctx, pause.NextBackOff()) {
			break
		}
	}
	var conflicting []*group
	for _, g := range groups {
		if s.settle(ctx, g) {
			conflicting = append(conflicting, g)
		}
	}
	s.recordConflicts(ctx, conflicting)
	return out
}

// groupByJob sorts the deliveries by job, so that bulks which overlap lock in one order and cannot deadlock.
func groupByJob(deliveries []job.Delivery, out []job.Outcome) []*group {
	byID := make(map[string]*group, len(deliveries))
	groups := make([]*group, 0, len(deliveries))
	for i := range deliveries {
		d := &deliveries[i]
		g := byID[d.JobID]
		if g == nil {
			g = &group{jobID: d.JobID}
			byID[d.JobID] = g
			groups = append(groups, g)
		}
		g.deliveries = append(g.deliveries, d)
		g.outcomes = append(g.outcomes, &out[i])
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.jobID, b.jobID) })
	return groups
}

// session makes reads causally follow the writes of the same call, where the database has sessions.
func (s *Store) session(ctx context.Context) (context.Context, func()) {
	if t := s.deployment.Load(); t == nil || !t.sessions {
		return ctx, func() {}
	}
	session, err := s.client.StartSession()
	if err != nil {
		return ctx, func() {}
	}
	return mongo.NewSessionContext(ctx, session), func() { session.EndSession(context.WithoutCancel(ctx)) }
}

// attempt writes the groups that are not yet written and reads those that are not new. It returns those that are to be
// tried again.
func (s *Store) attempt(ctx context.Context, groups []*group) (again []*group) {
	var write []*group
	for _, g := range groups {
		if !g.written {
			write = append(write, g)
		}
	}
	if len(write) > 0 {
		s.write(ctx, write)
	}
	var read []*group
	for _, g := range groups {
		switch {
		case g.written && !g.created:
			read = append(read, g)
		case !g.written && g.err == nil:
			again = append(again, g)
		}
	}
	if len(read) > 0 {
		again = append(again, s.read(ctx, read)...)
	}
	slices.SortFunc(again, func(a, b *group) int { return cmp.Compare(a.jobID, b.jobID) })
	return again
}

// write sends one bulk and notes each group's fate: written, failed for good (err), or neither, to be tried again.
func (s *Store) write(ctx context.Context, groups []*group) {
	models := make([]mongo.WriteModel, len(groups))
	now := s.now()
	for i, g := range groups {
		models[i] = mongo.NewUpdateOneModel().SetFilter(filter(g.jobID)).SetUpdate(bson.Raw(s.updateOf(g, now).bytes)).SetUpsert(true)
	}
	tracked, sent := track(ctx)
	result, err := s.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if err != nil && !errors.As(err, &bulk) {
		fate := commandFate(err, sent)
		s.log.Warn("a bulk of deliveries failed", "store", s.String(), "deliveries", len(groups), "error", s.explain(err))
		for _, g := range groups {
			g.fail(fate, err)
		}
		return
	}
	failed := make(map[int]mongo.WriteError, len(bulk.WriteErrors))
	for _, e := range bulk.WriteErrors {
		failed[e.Index] = e.WriteError
	}
	if bulk.WriteConcernError != nil {
		s.log.Warn("a write concern was not met", "store", s.String(), "code", bulk.WriteConcernError.Code, "error", bulk.WriteConcernError.Message)
	}
	for i, g := range groups {
		e, bad := failed[i]
		switch {
		case bad && g.refusedDocument(e):
			g.textOnly, g.update = true, update{}
		case bad:
			g.fail(itemFate(e), e)
			if g.err != nil {
				s.log.Error("the database refuses a delivery", "store", s.String(), "job_id", g.jobID, "error", e)
			}
		case bulk.WriteConcernError != nil:
			// It may yet be rolled back: the next try finds our own record, or makes it.
			g.fail(fateUnknown, err)
		default:
			g.written = true
			_, g.created = result.UpsertedIDs[int64(i)]
			if g.created {
				g.record = g.fresh
				g.record.Body, g.record.Deliveries = job.Body{}, int64(len(g.deliveries))
			}
		}
	}
}

// updateOf returns the group's update. It is written once, except that a lease begins when it is sent.
func (s *Store) updateOf(g *group, now time.Time) update {
	d := g.deliveries[0]
	if g.update.bytes == nil || d.Mode == job.ModeLeased {
		g.fresh = d.NewRecord(now)
		g.update = newUpdate(&g.fresh, len(g.deliveries), d.Object, !s.opts.TextOnly && !g.textOnly)
	}
	return g.update
}

// refusedDocument tells whether the error may be about the embedded document, which some databases take less of than
// MongoDB (keys with a dollar or a dot). The text alone is then stored, and the delivery still counts.
func (g *group) refusedDocument(e mongo.WriteError) bool {
	return g.update.embedded && itemFate(e) == fateRefused && e.Code != codeDuplicateKey
}

// fail notes a failed try. What is to be tried again leaves err unset.
func (g *group) fail(f fate, cause error) {
	switch f {
	case fateUnknown:
		g.unknown = true
	case fateUnsent:
		// The driver has waited for a server already, so there is no point in trying again here.
		g.err = fmt.Errorf("%w: %v", job.ErrUnavailable, cause)
	case fateRefused:
		g.err = fmt.Errorf("the database refuses the delivery: %v", cause)
	}
}

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
	cursor, err := s.coll.Find(ctx, f, options.Find().SetProjection(withoutBody).SetBatchSize(int32(len(groups)+1)))
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

// settle turns what became of the group into its outcomes, and tells whether there are conflicts to record. The record
// counts all the group's deliveries, and each is told what the count was after its own.
func (s *Store) settle(ctx context.Context, g *group) (conflicts bool) {
	if err := g.failure(ctx); err != nil {
		for _, o := range g.outcomes {
			o.Err = err
		}
		return false
	}
	deliveries := g.record.Deliveries
	for i, d := range g.deliveries {
		o := g.outcomes[i]
		if *o = s.decide(ctx, g, d); o.Err != nil {
			continue
		}
		o.Record.Deliveries = max(1, deliveries-int64(len(g.deliveries)-1-i))
		conflicts = conflicts || o.Verdict.Conflict != nil
	}
	return conflicts
}

// maxClaims bounds how often one delivery tries to claim work that others keep changing.
const maxClaims = 5

// decide decides one delivery on the group's record, and claims the work where the decision says so.
func (s *Store) decide(ctx context.Context, g *group, d *job.Delivery) job.Outcome {
	now := s.now()
	v := job.Decide(&g.record, d, now)
	for try := 0; v.Claim && try < maxClaims; try++ {
		r, err := s.reclaim(ctx, g.record, d)
		if err != nil {
			return job.Outcome{Err: err}
		}
		g.record = r
		now = s.now()
		v = job.Decide(&g.record, d, now)
	}
	r := g.record
	if v.Disposition != job.Reclaimed {
		r.Body = job.Body{}
	} else if r.Body.Kind == job.BodyNone {
		full, err := s.readOne(ctx, r.JobID, true)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return job.Outcome{Err: ended(ctx, true, err)}
		}
		r.Body = full.Body
	}
	return job.Answer(r, v, now)
}

// failure is the error of a group that did not come through; nil for one that did.
func (g *group) failure(ctx context.Context) error {
	if g.record.JobID != "" {
		return nil
	}
	err := g.err
	if g.unknown || err == nil && g.written {
		err = job.ErrOutcomeUnknown
		if g.err != nil {
			err = fmt.Errorf("%w: %v", err, g.err)
		}
	} else if err == nil {
		err = fmt.Errorf("%w: nothing was written in %d tries", job.ErrUnavailable, maxTries)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// recordConflicts counts the conflicts and keeps each job's latest. Best effort: the deliveries are recorded and decided,
// and a failure here must not make that unknown.
func (s *Store) recordConflicts(ctx context.Context, groups []*group) {
	if len(groups) == 0 {
		return
	}
	models := make([]mongo.WriteModel, len(groups))
	for i, g := range groups {
		n, last := 0, (*job.Conflict)(nil)
		for _, o := range g.outcomes {
			if c := o.Verdict.Conflict; c != nil {
				n, last = n+1, c
			}
		}
		models[i] = mongo.NewUpdateOneModel().SetFilter(filter(g.jobID)).SetUpdate(conflictUpdate(n, last))
	}
	if _, err := s.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		s.log.Warn("conflicts were not counted", "store", s.String(), "jobs", len(groups), "error", s.explain(err))
	}
}

func conflictUpdate(n int, c *job.Conflict) bson.D {
	return bson.D{
		{Key: "$inc", Value: bson.D{{Key: fieldConflicts, Value: int32(n)}}},
		{Key: "$set", Value: bson.D{{Key: fieldLastConflict, Value: bson.D{
			{Key: "kind", Value: conflictNames[c.Kind]}, {Key: "event", Value: c.Event},
			{Key: "status", Value: c.Status}, {Key: "time", Value: c.Time},
		}}}},
	}
}

// sleep waits, and tells whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
