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

// maxTries bounds how often one delivery is written. Writers that collide on one id come through within a few.
const maxTries = 40

// suspectTries is after how many tries a duplicate key is looked into.
const suspectTries = 8

// group is the deliveries of one job within a call: one upsert writes them all and counts each. The first in the order
// of the call is the one that makes the record, if any does.
type group struct {
	jobID      string
	deliveries []*job.Delivery
	outcomes   []*job.Outcome

	update   update
	fresh    job.Record // the record that the update makes
	textOnly bool       // the database refused the embedded document
	// duplicate is true when the last try met a duplicate key.
	duplicate bool

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
		if try == suspectTries {
			pending = s.refuseForeign(ctx, pending)
		}
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
	// Unordered, so that one bad item spoils no other. A lone one has no others, and an ordered bulk costs DocumentDB less.
	result, err := s.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(len(models) == 1))
	var bulk mongo.BulkWriteException
	if err != nil && !errors.As(err, &bulk) {
		fate := commandFate(err, sent)
		s.log.Warn("a bulk of deliveries failed", "store", s.String(), "deliveries", len(groups), "error", s.explain(err))
		for _, g := range groups {
			g.fail(fate, err)
		}
		return
	}
	failed := failedItems(bulk)
	if bulk.WriteConcernError != nil {
		s.log.Warn("a write concern was not met", "store", s.String(), "code", bulk.WriteConcernError.Code, "error", bulk.WriteConcernError.Message)
	}
	for i, g := range groups {
		e, bad := failed[i]
		g.duplicate = bad && e.Code == codeDuplicateKey
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

// refuseForeign gives up the groups whose key is a duplicate in another index than ours, where the database does not say
// which index it is: their job is not recorded. It returns the others, which would otherwise wait for them.
func (s *Store) refuseForeign(ctx context.Context, groups []*group) (others []*group) {
	var suspects []*group
	for _, g := range groups {
		if g.duplicate {
			suspects = append(suspects, g)
		}
	}
	if len(suspects) == 0 {
		return groups
	}
	records, err := s.find(ctx, suspects)
	if err != nil {
		return groups
	}
	for _, g := range groups {
		if _, recorded := records[g.jobID]; !g.duplicate || recorded {
			others = append(others, g)
			continue
		}
		g.err = errors.New("the database refuses the delivery: it is a duplicate in a unique index that is not ours")
		s.log.Error("the database refuses a delivery", "store", s.String(), "job_id", g.jobID, "error", g.err)
	}
	return others
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

// sleep waits, and tells whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
