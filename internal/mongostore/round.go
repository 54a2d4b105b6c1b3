package mongostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/jobonce/jobonce/internal/job"
)

// mostLooks is how often a refused hint has the unique index looked at. When it is good each time, the error is not about the hint: nobody drops
// an index that often while it is made anew.
const mostLooks = 3

// suspectTries is after how many tries a duplicate key is looked into.
const suspectTries = 8

// recording is one try of many groups.
type recording struct {
	round[*group]
	// looked is true once a refused hint had the unique index looked at, and index is what was wrong with it.
	looked bool
	index  error
}

// recordRound writes the groups that are not yet written, reads those that are not new, and settles what is known then.
func (s *Store) recordRound(ctx context.Context, groups []*group) *round[*group] {
	r := &recording{round: round[*group]{Store: s, ctx: ctx}}
	now, known := s.time()
	write := slices.DeleteFunc(slices.Clone(groups), func(g *group) bool {
		if !g.written && !known && g.leases() {
			g.tries.note(&failure{fateRetry, errNoClock})
			r.untimed = append(r.untimed, g)
			return true
		}
		return g.written
	})
	for part := range parts(write, func(g *group) int { return len(s.updateOf(g, now).bytes) + len(g.jobID) }) {
		r.write(part)
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
	return &r.round
}

// write sends one bulk and notes each group's fate.
func (r *recording) write(groups []*group) {
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
	b := r.Store.write(r.ctx, models)
	if b.whole != nil {
		if len(groups) > 1 || groups[0].tries.n == 0 { // what goes alone fails often in an outage
			r.log.Warn("a bulk of deliveries failed", "store", r.String(), "deliveries", len(groups), "error", r.explain(b.whole))
		}
		r.strike(groups, b.whole)
		return
	}
	confirm := b.confirm(r.Store)
	var unconfirmed []*group
	for i, g := range groups {
		e, bad := b.failed[i]
		switch {
		case bad:
			g.tries.unknown = g.tries.unknown || b.repeated
			r.item(g, e, hint != "")
		case b.unsafe != nil:
			// It may yet be rolled back: the next try finds our own record, or makes it.
			unconfirmed = append(unconfirmed, g)
		default:
			g.written, g.duplicates = true, 0
			_, upserted := b.upserted[int64(i)]
			if g.created = upserted && !confirm; g.created {
				g.record = stored{Record: g.fresh}
				g.record.Body, g.record.Deliveries = job.Body{}, int64(len(g.deliveries))
			}
		}
	}
	if len(unconfirmed) > 0 {
		r.strike(unconfirmed, &failure{fateUnknown, b.unsafe})
	}
}

// item notes the failure of one item of a bulk.
func (r *recording) item(g *group, e mongo.WriteError, hinted bool) {
	g.duplicates++
	if e.Code != codeDuplicateKey {
		g.duplicates = 0
	}
	switch f := (&failure{itemFate(e), e}); {
	case hinted && aboutHint(e.Code):
		// The index is gone, the server takes no hint here, or the error is about the stored counter: then it comes again, and the index is good.
		if !r.looked { // once for all that the bulk held
			r.looked, r.index = true, r.indexSuspect(r.ctx)
		}
		if r.index != nil {
			r.strike([]*group{g}, &failure{fateUnsent, r.index})
			return
		}
		if g.looks++; g.looks < mostLooks {
			f = &failure{fateRetry, e}
		}
		r.stray(g, f)
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
		embed := s.embedding()
		if g.textOnly {
			embed = textAlone
		}
		g.update = newUpdate(&g.fresh, len(g.deliveries), d.Object, embed)
	}
	return g.update
}

// isForeign gives the group up when its key is a duplicate in another index than ours, where the database does not say
// which index it is: then the job is not recorded.
func (s *Store) isForeign(ctx context.Context, g *group) bool {
	records, unusable, err := s.find(ctx, []string{g.jobID})
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
func (r *recording) read(groups []*group) (found []*group) {
	records, unusable, err := r.find(r.ctx, idsOf(groups))
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

// settle decides the groups and settles them, but for those that may change their job's work: these go on alone.
func (r *recording) settle(groups []*group) {
	var conflicting []*group
	for _, g := range groups {
		if slices.ContainsFunc(g.deliveries, func(d *job.Delivery) bool {
			v := job.Decide(&g.record.Record, d, r.now())
			return v.Claim && r.free(&g.record.Work) || tellsAgain(v)
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
