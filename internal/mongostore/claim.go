package mongostore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/payload"
)

const (
	// maxClaimRounds bounds how often a claim looks again after others took what it saw, or the database failed it.
	maxClaimRounds = 8
	// examinedEach bounds how much of what is due a claim with a prefix looks at, times what it takes.
	examinedEach = 10
	// claimSettleTime is how long a claim goes on finding out what it got once its caller has left.
	claimSettleTime = 2 * time.Second
)

// Claim implements [job.Store]: it reads what the request holds already, and what is due; puts some of that under leases,
// provided that nobody else has changed it; and reads again which of them it got. These are four round trips, however many
// jobs.
func (s *Store) Claim(ctx context.Context, req job.ClaimRequest) ([]job.Claimed, error) {
	done, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.CheckWork(ctx); err != nil {
		return nil, err
	}
	if err := s.timed(ctx); err != nil {
		return nil, err
	}
	select {
	case s.claiming <- struct{}{}:
		defer func() { <-s.claiming }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	c := &claim{Store: s, caller: ctx, req: req, tries: s.newTries(ctx), granted: map[string]grant{}}
	ctx, endSession := s.session(ctx)
	defer endSession()
	return c.run(ctx)
}

// claim is one call of Claim.
type claim struct {
	*Store
	caller context.Context
	req    job.ClaimRequest
	tries  *tries
	// granted is what this call has tried to put under leases, by their tokens; sent is true once any may be.
	granted map[string]grant
	sent    bool
}

// grant is a lease that was to be granted, and its place among what was due.
type grant struct {
	work  job.Work
	place int
}

func (c *claim) run(ctx context.Context) ([]job.Claimed, error) {
	if held, err := c.confirm(ctx); err != nil || len(held) > 0 {
		return held, err
	}
	// Whoever asked may leave while leases are being granted. Which they are must be known, so that they can be given back.
	ctx, stop := outlast(ctx, c.caller, claimSettleTime)
	defer stop()
	c.tries.ctx = ctx
	for round := 1; ; round++ {
		due, f := c.lease(ctx)
		if f != nil {
			c.tries.note(f)
		}
		// Also where nothing was due: a lease of the request that had lapsed may have been renewed meanwhile.
		held, err := c.confirm(ctx)
		if f == nil && err == nil && !c.tries.unknown {
			c.tries.last = nil // what failed before has healed
		}
		switch {
		case err != nil || len(held) > 0:
			return held, err
		case f == nil && !due && !c.tries.unknown:
			return nil, nil
		case !due, f != nil && f.hopeless(), round == maxClaimRounds, c.caller.Err() != nil, !c.tries.wait():
			return nil, c.failure()
		}
	}
}

// failure is the error of a claim that got nothing; nil when nothing went wrong on the way: then others were faster every
// time.
func (c *claim) failure() error {
	if c.tries.last == nil {
		return nil
	}
	for _, g := range c.granted { // one that has run out since is not found any more
		c.tries.unknown = c.tries.unknown || c.sent && !g.work.Due.After(c.latest())
	}
	c.tries.ctx = c.caller
	return c.tries.err()
}

// outlast is ctx without its end, but ends a while after the caller's context.
func outlast(ctx, caller context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(caller, func() { time.AfterFunc(while, cancel) })
	return ctx, func() {
		stop()
		cancel()
	}
}

// lease tries to put what is due under leases of the request, as much as that takes, and tells whether anything was due. How
// much of it was got shows only when it is read.
func (c *claim) lease(ctx context.Context) (some bool, f *failure) {
	if err := c.timed(ctx); err != nil {
		return false, &failure{fateRetry, err}
	}
	due, f := c.due(ctx, c.local)
	if f == nil && len(due) == 0 { // which may be because of a claim that is rolled back yet
		due, f = c.due(ctx, c.coll)
	}
	if f != nil || len(due) == 0 {
		return false, f
	}
	picked := c.picker.pick(due, c.req.Max, int64(c.req.MaxBytes), time.Now())
	now, known := c.time()
	if !known {
		return true, &failure{fateRetry, errNoClock}
	}
	// Sorted by key, so that overlapping bulks cannot deadlock.
	slices.SortFunc(picked, func(a, b candidate) int { return cmp.Compare(a.JobID, b.JobID) })
	var models []mongo.WriteModel
	for i := range picked {
		if !c.free(&picked[i].Work) { // the clock was set back since it was read
			continue
		}
		next := picked[i].Work.Claim(c.grant(), now)
		if next.State == job.StateDead {
			c.bury(ctx, picked[i].JobID)
			continue
		}
		c.granted[next.Token] = grant{next, picked[i].place}
		models = append(models, mongo.NewUpdateOneModel().SetFilter(picked[i].unchanged()).SetUpdate(workChange(&picked[i].Work, &next)))
	}
	if len(models) == 0 {
		return true, nil
	}
	b := c.write(ctx, models)
	if f = b.failure(); f != nil {
		c.log.Warn("a claim failed, wholly or in part", "store", c.String(), "jobs", len(models), "error", c.explain(f))
	} else {
		c.picker.count(len(models), b.matched)
	}
	c.sent = c.sent || f == nil || f.fate != fateUnsent
	return true, f
}

// grant is a lease that the request asks for.
func (c *claim) grant() job.Grant {
	return job.Grant{Token: job.NewToken(), Duration: c.req.Lease, ClaimID: c.req.RequestID, Caller: c.req.Caller,
		MaxAttempts: c.opts.MaxAttempts}
}

// bury makes a job dead whose attempts are used up. It does so by itself, to know that it was this call that did it.
func (c *claim) bury(ctx context.Context, jobID string) {
	r, f := c.read(ctx, jobID, false)
	if f != nil || !c.free(&r.Work) {
		return
	}
	next := r.Work.Claim(c.grant(), c.now())
	if next.State != job.StateDead {
		return
	}
	if f = c.swap(ctx, &r, &next); f == nil {
		c.opts.Watch.Tell(jobID, &r.Work, &next)
	}
	c.sent = c.sent || f == nil || f.unknown()
}

// candidate is work that is due, its place among it, and how large the body is.
type candidate struct {
	stored
	place int
	size  int64
}

// bodySize is how large the body is; where a document stands for it, about: see [sizeSlack].
var bodySize = bson.D{{Key: "$switch", Value: bson.D{
	{Key: "branches", Value: bson.A{
		bson.D{{Key: "case", Value: isOfType(fieldPayloadText, "string")}, {Key: "then", Value: bson.D{{Key: "$strLenBytes", Value: "$" + fieldPayloadText}}}},
		bson.D{{Key: "case", Value: isOfType(fieldPayloadBytes, "binData")}, {Key: "then", Value: bson.D{{Key: "$binarySize", Value: "$" + fieldPayloadBytes}}}},
	}},
	{Key: "default", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}},
}}}

func isOfType(field, bsonType string) bson.D {
	return bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$" + field}}, bsonType}}}
}

// candidateFields are the fields that claiming work depends on. Its last error and result, which may be large, are none.
var candidateFields = func() bson.D {
	fields := bson.D{{Key: fieldJobID, Value: 1}, {Key: "size", Value: bodySize}}
	for _, field := range []string{
		workState, workMode, workDue, workGranted, workLapses, workRequeues, workToken, workGeneration, workAttempts, workRequestID,
		workFingerprint, workClaimID, workLease,
	} {
		fields = append(fields, bson.E{Key: inWork(field), Value: 1})
	}
	return fields
}()

// due reads what is due, the oldest first, without bodies. Of coll's read concerns the local one shows soonest what others
// have claimed. With a prefix it looks at the group of that alone, and for as long as there may be work that lacks one, at that.
func (c *claim) due(ctx context.Context, coll *mongo.Collection) (due []candidate, f *failure) {
	paused, err := c.inForce(ctx)
	if err != nil {
		return nil, &failure{fateRetry, err}
	}
	if job.PausedAll(paused) {
		return nil, nil
	}
	from, now := c.passedUntil(paused), c.now()
	n, filter := c.picker.room(c.req.Max), append(dueFilter(from, now, c.lapsed(), &c.req), notPaused(paused)...)
	if c.req.Prefix == "" {
		due, f = c.candidates(ctx, coll, filter, n, dueIndexName)
		if f == nil && len(c.req.Events) == 0 {
			if len(due) > 0 {
				now = due[0].Work.Due
			}
			c.pass(paused, from, now)
		}
		return due, f
	}
	n = min(n, examinedEach*c.req.Max)
	due, f = c.inGroup(ctx, coll, job.Group(c.req.Prefix), filter, n)
	if f != nil || c.grouped.Load() {
		return due, f
	}
	older, f := c.inGroup(ctx, coll, nil, filter, n)
	due = append(due, older...)
	slices.SortStableFunc(due, func(a, b candidate) int { return a.Work.Due.Compare(b.Work.Due) })
	due = due[:min(n, len(due))]
	for i := range due {
		due[i].place = i
	}
	return due, f
}

// inGroup reads the first n of a group that a filter finds; of nil, of what lacks one.
func (c *claim) inGroup(ctx context.Context, coll *mongo.Collection, group any, filter bson.D, n int) (due []candidate, f *failure) {
	return c.candidates(ctx, coll, append(ofGroup(group), filter...), n, groupIndexName)
}

// candidates reads the first n that a filter finds. Those that cannot be read stay due: the next claim looks beyond them.
func (c *claim) candidates(ctx context.Context, coll *mongo.Collection, filter bson.D, n int, index string) (due []candidate, f *failure) {
	unreadable := 0
	opts := options.Find().SetProjection(candidateFields).SetLimit(int64(n)).SetSort(bson.D{{Key: inWork(workDue), Value: 1}})
	f = c.along(ctx, coll, index, filter, opts, func(doc bson.Raw) bool {
		if r, err := decode(doc, false); err == nil {
			due = append(due, candidate{r, len(due), intOf(doc.Lookup("size"))})
		} else {
			unreadable++
		}
		return true
	})
	if unreadable > 0 {
		c.picker.widen()
	}
	return due, f
}

// LongestDue implements [job.Worker]. It looks at the index and one document, and at what is paused and has been due for longer.
func (s *Store) LongestDue(ctx context.Context) (jobID string, since time.Duration, err error) {
	done, err := s.begin(ctx)
	if err != nil {
		return "", 0, err
	}
	defer done()
	if err := s.CheckWork(ctx); err != nil { // without the index it would read the whole collection
		return "", 0, err
	}
	if err := s.timed(ctx); err != nil {
		return "", 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	paused, err := s.inForce(ctx)
	if err != nil || job.PausedAll(paused) {
		return "", 0, err
	}
	from, now := s.passedUntil(paused), job.Millis(s.now())
	projection := bson.D{{Key: fieldJobID, Value: 1}, {Key: fieldWork, Value: 1}}
	filter := append(dueFilter(from, now, now, &job.ClaimRequest{}), notPaused(paused)...)
	opts := options.Find().SetProjection(projection).SetLimit(1).SetSort(bson.D{{Key: inWork(workDue), Value: 1}})
	f := s.along(ctx, s.coll, dueIndexName, filter, opts, func(doc bson.Raw) bool {
		if r, err := decode(doc, false); err == nil {
			jobID, since = r.JobID, now.Sub(r.Work.Due)
		}
		return true
	})
	if f != nil {
		return "", 0, fmt.Errorf("%w: %v", job.ErrUnavailable, s.explain(f))
	}
	s.pass(paused, from, now.Add(-since))
	return jobID, since, nil
}

// confirm reads until it is known what the request holds, and gives that as the answer.
func (c *claim) confirm(ctx context.Context) ([]job.Claimed, error) {
	for {
		held, f := c.held(ctx)
		if f == nil {
			return held, nil
		}
		if !c.tries.again(f) {
			c.tries.unknown = c.tries.unknown || c.sent
			return nil, c.failure()
		}
	}
}

// held reads the leases that the request holds, granted by this call or by an earlier one, with the bodies, as much as the
// request takes, and has not been paused meanwhile. A lease of an earlier call is marked as told again; the failure says that one could not be, because it was
// changed at the same time, for example. What this call got and the answer has no room for is given back.
func (c *claim) held(ctx context.Context) (out []job.Claimed, _ *failure) {
	var held []stored
	f := c.along(ctx, c.coll, claimIndexName, heldBy(&c.req, c.now()), options.Find().SetSort(bson.D{{Key: fieldFirstSeen, Value: 1}}), func(doc bson.Raw) bool {
		r, err := decode(doc, true)
		if err != nil {
			c.log.Error("claimed work cannot be read; its lease lapses", "store", c.String(), "job_id", r.JobID, "error", c.explain(err))
			return true
		}
		held = append(held, r)
		return true
	})
	if f != nil {
		return nil, f
	}
	place := func(r stored) int {
		if g, mine := c.granted[r.Work.Token]; mine {
			return g.place
		}
		return job.MaxClaimJobs // what an earlier call of the same request got comes last
	}
	slices.SortStableFunc(held, func(a, b stored) int { return cmp.Compare(place(a), place(b)) })
	bytes := 0
	for _, r := range held {
		bytes += len(r.Body.Data)
		room := len(out) == 0 || len(out) < c.req.Max && bytes <= c.req.MaxBytes
		g, mine := c.granted[r.Work.Token]
		switch {
		case mine:
			g.work.Error, g.work.Result = r.Work.Error, r.Work.Result
			r.Work = g.work // as granted, whatever another call has marked since
		case room:
			next := c.told(r.Work).Retell()
			if f := c.swap(ctx, &r, &next); f != nil {
				return nil, f
			}
			r.Work = next
		}
		claimed := job.Claimed{Record: r.Record, Lease: r.Work.Lease(c.latest()), Granted: mine}
		switch {
		case room:
			out = append(out, claimed)
		case mine:
			if err := c.unclaim(ctx, &claimed); err != nil {
				c.log.Warn("a claim too many could not be given back; its lease lapses", "store", c.String(), "job_id", r.JobID, "error", c.explain(err))
			}
		}
	}
	if out, f = c.giveBackPaused(ctx, out); f != nil {
		return nil, f
	}
	for i := range out {
		if r := &out[i].Record; out[i].Granted {
			c.opts.Watch.Tell(r.JobID, &job.Work{}, &r.Work)
		}
	}
	return out, nil
}

// along is each by the index of that name. Databases guess how much they have to read, and may take another one, such as that on the
// ids, and read all there ever was. Where there is none of that name, but another one on its key, the database chooses.
func (s *Store) along(
	ctx context.Context, coll *mongo.Collection, index string, query any, opts *options.FindOptionsBuilder, f func(doc bson.Raw) bool,
) *failure {
	failed := s.each(ctx, coll, query, opts.SetHint(index), f)
	if failed != nil && hasCode(failed, codeBadValue, codeIndexNotFound) { // before any document
		failed = s.each(ctx, coll, query, opts.SetHint(nil), f)
	}
	return failed
}

// each calls f with the documents that a query finds, until that returns false.
func (s *Store) each(ctx context.Context, coll *mongo.Collection, query any, opts *options.FindOptionsBuilder, f func(doc bson.Raw) bool) *failure {
	tracked, sent := track(ctx)
	cursor, err := coll.Find(tracked, query, opts)
	if err != nil {
		return readFailed(err, sent)
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(tracked) {
		if !f(cursor.Current) {
			return nil
		}
	}
	if err := cursor.Err(); err != nil {
		return readFailed(err, sent)
	}
	return nil
}

// heldBy matches the running leases of a ClaimWork call, as [job.SameCaller] has it.
func heldBy(r *job.ClaimRequest, now time.Time) bson.D {
	f := bson.D{
		{Key: inWork(workClaimID), Value: bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: r.RequestID}}},
		{Key: inWork(workState), Value: job.StateLeased.String()},
		{Key: inWork(workDue), Value: bson.D{{Key: "$gt", Value: now}}},
	}
	if r.Caller != "" {
		f = append(f, bson.E{Key: inWork(workLease + "." + leaseCaller), Value: bson.D{{Key: "$in", Value: bson.A{nil, r.Caller}}}})
	}
	return append(f, under(r.Prefix)...)
}

// ofGroup matches work of a group; of nil, work that lacks one.
func ofGroup(group any) bson.D {
	return bson.D{{Key: inWork(workGroup), Value: bson.D{{Key: "$eq", Value: group}}}}
}

// under matches jobs whose ids begin with the prefix, if there is one. It ends in ":", after which comes ";".
func under(prefix string) bson.D {
	if prefix == "" {
		return nil
	}
	ids := bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: strings.TrimSuffix(prefix, ":") + ";"}}
	return bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: fieldJobID, Value: ids}}}}}
}

// dueFilter matches work that may be claimed: queued and due, or under a lease that had lapsed by the earlier time; and not due
// before from, unless that is zero. It names all that a claim needs, so that what can never be claimed hides nothing.
func dueFilter(from, now, lapsed time.Time, r *job.ClaimRequest) bson.D {
	f := append(dueBy(from, now), claimable(lapsed)...)
	if len(r.Events) > 0 {
		f = append(f, bson.E{Key: fieldEvent, Value: bson.D{{Key: "$in", Value: r.Events}}})
	}
	return append(f, under(r.Prefix)...)
}

// dueBy matches what is due. That the field exists follows from the comparison, but DocumentDB takes the partial index only
// when it is said.
func dueBy(from, now time.Time) bson.D {
	times := bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: now}}
	if !from.IsZero() {
		times = append(times, bson.E{Key: "$gte", Value: from})
	}
	return bson.D{{Key: inWork(workDue), Value: times}}
}

// claimable matches work in a state that can be claimed, of a job with an id that can be answered, and a body that can be read.
func claimable(lapsed time.Time) bson.D {
	return bson.D{
		{Key: "$or", Value: bson.A{
			bson.D{{Key: inWork(workState), Value: job.StateQueued.String()}},
			bson.D{{Key: inWork(workState), Value: job.StateLeased.String()}, {Key: inWork(workDue), Value: bson.D{{Key: "$lte", Value: lapsed}}}},
		}},
		{Key: fieldJobID, Value: text()},
		{Key: fieldPayloadForm, Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: int32(payload.MaxForm)}}}}},
	}
}
