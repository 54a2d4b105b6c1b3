package explore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

// world is a database and stores with clients of their own, in a bubble. A scenario is run in it again and again, for as long
// as it is young: opening the stores takes most of the time otherwise.
type world struct {
	scenario
	t      *testing.T
	kind   modeldb.Deployment
	db     *modeldb.Server
	stores []*mongostore.Store
	clocks []*testenv.Clock // of each store
	rested time.Time        // when the stores looked after themselves
	runs   int
	// What a run begins with: the data, the clock, what was done before, and for each job what the last of that answered, and the job as
	// it was read then.
	data    modeldb.Snapshot
	now     time.Time
	prelude *note
	before  map[string]storetest.Answer
	known   map[string]job.Expected
	// token is that of the poller that has the job.
	token string
	// hurt is set for each store whose client may have lost its connections, worn once the stores are not what they were any more.
	hurt []bool
	worn bool
	// reactions outlive the world.
	reactions reactions

	*stage
}

// stage is what a world has for one run.
type stage struct {
	play    *play
	callers []*caller
	hand    chan storetest.Answer // from one caller to another
	idle    atomic.Int32          // callers that wait for another one
	busy    atomic.Int32          // callers that are not over
	running sync.WaitGroup

	mu    sync.Mutex
	steps []step // since the latest thing happened
}

// note notes a step, to be taken once the callers wait.
func (r *stage) note(s step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, s)
}

// noted are the steps since they were asked for last, those of one caller after another: one that waits for another goes on beside it.
func (r *stage) noted() []step {
	r.mu.Lock()
	defer r.mu.Unlock()
	steps := r.steps
	r.steps = nil
	slices.SortStableFunc(steps, func(a, b step) int { return a.caller - b.caller })
	return steps
}

const (
	// upkeep is how often the stores look after themselves. No run begins later than early after that, so that none meets it.
	upkeep = time.Minute
	early  = 40 * time.Second
	// mostRuns is how many runs a world is young for.
	mostRuns = 200
)

func (w *world) young() bool { return w.runs < mostRuns && !w.worn }

// perform runs the scenario once. choose is asked what is to happen next, and gives the place of one of the events, or -1 for
// the run to be given up; of no events, at the end, it gives 0. The outcome is what came of it; empty when it was given up.
func (w *world) perform(choose func(p *play, events []happening) int) (outcome string, err error) {
	w.reset()
	defer w.abandon()
	w.start()
	for {
		events := w.play.events()
		i := choose(w.play, events)
		switch {
		case i < 0:
			return "", nil
		case len(events) == 0:
			return w.judge(w.play)
		}
		w.happen(events[i])
	}
}

// happen lets an event happen, and learns what follows from it.
func (w *world) happen(e happening) {
	p := w.play
	before, waited, latest := p.seen, w.waiting(), w.latest()
	if p.happened(e); e.hurts {
		w.hurt[e.store] = true
	}
	behind := w.behind()
	e.do(p)
	w.worn = p.worn
	w.setClocks(p.clocks)
	w.settle(e.hurts || behind != w.behind())
	is := reaction{w.noted(), w.db.Since(latest), nil}
	waits := w.waiting()
	for _, c := range waited {
		if !slices.Contains(waits, c) {
			is.gone = append(is.gone, c)
		}
	}
	w.reactions.learn(p, before, is)
	p.react(before, is)
}

func newWorld(t *testing.T, s scenario, kind modeldb.Deployment, reactions reactions) *world {
	w := &world{scenario: s, t: t, kind: kind, db: modeldb.New(kind), rested: time.Now(), reactions: reactions}
	if len(w.jobs) == 0 {
		w.jobs = []string{"job"}
	}
	cryptotest.SetGlobalRandom(t, 1)
	stores := len(s.callers)
	if s.shared {
		stores = 1
	}
	if s.indexes {
		w.db.HoldIndexes()
	}
	for i := range stores {
		clock := testenv.NewClock()
		store, err := mongostore.Open(mongostore.Options{URI: w.db.URI() + "&heartbeatFrequencyMS=3600000", Dialer: w.db.Dialer(i), Now: clock.Now, MaxAttempts: storetest.MaxAttempts,
			PausesEvery: time.Hour, MaxClockSkew: s.skew,
			NewPause: func() backoff.BackOff { return backoff.NewConstantBackOff(pause) }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		<-store.Ready()
		w.stores, w.clocks, w.hurt = append(w.stores, store), append(w.clocks, clock), append(w.hurt, false)
	}
	synctest.Wait()
	w.stage = &stage{}
	cryptotest.SetGlobalRandom(t, 2)
	setup := &caller{world: w, number: -1, store: w.stores[0], ctx: context.Background()}
	if w.expected {
		if w.awaits {
			expect(setup)
		} else {
			setup.expect("first", false)
		}
	}
	if w.polled {
		o, err := setup.store.ClaimOverdue(setup.ctx, job.OverdueRequest{Max: 1, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		w.token = o.Jobs[0].Token
	}
	w.before, w.known = map[string]storetest.Answer{}, map[string]job.Expected{}
	for _, id := range w.jobs {
		for _, o := range w.scenario.before {
			w.before[id], _ = setup.on(setup.ctx, id, o)
		}
		if r, err := setup.store.Get(setup.ctx, id, false); err == nil {
			w.known[id] = job.ExpectedOf(&r)
		}
	}
	for _, s := range w.noted() {
		w.prelude = &note{s, []time.Time{w.clocks[0].Now()}, w.prelude}
	}
	w.data, w.now = w.db.Snapshot(), w.clocks[0].Now().Add(w.later)
	return w
}

// rest lets the stores look after themselves, when it is time for that.
func (w *world) rest() {
	for time.Since(w.rested) > early {
		w.db.Restore(w.data)
		w.rested = w.rested.Add(upkeep)
		time.Sleep(time.Until(w.rested.Add(time.Second)))
		synctest.Wait()
	}
}

// reset makes the world what it was in the beginning.
func (w *world) reset() {
	w.runs++
	w.db.Restore(w.data)
	w.rest()
	for i := range w.stores {
		w.heal(i)
	}
	w.db.Restore(w.data)
	n := len(w.scenario.callers)
	p := &play{scenario: &w.scenario, kind: w.kind, db: w.db, world: w, clock: w.now, notes: w.prelude,
		progress: progress{ended: make([]int, n), order: make([]string, n), left: make([]bool, n), over: make([]bool, n)}}
	for i := range w.stores {
		p.seen, p.clocks, p.nows = append(p.seen, [32]byte{byte(i)}), append(p.clocks, w.now), append(p.nows, []time.Time{w.now})
	}
	if w.setClocks(p.clocks); w.pauses {
		for _, s := range w.stores { // knows which claims are paused
			if _, err := s.Pauses(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.stage = &stage{play: p, hand: make(chan storetest.Answer, 1)}
}

// heal has a store find the primary again, if it may have lost it.
func (w *world) heal(store int) {
	if !w.hurt[store] {
		return
	}
	if err := w.stores[store].Check(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.hurt[store] = false
	synctest.Wait()
}

// pause is between the tries of an operation; patience is longer than that, and than the driver waits before it looks again
// for a primary that it has lost. afterLeaving is longer than anything goes on for a caller that has left.
const (
	pause        = time.Millisecond
	patience     = 600 * time.Millisecond
	afterLeaving = 2500 * time.Millisecond
)

// start lets the callers begin, one after the other.
func (w *world) start() {
	w.db.Hold(true)
	for i, act := range w.scenario.callers {
		c := &caller{world: w, number: i, store: w.stores[i%len(w.stores)], before: w.before[w.jobs[0]], known: w.known[w.jobs[0]]}
		c.ctx, c.leave = context.WithCancel(context.Background())
		w.stage.callers = append(w.stage.callers, c)
		w.seed(i % len(w.stores))
		w.busy.Add(1)
		w.running.Go(func() {
			act(c)
			w.busy.Add(-1)
			w.note(step{caller: i, kind: isOver})
		})
		w.settle(false)
		for _, s := range w.noted() {
			w.play.take(s)
		}
	}
}

// seed makes the random numbers from now on those of a store.
func (w *world) seed(store int) {
	cryptotest.SetGlobalRandom(w.t, binary.LittleEndian.Uint64(w.play.seen[store][:]))
}

// settle waits until every caller that is not over waits for the database, or for another one. lost is set when a driver may have lost the
// primary. No more time passes than must: what a store does for as long as some time lasts would depend on that.
func (w *world) settle(lost bool) {
	synctest.Wait()
	least, loosely := 0, 2 // how often it waits, and how often for more callers: those that share a store may wait for one answer
	if lost {
		least = 1
	}
	if w.shared && !w.indexes { // the look at those takes its time, and nothing is the same after another order
		loosely = least
	}
	for i, while := range []time.Duration{2 * pause, patience, patience, 10 * time.Second, time.Minute} {
		time.Sleep(while)
		synctest.Wait()
		calls := w.waiting()
		stand := len(calls)
		if !w.shared {
			stand = len(slices.CompactFunc(calls, func(a, b string) bool { return a[0] == b[0] })) // one caller each
		}
		enough := stand >= int(w.busy.Load()-w.idle.Load()) || stand > 0 && i >= loosely
		if w.steady() && enough && i >= least {
			return
		}
	}
	panic("the callers neither end nor ask the database for anything")
}

// behind is how many stores go to a deposed primary.
func (w *world) behind() (n int) {
	for i := range w.stores {
		if w.db.Behind(i) {
			n++
		}
	}
	return n
}

// waiting are the commands whose answers are waited for: of callers that share a store, at least as many as there are callers that wait.
func (w *world) waiting() (names []string) {
	for _, c := range w.db.Calls() {
		if !c.Gone {
			names = append(names, nameOf(c))
		}
	}
	return names
}

// latest are the numbers of the stores' latest commands.
func (w *world) latest() (numbers []int) {
	for i := range w.stores {
		numbers = append(numbers, w.db.Latest(i))
	}
	return numbers
}

// steady tells whether each store is ready, or waits for an answer about the unique index.
func (w *world) steady() bool {
	if !w.worn {
		return true
	}
	calls := w.db.Calls()
	for i, s := range w.stores {
		if !slices.ContainsFunc(calls, func(c *modeldb.Call) bool { return c.Client == i }) && errors.Is(s.Check(context.Background()), job.ErrUnready) {
			return false
		}
	}
	return true
}

// ready waits until a store has its unique index again.
func ready(s job.Store) {
	for errors.Is(s.Check(context.Background()), job.ErrUnready) {
		time.Sleep(time.Second)
	}
}

// setClocks sets the clocks of the stores.
func (w *world) setClocks(clocks []time.Time) {
	for i, c := range w.clocks {
		c.Set(clocks[i])
	}
}

// abandon ends the run, wherever it is.
func (w *world) abandon() {
	for _, c := range w.stage.callers {
		c.leave()
	}
	w.db.Hold(false)
	w.running.Wait()
	synctest.Wait()
}

func (w *world) close() {
	for _, s := range w.stores {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	}
}
