package explore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/storetest"
)

// scenario is what a few callers do at once. Each caller has a store of its own, as if it were in another process, unless
// they share one.
type scenario struct {
	name   string
	core   bool // explored with two faults, on a replica set, in the short form too
	long   bool // explored in the long form alone
	calm   bool // explored without faults alone
	doubts bool // that a call cannot know what became of it needs no fault
	shared bool
	hands  bool // the second caller, in another store, waits until the first is answered
	pauses bool // callers pause claims, and resume them
	// expected is set where the first job is expected before all else, and overdue; polled where a poller has it. awaits is set where
	// callers have to do with a webhook that is to come, and what became of that is checked in all.
	expected, polled, awaits bool
	// indexes is set where the unique index may be lost.
	indexes bool
	// jobs are those that there are: one unless the scenario names more.
	jobs []string
	// before is done before the callers begin, without faults. Its answer is what they know.
	before []storetest.Op
	// later is by how much the clock is moved after that. mayLapse is how often it may move past a lease while the callers are at it,
	// moves by how much it may instead.
	later    time.Duration
	mayLapse int
	moves    []time.Duration
	// skew is by how much clocks are assumed to differ, drift by how much a store's may be ahead.
	skew, drift time.Duration
	// callers do their work one operation after another.
	callers []func(*caller)
}

// scenarios are all of them, in the order in which they are told of.
func scenarios() []scenario {
	record := func(request string, mode job.WorkMode) func(*caller) {
		return func(c *caller) { c.do(storetest.RecordOp(request, mode)) }
	}
	claim := func(request string) func(*caller) {
		return func(c *caller) { c.claim(request) }
	}
	of := func(name string, o storetest.Op) func(*caller) {
		return func(c *caller) { c.do(storetest.OfCaller(name, o)) }
	}
	renew := func(c *caller) { c.do(storetest.RenewOp(c.before.Token())) }
	read := func(c *caller) { c.do(storetest.GetOp()) }
	complete := func(c *caller) { c.do(storetest.CompleteOp(c.before.Token(), "done")) }
	release := func(c *caller) { c.do(storetest.ReleaseOp(c.before.Token(), "failed")) }
	requeue := func(force bool) func(*caller) {
		return func(c *caller) { c.insist(storetest.RequeueOp(c.known, force)) }
	}
	remove := func(force bool) func(*caller) {
		return func(c *caller) { c.insist(storetest.DeleteOp(c.known, force)) }
	}
	// expectAnew deletes the job and expects it again: nobody else's call may take that away any more.
	expectAnew := func(c *caller) { remove(false)(c); c.expect("anew", true) }
	pause := func(c *caller) { c.insist(storetest.PauseOp()) }
	type callers = []func(*caller)
	type ops = []storetest.Op
	// elsewhere has the second caller begin once the first was answered, and knows what the first was told.
	elsewhere := func(first func(*caller) storetest.Op, then func(*caller)) callers {
		return callers{
			func(c *caller) {
				if told, ok := c.do(first(c)); ok {
					c.hand <- told
				}
				close(c.hand)
			},
			func(c *caller) {
				c.idle.Add(1)
				told, ok := <-c.hand
				if c.idle.Add(-1); ok {
					if told.Token() != "" {
						c.before = told
					}
					then(c)
				}
			}}
	}
	one := func(o storetest.Op) func(*caller) storetest.Op { return func(*caller) storetest.Op { return o } }
	two := []string{"a", "b"}
	both := func(o storetest.Op) func(*caller) {
		return func(c *caller) { c.together(func(string) storetest.Op { return o }) }
	}
	completeBoth := func(c *caller) {
		c.together(func(id string) storetest.Op { return storetest.CompleteOp(c.world.before[id].Token(), "done") })
	}
	releaseBoth := func(c *caller) {
		c.together(func(id string) storetest.Op { return storetest.ReleaseOp(c.world.before[id].Token(), "failed") })
	}
	tokens := func(c *caller) (a, b string) { return c.world.before["a"].Token(), c.world.before["b"].Token() }
	each := func(a, b storetest.Op) func(string) storetest.Op {
		return func(id string) storetest.Op { return map[string]storetest.Op{"a": a, "b": b}[id] }
	}
	deleteBoth := func(c *caller) {
		c.together(func(id string) storetest.Op { return storetest.DeleteOp(c.world.known[id], false) })
	}
	// moveBoth takes the lease of the second job away, and the first one where it is free.
	moveBoth := func(c *caller) {
		c.on(c.ctx, c.jobs[1], storetest.RequeueOp(c.world.known[c.jobs[1]], true))
		c.do(storetest.RecordOp("two", job.ModeLeased))
	}
	persist := func(request string, mode job.WorkMode) func(*caller) {
		return func(c *caller) {
			if _, ok := c.do(storetest.RecordOp(request, mode)); !ok {
				ready(c.store)
				c.do(storetest.RecordOp(request, mode))
			}
		}
	}
	untracked := ops{storetest.RecordOp("setup", job.ModeUntracked)}
	queued := ops{storetest.RecordOp("setup", job.ModeQueued)}
	leased := ops{storetest.RecordOp("setup", job.ModeLeased)}
	claimed := ops{storetest.RecordOp("setup", job.ModeQueued), storetest.ClaimOp("one")}
	reclaimed := ops{storetest.RecordOp("setup", job.ModeQueued), storetest.RecordOp("one", job.ModeLeased)}
	again := record("one", job.ModeLeased)
	resume := func(c *caller) { c.resume("one") }
	claimAndComplete := func(c *caller) {
		if a, ok := c.claim("one"); ok && a.Token() != "" {
			c.do(storetest.CompleteOp(a.Token(), "done"))
		}
	}
	return []scenario{
		{name: "record × record, leased", core: true, callers: callers{record("one", job.ModeLeased), record("two", job.ModeLeased)}},
		{name: "record × record, leased, one request", callers: callers{record("one", job.ModeLeased), record("one", job.ModeLeased)}},
		{name: "record × record, leased, one request of two callers", callers: callers{
			of("one", storetest.RecordOp("one", job.ModeLeased)), of("two", storetest.RecordOp("one", job.ModeLeased))}},
		{name: "record × record, untracked", callers: callers{record("one", job.ModeUntracked), record("two", job.ModeUntracked)}},
		{name: "record × record, untracked, one request", callers: callers{record("one", job.ModeUntracked), record("one", job.ModeUntracked)}},
		{name: "record × record, queued and leased", callers: callers{record("one", job.ModeQueued), record("two", job.ModeLeased)}},
		{name: "record × record, of a lapsed lease", before: leased, later: past,
			callers: callers{record("one", job.ModeLeased), record("two", job.ModeLeased)}},
		{name: "record × record, of a lapsed lease, one request", before: leased, later: past,
			callers: callers{record("one", job.ModeLeased), record("one", job.ModeLeased)}},
		{name: "record × record, of two jobs, untracked", jobs: two, callers: callers{
			both(storetest.RecordOp("one", job.ModeUntracked)), both(storetest.RecordOp("two", job.ModeUntracked))}},
		{name: "record × record, of two jobs, leased", long: true, jobs: two, callers: callers{
			both(storetest.RecordOp("one", job.ModeLeased)), both(storetest.RecordOp("two", job.ModeLeased))}},
		{name: "claim × claim, of two jobs", long: true, jobs: two, before: queued, callers: callers{both(storetest.ClaimOp("one")), both(storetest.ClaimOp("two"))}},
		{name: "complete both × requeue by force", doubts: true, jobs: two, before: leased, callers: callers{completeBoth, requeue(true)}},
		{name: "complete both × requeue by force and record", long: true, doubts: true, jobs: two, before: leased, callers: callers{completeBoth, moveBoth}},
		{name: "release both × requeue by force and record", calm: true, doubts: true, jobs: two, before: leased, callers: callers{releaseBoth, moveBoth}},
		{name: "release both × requeue by force and record, with faults", long: true, doubts: true, jobs: two, before: leased,
			callers: callers{releaseBoth, moveBoth}},
		{name: "renew and release × complete and renew, of two jobs", doubts: true, jobs: two, before: leased, callers: callers{
			func(c *caller) {
				a, b := tokens(c)
				c.together(each(storetest.RenewOp(a), storetest.ReleaseOp(b, "failed")))
			},
			func(c *caller) {
				a, b := tokens(c)
				c.together(each(storetest.CompleteOp(a, "done"), storetest.RenewOp(b)))
			}}},
		{name: "delete both × record", jobs: two, before: queued, later: time.Second, callers: callers{deleteBoth, record("two", job.ModeUntracked)}},
		{name: "record × record, in one store", shared: true, callers: callers{record("one", job.ModeLeased), record("two", job.ModeLeased)}},
		{name: "record × record × record, leased", long: true, callers: callers{
			record("one", job.ModeLeased), record("two", job.ModeLeased), record("one", job.ModeLeased)}},
		{name: "record × record × record, untracked", long: true, callers: callers{
			record("one", job.ModeUntracked), record("two", job.ModeUntracked), record("two", job.ModeUntracked)}},
		{name: "record twice", callers: callers{func(c *caller) {
			c.do(storetest.RecordOp("one", job.ModeLeased))
			c.do(storetest.RecordOp("one", job.ModeLeased))
		}}},

		{name: "record × claim, of queued work", core: true, before: queued, callers: callers{record("one", job.ModeLeased), claim("two")}},
		{name: "record × claim, of a new job", callers: callers{record("one", job.ModeQueued), claim("two")}},
		{name: "record × claim, of a lapsed lease", before: leased, later: past, callers: callers{record("one", job.ModeLeased), claim("two")}},

		{name: "claim × claim", core: true, before: queued, callers: callers{claim("one"), claim("two")}},
		{name: "claim × claim, one request", before: queued, callers: callers{claim("one"), claim("one")}},
		{name: "claim × claim, one request of two callers", before: queued, callers: callers{
			of("one", storetest.ClaimOp("one")), of("two", storetest.ClaimOp("one"))}},
		{name: "claim × claim, in one store", shared: true, before: queued, callers: callers{claim("one"), claim("two")}},
		{name: "claim × claim, of a lapsed lease", before: leased, later: past, callers: callers{claim("one"), claim("two")}},
		{name: "record × claim × claim", long: true, before: queued, callers: callers{record("one", job.ModeLeased), claim("two"), claim("three")}},
		{name: "claim twice", before: queued, callers: callers{func(c *caller) { c.claim("one"); c.claim("one") }}},
		{name: "claim × complete by another", before: queued, callers: callers{claimAndComplete, record("two", job.ModeLeased)}},
		{name: "record × claim and complete, of a new job", callers: callers{record("two", job.ModeQueued), claimAndComplete}},

		{name: "record again × record again, of a reclaimed lease", calm: true, before: reclaimed, callers: callers{again, again}},
		{name: "record again × record again, of a reclaimed lease, with faults", long: true, before: reclaimed, callers: callers{again, again}},
		{name: "record again × renew, of a reclaimed lease", before: reclaimed, later: storetest.LeaseTime / 2, callers: callers{again, renew}},
		{name: "record again × resume, of a lapsed lease", long: true, before: leased, later: past, callers: callers{again, resume}},
		{name: "record again × record again × renew, of a reclaimed lease", long: true, before: reclaimed, later: storetest.LeaseTime / 2,
			callers: callers{again, again, renew}},

		{name: "lapse × complete", core: true, before: leased, mayLapse: 1, callers: callers{complete, claim("two")}},
		{name: "lapse × release", before: leased, mayLapse: 1, callers: callers{release, claim("two")}},
		{name: "lapse × renew", before: leased, mayLapse: 1, callers: callers{renew, claim("two")}},
		{name: "lapse × renew, of the same claim", before: claimed, later: past, callers: callers{renew, claim("one")}},
		{name: "renew × renew", before: leased, mayLapse: 1, callers: callers{renew, renew}},
		{name: "renew × complete", before: leased, callers: callers{renew, complete}},
		{name: "complete × complete", before: leased, callers: callers{complete, complete}},
		{name: "complete × release", before: leased, callers: callers{complete, release}},
		{name: "record, and complete elsewhere", hands: true, callers: elsewhere(one(storetest.RecordOp("one", job.ModeLeased)), complete)},
		{name: "record, and renew elsewhere", hands: true, callers: elsewhere(one(storetest.RecordOp("one", job.ModeLeased)), renew)},
		{name: "record, and read elsewhere", hands: true, callers: elsewhere(one(storetest.RecordOp("one", job.ModeUntracked)), read)},
		{name: "record, and record elsewhere", hands: true,
			callers: elsewhere(one(storetest.RecordOp("one", job.ModeUntracked)), record("two", job.ModeUntracked))},
		{name: "claim, and complete elsewhere", hands: true, before: queued, callers: elsewhere(one(storetest.ClaimOp("one")), complete)},
		{name: "claim, and claim again elsewhere", hands: true, before: queued, callers: elsewhere(one(storetest.ClaimOp("one")), claim("one"))},
		{name: "claim, and requeue elsewhere", hands: true, before: queued, callers: elsewhere(one(storetest.ClaimOp("one")), requeue(false))},
		{name: "release, and renew elsewhere", hands: true, before: leased, callers: elsewhere(
			func(c *caller) storetest.Op { return storetest.ReleaseOp(c.before.Token(), "failed") }, renew)},
		{name: "requeue, and renew elsewhere", hands: true, before: leased, callers: elsewhere(
			func(c *caller) storetest.Op { return storetest.RequeueOp(c.known, true) }, renew)},
		{name: "delete, and record elsewhere", hands: true, before: queued, later: time.Second, callers: elsewhere(
			func(c *caller) storetest.Op { return storetest.DeleteOp(c.known, false) }, record("two", job.ModeUntracked))},
		{name: "release × claim", before: leased, callers: callers{release, claim("two")}},

		{name: "requeue × claim, of a lapsed lease", before: leased, later: past, callers: callers{requeue(false), claim("two")}},
		{name: "requeue × record, of a lapsed lease", before: leased, later: past, callers: callers{requeue(false), record("two", job.ModeLeased)}},
		{name: "requeue × requeue", before: leased, later: past, callers: callers{requeue(false), requeue(false)}},
		{name: "requeue by force × complete", before: leased, callers: callers{requeue(true), complete}},
		{name: "requeue, after claim and give up elsewhere", hands: true, before: queued, callers: elsewhere(
			func(c *caller) storetest.Op {
				a, _ := c.do(storetest.ClaimOp("one"))
				return storetest.GiveUpOp(a.Token(), "failed")
			}, requeue(false))},
		{name: "renew, after requeue by force and claim elsewhere", hands: true, before: leased, callers: elsewhere(
			func(c *caller) storetest.Op {
				c.do(storetest.RequeueOp(c.known, true))
				return storetest.ClaimOp("two")
			}, func(c *caller) { c.do(storetest.RenewOp(c.world.before[c.jobs[0]].Token())) })},
		{name: "requeue × delete", before: leased, later: past, callers: callers{requeue(false), remove(false)}},

		{name: "delete × record, of a lapsed lease", before: leased, later: past, callers: callers{remove(false), record("two", job.ModeLeased)}},
		{name: "delete × record, untracked", before: queued, later: time.Second, callers: callers{remove(false), record("two", job.ModeUntracked)}},
		{name: "delete × record, in one millisecond", before: queued, callers: callers{remove(false), record("two", job.ModeQueued)}},
		{name: "delete × claim", before: queued, later: time.Second, callers: callers{remove(false), claim("two")}},
		{name: "delete × delete", before: queued, later: time.Second, callers: callers{remove(false), remove(false)}},
		{name: "delete by force × complete", before: leased, later: time.Second, callers: callers{remove(true), complete}},

		{name: "expect × delete, then expect", before: queued, later: time.Second, callers: callers{func(c *caller) { c.expect("before", false) }, expectAnew}},
		{name: "claim overdue × delete, then expect", long: true, expected: true, before: queued, later: time.Second, callers: callers{(*caller).claimOverdue, expectAnew}},
		{name: "report × delete, then expect", long: true, expected: true, polled: true, before: queued, later: time.Second, callers: callers{(*caller).report, expectAnew}},
		{name: "delete × delete, then expect", long: true, expected: true, before: queued, later: time.Second, callers: callers{remove(false), expectAnew}},
		{name: "cancel, then expect", expected: true, later: time.Second, callers: callers{func(c *caller) {
			if c.cancel() {
				c.expect("anew", true)
			}
		}}},

		{name: "pause × claim", calm: true, pauses: true, shared: true, before: queued, callers: callers{pause, claim("two")}},
		{name: "pause × claim, with faults", long: true, pauses: true, shared: true, before: queued, callers: callers{pause, claim("two")}},
		{name: "pause, then claim", pauses: true, before: queued, callers: callers{func(c *caller) { pause(c); c.claim("one") }}},
		{name: "pause, then record, of a lapsed lease", pauses: true, before: leased, later: past,
			callers: callers{func(c *caller) { pause(c); c.do(storetest.RecordOp("one", job.ModeLeased)) }}},
		{name: "resume, then claim", pauses: true, before: append(slices.Clone(queued), storetest.PauseOp()),
			callers: callers{func(c *caller) { c.insist(storetest.ResumeOp()); c.claim("one") }}},

		{name: "record, the index lost", indexes: true, callers: callers{record("one", job.ModeUntracked)}},
		{name: "record × record, the index lost", indexes: true, callers: callers{persist("one", job.ModeLeased), persist("two", job.ModeUntracked)}},
		{name: "record × record, in one store, the index lost", shared: true, indexes: true,
			callers: callers{persist("one", job.ModeUntracked), persist("two", job.ModeUntracked)}},

		{name: "record × record, clocks apart", long: true, skew: skew, drift: skew, before: leased, moves: nearly,
			callers: callers{record("one", job.ModeLeased), record("two", job.ModeLeased)}},
		{name: "renew × claim, clocks apart", long: true, skew: skew, drift: skew, before: leased, moves: nearly, callers: callers{renew, claim("two")}},
		{name: "complete × requeue, clocks apart", skew: skew, drift: skew, before: leased, moves: nearly, callers: callers{complete, requeue(false)}},
		{name: "record × record, a clock set back", drift: time.Hour, callers: callers{record("one", job.ModeLeased), record("two", job.ModeLeased)}},
		{name: "renew × claim, a clock set back", drift: time.Hour, before: leased, callers: callers{renew, claim("two")}},
		{name: "complete × record, a clock set back", drift: time.Hour, before: leased, callers: callers{complete, record("two", job.ModeLeased)}},
		{name: "delete × record, a clock set back", drift: time.Hour, before: queued, later: time.Second, callers: callers{remove(false), record("two", job.ModeLeased)}},

		{name: "expect × record", awaits: true, callers: callers{expect, record("one", job.ModeQueued)}},
		{name: "expect × delete", awaits: true, before: queued, later: time.Second, callers: callers{expect, remove(false)}},
		{name: "poll × record", awaits: true, expected: true, callers: callers{poll, record("one", job.ModeQueued)}},
		{name: "poll × poll", awaits: true, expected: true, callers: callers{poll, poll}},
		{name: "poll × cancel", awaits: true, expected: true, callers: callers{poll, cancel}},
		{name: "cancel × cancel", awaits: true, expected: true, callers: callers{cancel, cancel}},
		{name: "poll × delete", awaits: true, expected: true, before: queued, later: time.Second, callers: callers{poll, remove(false)}},
		{name: "retain × record", before: untracked, later: old, callers: callers{retain, record("two", job.ModeUntracked)}},
		{name: "retain × delete", before: untracked, later: old, callers: callers{retain, remove(false)}},
		{name: "expect × record × delete", calm: true, awaits: true, before: untracked, later: old, callers: callers{
			expect, record("one", job.ModeUntracked), remove(false)}},
		{name: "expect × record × retain", calm: true, awaits: true, before: untracked, later: old, callers: callers{
			expect, record("one", job.ModeUntracked), retain}},
		{name: "expect × record × delete × poll × retain", long: true, calm: true, awaits: true, before: untracked, later: old, callers: callers{
			expect, record("one", job.ModeUntracked), remove(false), poll, retain}},
	}
}

// skew is by how much clocks are assumed to differ where that matters. nearly moves to the moment at which a lease is due, and then to
// where even a clock that is behind says that it may be taken over.
const skew = time.Second

var nearly = []time.Duration{storetest.LeaseTime, 2 * skew}

// caller is one that calls a store.
type caller struct {
	*world
	number int
	store  job.Store
	// before is the last answer of what was done before.
	before storetest.Answer
	// known is the job as it was read then.
	known job.Expected
	ctx   context.Context
	leave context.CancelFunc
}

// event is that of all the jobs of a scenario.
const event = "event"

// do does an operation on the job, and tells whether it was answered.
func (c *caller) do(o storetest.Op) (storetest.Answer, bool) { return c.on(c.ctx, c.jobs[0], o) }

func (c *caller) on(ctx context.Context, jobID string, o storetest.Op) (storetest.Answer, bool) {
	c.begin()
	answer, err := storetest.Do(ctx, c.store, event, jobID, o)
	c.end(jobID, o, answer, err)
	return answer, err == nil
}

// begin and end are around a call.
func (c *caller) begin() { c.note(step{caller: c.number, kind: begins}) }

// end notes what a call on a job has come to.
func (c *caller) end(jobID string, o storetest.Op, answer storetest.Answer, err error) {
	s := c.ended(o.String(), answer.String(), err)
	s.jobID, s.op, s.answer = jobID, o, answer
	c.note(s)
}

// ended is that a call has come to an end, and said something.
func (c *caller) ended(call, said string, err error) step {
	s := step{caller: c.number, kind: ends, call: call, said: said}
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		s.said = "unknown"
	case errors.Is(err, job.ErrUnavailable):
		s.said = "unavailable"
	case err != nil:
		s.problem = fmt.Sprintf("%s failed: %v", call, err)
	}
	return s
}

// heard is the end of a call that the model does not know.
func (c *caller) heard(call string, err error, said ...any) step {
	if errors.Is(err, job.ErrNoExpectation) || errors.Is(err, job.ErrLeaseLost) {
		said, err = []any{err}, nil
	}
	return c.ended(call, fmt.Sprint(said), err)
}

// insist does an operation on the job, and once more when that is not answered.
func (c *caller) insist(o storetest.Op) {
	if _, ok := c.do(o); !ok {
		c.do(o)
	}
}

// claim claims work, and gives it back when the caller has left meanwhile, as the service does.
func (c *caller) claim(request string) (storetest.Answer, bool) {
	answer, ok := c.do(storetest.ClaimOp(request))
	return answer, ok && !c.giveBack(answer)
}

// resume has a delivery that was recorded, and waited, decided again, and gives back what it was granted when its caller has left
// meanwhile, as the service does.
func (c *caller) resume(request string) {
	o := storetest.RecordOp(request, job.ModeLeased)
	c.begin()
	answer, err := storetest.Resume(c.ctx, c.store, event, c.jobs[0], o)
	if c.end(c.jobs[0], o, answer, err); err == nil {
		c.giveBack(answer)
	}
}

// giveBack gives back what a caller was granted that has left, and tells whether it was.
func (c *caller) giveBack(granted storetest.Answer) bool {
	if granted.Granted.IsZero() || c.ctx.Err() == nil {
		return false
	}
	c.on(context.WithoutCancel(c.ctx), c.jobs[0], storetest.UnclaimOp(granted.Token(), granted.Granted))
	return true
}

// expect expects the job, at a URL that tells it from other expectations. mine is set when nobody may remove it later, once it was
// answered that it is kept.
func (c *caller) expect(url string, mine bool) {
	overdue := time.Duration(0)
	req, err := job.NewExpectRequest(c.jobs[0], "https://provider.example/"+url, &overdue, nil)
	if err != nil {
		panic(err)
	}
	c.begin()
	kept, recorded, err := c.store.Expect(c.ctx, req)
	s := c.heard("expect", err, kept.StatusURL, recorded)
	if mine && err == nil && !recorded {
		s.keeps = kept.StatusURL
	}
	c.note(s)
}

func (c *caller) claimOverdue() {
	c.begin()
	o, err := c.store.ClaimOverdue(c.ctx, job.OverdueRequest{Max: 1, Lease: time.Minute})
	c.note(c.heard("claim overdue", err, len(o.Jobs), o.Recorded))
}

func (c *caller) report() {
	c.begin()
	_, recorded, err := c.store.ReportPoll(c.ctx, job.PollReport{JobID: c.jobs[0], Token: c.token})
	c.note(c.heard("report", err, recorded))
}

func (c *caller) cancel() bool {
	c.begin()
	err := c.store.CancelExpectation(c.ctx, c.jobs[0])
	c.note(c.heard("cancel", err))
	return err == nil
}

// together does operations of one kind on all jobs in one call.
func (c *caller) together(op func(jobID string) storetest.Op) {
	ops := make([]storetest.Op, len(c.jobs))
	for i, id := range c.jobs {
		ops[i] = op(id)
	}
	c.begin()
	answers, failures := storetest.DoTogether(c.ctx, c.store, event, c.jobs, ops)
	for i, id := range c.jobs {
		c.end(id, ops[i], answers[i], failures[i])
	}
}

// past is longer than a lease, what clocks may differ by included.
const past = storetest.LeaseTime + 2*time.Second

// deployments are what each scenario runs on.
var deployments = []modeldb.Deployment{modeldb.Standalone, modeldb.ReplicaSet}

func scenarioNamed(name string) (scenario, bool) {
	all := scenarios()
	i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
	if i < 0 {
		return scenario{}, false
	}
	return all[i], true
}
