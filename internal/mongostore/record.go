package mongostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// suspectTries is after how many tries a duplicate key is looked into.
	suspectTries = 8
	// maxBulk bounds a bulk on the wire, in bytes: the driver splits one over 48 MB.
	maxBulk = 40_000_000
)

// group is the deliveries of one job within a call: one upsert writes them all and counts each. The first in the order
// of the call is the one that makes the record, if any does.
type group struct {
	jobID      string
	deliveries []*job.Delivery
	outcomes   []job.Outcome
	places     []int // in the call
	settle     func(place int, o job.Outcome)
	settled    atomic.Bool // never twice, even where one of many that went on together panics
	tries      *tries

	update   update
	fresh    job.Record // the record that the update makes
	textOnly bool       // the database refused the embedded document
	looked   bool       // a hint of it was refused, and the unique index was found good
	// duplicates counts the tries in a row that met a duplicate key.
	duplicates int

	// created is true when our upsert made the record, written when it was applied and acknowledged.
	created, written bool
	// record is the record as it stands after the write; known once it is.
	record stored
	known  bool
}

// Record implements [job.Store].
func (s *Store) Record(ctx context.Context, deliveries []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(deliveries))
	var open sync.WaitGroup
	open.Add(len(deliveries))
	s.RecordEach(ctx, deliveries, func(i int, o job.Outcome) {
		out[i] = o
		open.Done()
	})
	open.Wait()
	return out
}

// RecordEach implements [job.EachRecorder]: one bulk for all, and one read for those that were not the first. When the
// database fails them all alike, they are tried again together. One that fails by itself, or that may claim work, goes on
// alone. With the request id in the record, repeating a write is how the truth about it is found out.
func (s *Store) RecordEach(ctx context.Context, deliveries []job.Delivery, settle func(i int, o job.Outcome)) {
	done, err := s.enter()
	if err == nil {
		defer done()
		if err = ctx.Err(); err != nil {
			err = fmt.Errorf("%w: %w", job.ErrUnavailable, err)
		}
	}
	if err != nil {
		for i := range deliveries {
			settle(i, job.Outcome{Err: err})
		}
		return
	}
	groups := s.groupByJob(ctx, deliveries, settle)
	ctx, endSession := s.session(ctx)
	defer endSession()
	s.together(ctx, groups)
}

// together records groups in as few commands as there can be.
func (s *Store) together(ctx context.Context, groups []*group) {
	for t := s.newTries(ctx); len(groups) > 0; {
		r := s.round(ctx, groups)
		for _, g := range r.alone {
			s.goOn(ctx, []*group{g}, func(ctx context.Context) { s.alone(ctx, g) })
		}
		if later := r.untimed; len(later) > 0 {
			s.goOn(ctx, later, func(ctx context.Context) { s.together(ctx, s.whenTimed(ctx, later)) })
		}
		groups = r.struck
		if len(groups) > 0 && !t.again(r.failed) {
			for _, g := range groups {
				g.giveUp()
			}
			return
		}
	}
}

// groupByJob sorts the deliveries by job, so that bulks which overlap lock in one order and cannot deadlock.
func (s *Store) groupByJob(ctx context.Context, deliveries []job.Delivery, settle func(int, job.Outcome)) []*group {
	byID := make(map[string]*group, len(deliveries))
	groups := make([]*group, 0, len(deliveries))
	for i := range deliveries {
		d := &deliveries[i]
		g := byID[d.JobID]
		if g == nil {
			g = &group{jobID: d.JobID, settle: settle, tries: s.newTries(ctx)}
			byID[d.JobID] = g
			groups = append(groups, g)
		}
		g.deliveries, g.places = append(g.deliveries, d), append(g.places, i)
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.jobID, b.jobID) })
	return groups
}

// leases tells whether a delivery of the group may be granted a lease.
func (g *group) leases() bool {
	return slices.ContainsFunc(g.deliveries, func(d *job.Delivery) bool { return d.Mode == job.ModeLeased })
}

// session makes reads causally follow the writes of the same call, and of the call that it goes on for, where the database
// has sessions.
func (s *Store) session(ctx context.Context) (context.Context, func()) {
	none := mongo.NewSessionContext(ctx, nil) // nor that of the call that it goes on for, which may be another goroutine's
	if t := s.deployment.Load(); t == nil || !t.sessions {
		return none, func() {}
	}
	session, err := s.client.StartSession()
	if err != nil {
		return none, func() {}
	}
	if before := mongo.SessionFromContext(ctx); before != nil {
		// Neither fails on what another session says.
		_ = session.AdvanceClusterTime(before.ClusterTime())
		_ = session.AdvanceOperationTime(before.OperationTime())
	}
	return mongo.NewSessionContext(ctx, session), func() { session.EndSession(context.WithoutCancel(ctx)) }
}

// goOn lets groups go on without their call until they are settled.
func (s *Store) goOn(ctx context.Context, groups []*group, do func(context.Context)) {
	for _, g := range groups {
		for i, d := range g.deliveries {
			g.deliveries[i] = new(*d) // so that it does not keep the bodies of all the call's deliveries
		}
	}
	ctx, endSession := s.session(ctx) // of its own: sessions are not for two goroutines
	s.calls.Add(1)                    // within a call, so that Close waits already
	go func() {
		defer s.calls.Done()
		defer endSession()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic while recording a delivery", "panic", p, "stack", string(debug.Stack()))
				for _, g := range groups {
					g.fail(fmt.Errorf("%w: panic", job.ErrOutcomeUnknown))
				}
			}
		}()
		do(ctx)
	}()
}

// whenTimed waits until leases may be granted, and returns the groups then. When the context ends before, they are given
// up, and none is returned.
func (s *Store) whenTimed(ctx context.Context, groups []*group) []*group {
	err := s.timed(ctx)
	if err == nil {
		return groups
	}
	for _, g := range groups {
		if g.tries.unknown || g.written { // a write of it was sent
			g.fail(fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err()))
		} else {
			g.fail(err)
		}
	}
	return nil
}

// alone records one group.
func (s *Store) alone(ctx context.Context, g *group) {
	for {
		if g.leases() && s.whenTimed(ctx, []*group{g}) == nil {
			return
		}
		if g.known {
			s.decide(ctx, g)
			return
		}
		if g.duplicates == suspectTries && s.isForeign(ctx, g) {
			return
		}
		r := s.round(ctx, []*group{g})
		if len(r.alone)+len(r.struck)+len(r.untimed) == 0 {
			return
		}
		if !g.known && !g.tries.wait() {
			g.giveUp()
			return
		}
	}
}

// round is one try of many groups.
type round struct {
	*Store
	ctx context.Context
	// struck are those that the database failed all alike, and failed is how.
	struck []*group
	failed *failure
	// alone are those that are to go on by themselves, untimed those that wait for the clock.
	alone, untimed []*group
	// looked is true once a refused hint had the unique index looked at, and index is what was wrong with it.
	looked bool
	index  error
}

// round writes the groups that are not yet written, reads those that are not new, and settles what is known then.
func (s *Store) round(ctx context.Context, groups []*group) *round {
	r := &round{Store: s, ctx: ctx}
	now, known := s.time()
	write := slices.DeleteFunc(slices.Clone(groups), func(g *group) bool {
		if !g.written && !known && g.leases() {
			g.tries.note(&failure{fateRetry, errNoClock})
			r.untimed = append(r.untimed, g)
			return true
		}
		return g.written
	})
	for len(write) > 0 {
		n, size := 0, 0
		for ; n < len(write); n++ {
			size += len(s.updateOf(write[n], now).bytes) + len(write[n].jobID) + 256
			if n > 0 && size > maxBulk {
				break
			}
		}
		r.write(write[:n])
		write = write[n:]
	}
	var read, decided []*group
	for _, g := range groups {
		switch {
		case g.written && g.created:
			g.known = true
			decided = append(decided, g)
		case g.written:
			read = append(read, g)
		}
	}
	if len(read) > 0 {
		decided = append(decided, r.read(read)...)
	}
	r.settle(decided)
	slices.SortFunc(r.struck, func(a, b *group) int { return cmp.Compare(a.jobID, b.jobID) })
	return r
}

// strike notes a failure that is the same for all.
func (r *round) strike(groups []*group, f *failure) {
	r.failed = f
	for _, g := range groups {
		if g.tries.note(f) {
			r.struck = append(r.struck, g)
		} else {
			g.giveUp()
		}
	}
}

// stray notes a failure of one group.
func (r *round) stray(g *group, f *failure) {
	if g.tries.note(f) {
		r.alone = append(r.alone, g)
		return
	}
	r.log.Error("the database refuses a delivery", "store", r.String(), "job_id", g.jobID, "error", r.explain(f))
	g.giveUp()
}

// write sends one bulk and notes each group's fate.
func (r *round) write(groups []*group) {
	hint := r.hintName()
	r.looked = false
	models := make([]mongo.WriteModel, len(groups))
	for i, g := range groups {
		m := mongo.NewUpdateOneModel().SetFilter(filter(g.jobID)).SetUpdate(bson.Raw(g.update.bytes)).SetUpsert(true)
		if hint != "" {
			m.SetHint(hint)
		}
		models[i] = m
	}
	tracked, sent := track(r.ctx)
	// Unordered, so that one bad item spoils no other. A lone one has no others, and an ordered bulk costs DocumentDB less.
	result, err := r.coll.BulkWrite(tracked, models, options.BulkWrite().SetOrdered(len(models) == 1))
	var bulk mongo.BulkWriteException
	if err != nil && !errors.As(err, &bulk) || sent.commands > 1 {
		f := &failure{fateUnknown, cmp.Or(err, errSplit)}
		if sent.commands <= 1 {
			f = commandFailed(err, sent)
		}
		if len(groups) > 1 || groups[0].tries.n == 0 { // what goes alone fails often in an outage
			r.log.Warn("a bulk of deliveries failed", "store", r.String(), "deliveries", len(groups), "error", r.explain(f))
		}
		r.strike(groups, f)
		return
	}
	if bulk.WriteConcernError != nil {
		r.log.Warn("a write concern was not met", "store", r.String(), "code", bulk.WriteConcernError.Code, "error", bulk.WriteConcernError.Message)
	}
	failed := failedItems(bulk)
	// Some mongos lose the write concern error of a bulk in which an item failed: what was created is then to be read at a
	// majority before it is answered.
	confirm := len(failed) > 0 && r.deployment.Load().kind == sharded
	var unconfirmed []*group
	for i, g := range groups {
		e, bad := failed[i]
		switch {
		case bad:
			r.item(g, e, hint != "")
		case bulk.WriteConcernError != nil:
			// It may yet be rolled back: the next try finds our own record, or makes it.
			unconfirmed = append(unconfirmed, g)
		default:
			g.written, g.duplicates = true, 0
			_, upserted := result.UpsertedIDs[int64(i)]
			if g.created = upserted && !confirm; g.created {
				g.record = stored{Record: g.fresh}
				g.record.Body, g.record.Deliveries = job.Body{}, int64(len(g.deliveries))
			}
		}
	}
	if len(unconfirmed) > 0 {
		r.strike(unconfirmed, &failure{fateUnknown, err})
	}
}

// item notes the failure of one item of a bulk.
func (r *round) item(g *group, e mongo.WriteError, hinted bool) {
	g.duplicates++
	if e.Code != codeDuplicateKey {
		g.duplicates = 0
	}
	switch f := (&failure{itemFate(e), e}); {
	case hinted && aboutHint(e.Code) && !g.looked:
		// The index is gone, the server takes no hint here, or the error is about the stored counter.
		if !r.looked { // once for all that the bulk held
			r.looked, r.index = true, r.indexSuspect(r.ctx)
		}
		if r.index != nil {
			r.strike([]*group{g}, &failure{fateUnsent, r.index})
			return
		}
		g.looked = true
		r.stray(g, &failure{fateRetry, e})
	case g.update.embedded && aboutDocument(e.Code):
		// The text alone is stored then, and the delivery still counts.
		g.textOnly, g.update = true, update{}
		r.stray(g, &failure{fateRetry, e})
	default:
		if f.fate == fateStrange {
			r.strangeCode(e, g.jobID)
		}
		r.stray(g, f)
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

// isForeign gives the group up when its key is a duplicate in another index than ours, where the database does not say
// which index it is: then the job is not recorded.
func (s *Store) isForeign(ctx context.Context, g *group) bool {
	records, unusable, err := s.find(ctx, []*group{g})
	if err != nil || len(records)+len(unusable) > 0 {
		return false
	}
	cause := errors.New("it is a duplicate in a unique index that is not ours")
	s.log.Error("the database refuses a delivery", "store", s.String(), "job_id", g.jobID, "error", cause)
	g.tries.note(&failure{fateRefused, cause})
	g.giveUp()
	return true
}

// read reads the records of groups that were recorded before, and returns those that it found.
func (r *round) read(groups []*group) (found []*group) {
	records, unusable, err := r.find(r.ctx, groups)
	if err != nil {
		r.log.Warn("a read of recorded jobs failed", "store", r.String(), "jobs", len(groups), "error", r.explain(err))
		r.strike(groups, &failure{fateUnknown, err})
		return nil
	}
	for _, g := range groups {
		if record, ok := records[g.jobID]; ok {
			g.record, g.known = record, true
			found = append(found, g)
			continue
		}
		if cause := unusable[g.jobID]; cause != nil {
			r.log.Error("a stored record cannot be used", "store", r.String(), "job_id", g.jobID, "error", cause)
			g.fail(fmt.Errorf("%w: %w", job.ErrRecordUnusable, cause))
			continue
		}
		// It is gone since the write, so it is to be written anew, with new times.
		g.written, g.update = false, update{}
		r.stray(g, &failure{fateUnknown, errors.New("the record was deleted while it was being read")})
	}
	return found
}

// settle decides the groups and settles them, but for those that may claim work: these go on alone.
func (r *round) settle(groups []*group) {
	var conflicting []*group
	for _, g := range groups {
		if slices.ContainsFunc(g.deliveries, func(d *job.Delivery) bool {
			return job.Decide(&g.record.Record, d, r.now()).Claim && r.free(&g.record.Work)
		}) {
			r.alone = append(r.alone, g)
			continue
		}
		if r.outcomesOf(r.ctx, g) {
			conflicting = append(conflicting, g)
		} else {
			g.settleAll()
		}
	}
	r.recordConflicts(r.ctx, conflicting)
}

// decide decides a group that goes alone, and settles it.
func (s *Store) decide(ctx context.Context, g *group) {
	if s.outcomesOf(ctx, g) {
		s.recordConflicts(ctx, []*group{g})
	} else {
		g.settleAll()
	}
}

// outcomesOf decides each delivery of the group, and tells whether there are conflicts to record. The record counts all
// the group's deliveries, and each is told what the count was after its own.
func (s *Store) outcomesOf(ctx context.Context, g *group) (conflicts bool) {
	deliveries := g.record.Deliveries
	g.outcomes = make([]job.Outcome, len(g.deliveries))
	for i, d := range g.deliveries {
		o := &g.outcomes[i]
		if *o = s.outcome(ctx, g, d); o.Err != nil {
			continue
		}
		o.Record.Deliveries = deliveries - int64(len(g.deliveries)-1-i)
		conflicts = conflicts || o.Verdict.Conflict != nil
	}
	return conflicts
}

// settleAll tells the callers their outcomes.
func (g *group) settleAll() {
	if g.settled.Swap(true) {
		return
	}
	for i, o := range g.outcomes {
		g.settle(g.places[i], o)
	}
}

// fail tells all callers the same error.
func (g *group) fail(err error) {
	if g.settled.Swap(true) {
		return
	}
	for _, place := range g.places {
		g.settle(place, job.Outcome{Err: err})
	}
}

func (g *group) giveUp() { g.fail(g.tries.err()) }

// recordConflicts counts the conflicts, keeps each job's latest, and settles the groups. Best effort: the deliveries are
// recorded and decided, and a failure here must not make that unknown.
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
	for _, g := range groups {
		g.settleAll()
	}
}

func conflictUpdate(n int, c *job.Conflict) bson.D {
	return bson.D{
		{Key: "$inc", Value: bson.D{{Key: fieldConflicts, Value: int32(n)}}},
		{Key: "$set", Value: bson.D{{Key: fieldLastConflict, Value: bson.D{
			{Key: conflictKind, Value: c.Kind.String()}, {Key: conflictEvent, Value: c.Event},
			{Key: conflictStatus, Value: c.Status}, {Key: conflictTime, Value: c.Time},
		}}}},
	}
}

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
