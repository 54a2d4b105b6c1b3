package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/jobonce/jobonce/internal/job"
)

// ChangeLeases implements [job.Store].
func (s *Store) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	return all(ctx, changes, s.ChangeEach)
}

// all waits for what is settled one by one.
func all[T, O any](ctx context.Context, items []T, each func(context.Context, []T, func(int, O))) []O {
	out := make([]O, len(items))
	var open sync.WaitGroup
	open.Add(len(items))
	each(ctx, items, func(i int, o O) {
		out[i] = o
		open.Done()
	})
	open.Wait()
	return out
}

// ChangeEach implements [job.EachChanger]: one bulk for all, on the only condition that each token holds its lease, and one
// read for those that it leaves open; some are read before, see [holder.prepare]. That a lease is lost is confirmed.
func (s *Store) ChangeEach(ctx context.Context, changes []job.LeaseChange, settle func(i int, o job.LeaseOutcome)) {
	done, err := s.begin(ctx)
	if err != nil {
		for i := range changes {
			settle(i, job.LeaseOutcome{Err: err})
		}
		return
	}
	defer done()
	holders := s.groupByLease(ctx, changes, settle)
	ctx, endSession := s.session(ctx)
	defer endSession()
	together(ctx, s, holders, s.changeRound, s.changeAlone)
}

// holder is the changes of one lease within a call, and how far the first that is not settled has come.
type holder struct {
	jobID, token string
	began        time.Time // when the call did
	changes      []*leaseChange
	at           int // the first that is not settled
	settle       func(place int, o job.LeaseOutcome)
	tries        *tries

	// look is set while the job is to be read before anything is sent; work is what was read last.
	look bool
	work job.Work
	// suspect is set when the job was read, and the token did not hold the lease.
	suspect bool
	// renewed is what a renewal that was sent makes of it.
	renewed job.Work
	// failed is how the change failed that was sent last, and may have been made; alone tells that it was by itself.
	failed *failure
	strays bool
	// among is set when the change was sent, alone or beside others, and all or some of these were made: which, a read tells.
	among bool
	// doubt is set when a negative answer could not be confirmed.
	doubt bool
}

// leaseChange is a change with its place in the call.
type leaseChange struct {
	job.LeaseChange
	place   int
	settled atomic.Bool // never twice, even where one of many that went on together panics
}

// groupByLease sorts the changes by job.
func (s *Store) groupByLease(ctx context.Context, changes []job.LeaseChange, settle func(int, job.LeaseOutcome)) []*holder {
	type lease struct{ jobID, token string }
	byLease := make(map[lease]*holder, len(changes))
	holders, began := make([]*holder, 0, len(changes)), s.now()
	for i := range changes {
		c := &leaseChange{LeaseChange: changes[i], place: i}
		h := byLease[lease{c.JobID, c.Token}]
		if h == nil {
			h = &holder{jobID: c.JobID, token: c.Token, began: began, settle: settle, tries: s.newTries(ctx)}
			byLease[lease{c.JobID, c.Token}] = h
			holders = append(holders, h)
		}
		h.changes = append(h.changes, c)
	}
	for _, h := range holders {
		h.prepare(len(holders) == 1)
	}
	inOrder(holders)
	return holders
}

// prepare begins with the next change. When a bulk has not matched all, only reading tells which of its changes were made. A
// completion is there to be read afterwards. What was released another caller may have claimed by then, and a lease that was
// renewed may be over, so that nobody could tell whether they were: those whose lease is lost are found out before. A renewal
// needs the generation and the due time anyway, to tell its caller.
func (h *holder) prepare(alone bool) {
	c := h.change()
	h.look = c.Kind == job.Renewal || c.Kind == job.Releasing && !alone || c.Token == "" // which holds nothing, and is never stored
	h.suspect, h.renewed, h.failed, h.strays, h.among, h.doubt = false, job.Work{}, nil, false, false, false
}

// change is the first that is not settled.
func (h *holder) change() *leaseChange { return h.changes[h.at] }

// errEarlier: a change waits for one before it, of which nobody knows.
var errEarlier = errors.New("what became of an earlier change of the lease is not known")

func (h *holder) id() string { return h.jobID }

func (h *holder) past() *tries { return h.tries }

func (h *holder) sent() bool { return h.among }

func (h *holder) detach() {} // what it has is its own

// giveUp settles the change by what its tries came to. What comes after it is not sent.
func (h *holder) giveUp() {
	h.tries.unknown = h.tries.unknown || h.among || h.doubt
	h.change().tell(h.settle, job.LeaseOutcome{Err: h.tries.err()})
	h.fail(fmt.Errorf("%w: %w", job.ErrUnavailable, errEarlier))
}

func (h *holder) fail(err error) {
	for _, c := range h.changes {
		c.tell(h.settle, job.LeaseOutcome{Err: err})
	}
}

func (c *leaseChange) tell(settle func(int, job.LeaseOutcome), o job.LeaseOutcome) {
	if !c.settled.Swap(true) {
		settle(c.place, o)
	}
}

// settled tells the caller what became of the change, and whether there is another one to be made.
func (s *Store) settled(h *holder, o job.LeaseOutcome) (more bool) {
	h.change().tell(h.settle, o)
	if h.at++; h.at == len(h.changes) {
		return false
	}
	h.tries = s.newTries(h.tries.ctx)
	h.prepare(false)
	return true
}

// update is what the change does to work under its token's lease.
func (h *holder) update(now time.Time) any {
	c := h.change()
	if c.Kind == job.Renewal {
		h.renewed, _ = h.work.Renew(c.Token, c.Duration, now) // which its token holds
		return renewal(h.renewed.Due, h.renewed.Granted)
	}
	held := running(c.Token)
	next, _ := held.Change(c.LeaseChange, now) // which its token holds
	return endOf(held, next)
}

// endOf is the update that ends the lease held, which [running] made: the attempts are changed by as many as it takes back.
func endOf(held, next job.Work) bson.D {
	attempts := next.Attempts - held.Attempts
	next.Attempts = held.Attempts
	update := workChange(&held, &next)
	if attempts != 0 {
		update = append(update, bson.E{Key: "$inc", Value: bson.D{{Key: inWork(workAttempts), Value: attempts}}})
	}
	return update
}

// renewal lets a lease run until due, and never makes it shorter: one that lands late must not take back what the caller of
// a later one was told. It always changes something, be it by a millisecond: a primary that was deposed, and does not know it,
// answers at once that it has done what changes nothing.
func renewal(due time.Time, d time.Duration) mongo.Pipeline {
	most := func(field string, theirs, ours any) bson.E { // of absent values that of the other
		return bson.E{Key: inWork(field), Value: bson.D{{Key: "$max", Value: bson.A{theirs, ours}}}}
	}
	longer := bson.D{{Key: "$add", Value: bson.A{"$" + inWork(workDue), 1}}}
	granted := bson.E{Key: inWork(workGranted), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + inWork(workGranted), job.MaxLease.Milliseconds()}}}}
	return mongo.Pipeline{
		{{Key: "$set", Value: bson.D{granted}}},
		{{Key: "$set", Value: bson.D{most(workDue, longer, due), most(workGranted, "$"+inWork(workGranted), d.Milliseconds())}}},
	}
}

// heldWith matches the job while the token holds the lease on its work.
func heldWith(jobID, token string) bson.D {
	return bson.D{
		{Key: fieldJobID, Value: jobID},
		{Key: inWork(workState), Value: job.StateLeased.String()},
		{Key: inWork(workToken), Value: token},
	}
}

// running is work under a lease. Every field that the end of a lease changes has a value here that it cannot become, so
// that the difference to what the work becomes is the whole change.
func running(token string) job.Work {
	const not = "\xff" // not UTF-8
	return job.Work{
		State: job.StateLeased, Mode: job.ModeLeased, Due: time.UnixMilli(1), Granted: -time.Millisecond, Token: token, Lapses: 1,
		RequestID: not, ClaimID: not, Error: not, Result: not,
	}
}

// isMade tells of work as it was read whether the change was made, by this call or an earlier one.
func (h *holder) isMade(w job.Work, now time.Time) bool {
	c := h.change()
	if c.Kind == job.Renewal { // or another one of the same lease, which is as good
		return !h.renewed.Due.IsZero() && w.Holds(c.Token) && !w.Due.Before(h.renewed.Due)
	}
	next, err := w.Change(c.LeaseChange, now)
	return err == nil && next == w
}
