package explore_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
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
	clock  *testenv.Clock
	clocks []*testenv.Clock // of each store: the same, unless it is ahead
	stores []*mongostore.Store
	rested time.Time // when the stores looked after themselves
	runs   int
	began  int // the sequence of what came before a run
	// What a run begins with: the data, the clock, and for each job the calls that came before, what the last of them answered, and the
	// job as it was read then.
	data   modeldb.Snapshot
	now    time.Time
	past   map[string][]made
	before map[string]storetest.Answer
	known  map[string]job.Expected
	// token is that of the poller that has the job.
	token string
	// hurt is set for each store whose client may have lost its connections, worn once the stores are not what they were any more.
	hurt []bool
	worn bool
	// choice holds the latest events: each time the same memory.
	choice []happening
	// reactions tells what follows when a store has seen all that a digest stands for: always the same. It outlives the world.
	reactions map[[32]byte]reaction

	*play
}

// play is one run of a scenario. It stands still until a command is answered or something else happens.
type play struct {
	// seen is for each store the digest of all that it has seen, from which follows all that it does next. Its random
	// numbers are made of it too.
	seen    [][32]byte
	callers []*caller
	hand    chan storetest.Answer // from one caller to another
	idle    atomic.Int32          // callers that wait for another one
	running sync.WaitGroup
	// rehearsing is set while nothing is done in earnest.
	rehearsing bool

	mu       sync.Mutex
	sequence int // of what begins and ends
	progress
	happened schedule
	steps    []step        // since the latest thing happened
	nows     [][]time.Time // what the clock of each store has said
	calls    map[string][]made
	words    []word
	outcome  []string // of each call, in the order of the callers
	kept     string   // the URL of an expectation that is to be there in the end
	problems []string
}

// made is a call on a job, made at a store. at is the first of what its clock said meanwhile.
type made struct {
	storetest.Call
	store, at int
}

// progress is how far the callers have come.
type progress struct {
	ended []int // calls of each caller
	// order tells of each call what had ended when it began.
	order      []string
	left, over []bool
	lapses     int
}

func (p progress) clone() progress {
	return progress{slices.Clone(p.ended), slices.Clone(p.order), slices.Clone(p.left), slices.Clone(p.over), p.lapses}
}

// step is that a caller begins or ends a call, or is over.
type step struct {
	caller int
	kind   byte
}

const (
	begins = 'b'
	ends   = 'e'
	isOver = 'o'
)

func (p *progress) take(s step) {
	switch s.kind {
	case begins:
		p.order[s.caller] += fmt.Sprint(p.ended)
	case ends:
		p.ended[s.caller]++
	case isOver:
		p.over[s.caller] = true
	}
}

// reaction is what follows when a store has seen something: what its callers do, and the commands of which it does not wait for the
// answer any more.
type reaction struct {
	steps []step
	gone  []string
}

// step takes a step. The caller of what comes before a run is -1.
func (p *play) step(caller int, kind byte) {
	if caller < 0 {
		return
	}
	s := step{caller, kind}
	p.take(s)
	p.steps = append(p.steps, s)
}

const (
	// upkeep is how often the stores look after themselves. No run begins later than early after that, so that none meets it.
	upkeep = time.Minute
	early  = 40 * time.Second
	// mostRuns is how many runs a world is young for.
	mostRuns = 200
)

func (w *world) young() bool { return w.runs < mostRuns && !w.worn }

// run runs the scenario once. choose is asked what is to happen next, and gives the place of one of the events, or -1 for
// the run to be given up; of no events, at the end, it gives 0. The outcome is what came of it; empty when it was given up.
func (w *world) run(choose func(w *world, events []happening) int) (outcome string, err error) {
	w.reset()
	defer w.abandon()
	w.start()
	for {
		events := w.events()
		i := choose(w, events)
		switch {
		case i < 0:
			return "", nil
		case len(events) == 0:
			return w.judge()
		}
		if e := events[i]; e.hurts {
			w.hurt[e.store] = true
		}
		w.happen(events[i])
	}
}

// happen lets an event happen, and learns what follows from it.
func (w *world) happen(e happening) {
	before, gone := slices.Clone(w.seen), w.gone()
	w.steps, w.happened = nil, append(w.happened, e.name)
	e.do(w)
	w.settle()
	slices.SortStableFunc(w.steps, func(a, b step) int { return a.caller - b.caller }) // one that waits goes on beside the one that let it
	is := reaction{w.steps, slices.DeleteFunc(w.gone(), func(c string) bool { return slices.Contains(gone, c) })}
	if was, known := w.reaction(before); known && !(slices.Equal(was.steps, is.steps) && slices.Equal(was.gone, is.gone)) {
		panic(fmt.Sprintf("%s: what follows from %v is %v, and was %v before", w.name, w.happened, is, was))
	}
	if i := w.changed(before); i >= 0 {
		w.reactions[w.cause(i)] = is
	}
	w.tell(before, is)
}

// changed is the store that has seen more than before; -1 when none has.
func (w *world) changed(before [][32]byte) int {
	for i, seen := range w.seen {
		if seen != before[i] {
			return i
		}
	}
	return -1
}

// cause is what a reaction depends on: what its store has seen and, where one caller can wait for another, what the others had.
func (w *world) cause(store int) [32]byte {
	if !w.hands {
		return w.seen[store]
	}
	h := sha256.New()
	fmt.Fprint(h, store)
	for _, seen := range w.seen {
		h.Write(seen[:])
	}
	return [32]byte(h.Sum(nil))
}

// tell has the stores see what callers of theirs do because of what another store has seen: one caller can wait for another.
func (w *world) tell(before [][32]byte, r reaction) {
	for _, s := range r.steps {
		if i := w.storeOf(s.caller); w.seen[i] == before[i] {
			w.saw(i, s)
		}
	}
}

// gone are the commands that wait, and of which nobody waits for the answer.
func (w *world) gone() (names []string) {
	for _, c := range w.db.Calls() {
		if c.Gone {
			names = append(names, nameOf(c))
		}
	}
	return names
}

// reaction is what follows when, of what the stores had seen before, one has seen more; false when that has not been met yet. Nothing
// follows where none has.
func (w *world) reaction(before [][32]byte) (r reaction, known bool) {
	i := w.changed(before)
	if i < 0 {
		return r, true
	}
	r, known = w.reactions[w.cause(i)]
	return r, known
}

// foresee is the key of the state that an event would lead to; false where it is not known what would follow from it.
func (w *world) foresee(e happening) (key [32]byte, known bool) {
	end := w.db.Rehearse()
	seen, progress, nows, clocks := slices.Clone(w.seen), w.progress.clone(), slices.Clone(w.nows), w.readings()
	w.rehearsing = true
	defer func() {
		w.rehearsing = false
		w.seen, w.progress, w.nows = seen, progress, nows
		for i, c := range w.allClocks() {
			c.Set(clocks[i])
		}
		end()
	}()
	e.do(w)
	r, known := w.reaction(seen)
	if !known {
		return key, false
	}
	for _, s := range r.steps {
		w.take(s)
	}
	w.tell(seen, r)
	return w.key(r.gone...), true
}

func newWorld(t *testing.T, s scenario, kind modeldb.Deployment, reactions map[[32]byte]reaction) *world {
	w := &world{scenario: s, t: t, kind: kind, db: modeldb.New(kind), clock: testenv.NewClock(), rested: time.Now(), reactions: reactions}
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
	w.play = &play{nows: [][]time.Time{{w.clock.Now()}}, calls: map[string][]made{}}
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
	w.advance(w.later)
	w.data, w.now, w.past, w.began = w.db.Snapshot(), w.clock.Now(), w.calls, w.sequence
	return w
}

// reset makes the world what it was in the beginning.
func (w *world) reset() {
	w.runs++
	if time.Since(w.rested) > early {
		w.rested = w.rested.Add(upkeep)
		time.Sleep(time.Until(w.rested.Add(time.Second)))
		synctest.Wait()
	}
	for i := range w.stores {
		w.heal(i)
	}
	w.db.Restore(w.data)
	for _, c := range w.allClocks() {
		c.Set(w.now)
	}
	if w.pauses {
		for _, s := range w.stores { // knows which claims are paused
			if _, err := s.Pauses(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	n := len(w.scenario.callers)
	w.play = &play{calls: map[string][]made{}, hand: make(chan storetest.Answer, 1),
		sequence: w.began, outcome: make([]string, n),
		progress: progress{make([]int, n), make([]string, n), make([]bool, n), make([]bool, n), 0}}
	for id, calls := range w.past {
		w.calls[id] = slices.Clone(calls)
	}
	for i := range w.stores {
		w.seen, w.nows = append(w.seen, [32]byte{byte(i)}), append(w.nows, []time.Time{w.now})
	}
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
// for a primary that it has lost.
const (
	pause    = time.Millisecond
	patience = 600 * time.Millisecond
)

// start lets the callers begin, one after the other.
func (w *world) start() {
	w.db.Hold(true)
	for i, act := range w.scenario.callers {
		c := &caller{world: w, number: i, store: w.stores[i%len(w.stores)], before: w.before[w.jobs[0]], known: w.known[w.jobs[0]]}
		c.ctx, c.leave = context.WithCancel(context.Background())
		w.play.callers = append(w.play.callers, c)
		w.seed(i % len(w.stores))
		w.running.Go(func() {
			act(c)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.step(i, isOver)
		})
		w.settle()
	}
}

// seed makes the random numbers from now on those of a store.
func (w *world) seed(store int) {
	cryptotest.SetGlobalRandom(w.t, binary.LittleEndian.Uint64(w.seen[store][:]))
}

// saw notes what a store has seen.
func (w *world) saw(store int, what ...any) {
	h := sha256.New()
	h.Write(w.seen[store][:])
	fmt.Fprint(h, what...)
	fmt.Fprint(h, len(w.nows[store]), w.clocks[store].Now().UnixMilli())
	if w.indexes { // the look at them goes on by itself
		fmt.Fprint(h, fmt.Sprint(w.db.Index(jobs, unique)))
	}
	h.Sum(w.seen[store][:0])
	if !w.rehearsing {
		w.seed(store)
	}
}

// settle waits until every caller that is not over waits for the database, or for another one.
func (w *world) settle() {
	synctest.Wait()
	for i, while := range []time.Duration{2 * pause, patience, patience, 10 * time.Second, time.Minute} {
		time.Sleep(while)
		synctest.Wait()
		if calls := w.waiting(); w.steady() && (calls >= w.active()-int(w.idle.Load()) || i > 1 && calls > 0) {
			return
		}
	}
	panic("the callers neither end nor ask the database for anything")
}

// waiting is how many callers wait for the database, or at least so many when they share a store.
func (w *world) waiting() (n int) {
	calls := slices.DeleteFunc(w.db.Calls(), func(c *modeldb.Call) bool { return c.Gone })
	if w.shared {
		return len(calls)
	}
	for i := range w.stores {
		if slices.ContainsFunc(calls, func(c *modeldb.Call) bool { return c.Client == i }) {
			n++
		}
	}
	return n
}

// active is how many callers are not over.
func (w *world) active() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, over := range w.over {
		if !over {
			n++
		}
	}
	return n
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

func (w *world) allClocks() []*testenv.Clock { return append([]*testenv.Clock{w.clock}, w.clocks...) }

func (w *world) readings() (times []time.Time) {
	for _, c := range w.allClocks() {
		times = append(times, c.Now())
	}
	return times
}

func (w *world) advance(by time.Duration) {
	for _, c := range w.allClocks() {
		c.Advance(by)
	}
}

// read notes what the clock of a store says.
func (w *world) read(store int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nows[store] = append(slices.Clone(w.nows[store]), w.clocks[store].Now())
}

// lapse moves the clock past a lease, or by the next of the scenario's steps.
func (w *world) lapse() {
	by := past
	if w.lapses < len(w.moves) {
		by = w.moves[w.lapses]
	}
	w.lapses++
	w.advance(by)
	for i := range w.stores {
		w.read(i)
	}
}

// begin and end are around a call.
func (w *world) begin(number int) (from, at int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequence++
	w.step(number, begins)
	return w.sequence, len(w.nows[w.storeOf(number)]) - 1
}

// note notes the end of a call that the model does not know.
func (w *world) note(number int, what string, err error, said ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, job.ErrNoExpectation) || errors.Is(err, job.ErrLeaseLost) {
		said, err = []any{err}, nil
	}
	w.came(number, what, fmt.Sprint(said), err)
}

func (w *world) storeOf(number int) int { return max(number, 0) % len(w.stores) }

// end notes what a call on a job has come to.
func (w *world) end(number int, jobID string, from, at int, o storetest.Op, answer storetest.Answer, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.came(number, o.String(), answer.String(), err)
	if said != "unavailable" { // which promises to have had no effect
		store := w.storeOf(number)
		w.calls[jobID] = append(w.calls[jobID], made{storetest.Call{Op: o, Answer: answer, Unknown: said == "unknown", From: from, To: w.sequence,
			Nows: slices.Clone(w.nows[store][at:])}, store, at})
	}
}

// came notes that a call has come to an end, and what it said.
func (w *world) came(number int, call, said string, err error) string {
	w.sequence++
	w.step(number, ends)
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		said = "unknown"
	case errors.Is(err, job.ErrUnavailable):
		said = "unavailable"
	case err != nil:
		w.problems = append(w.problems, fmt.Sprintf("%s failed: %v", call, err))
	}
	if number >= 0 {
		w.outcome[number] += fmt.Sprintf("%s: %s; ", call, said)
	}
	return said
}

// judge asks whether what the callers were told, and what is stored in the end, can be explained.
func (w *world) judge() (outcome string, err error) {
	w.db.Hold(false)
	w.running.Wait()
	if w.worn {
		ready(w.stores[0])
	}
	w.heal(0)
	problems := append(w.problems, w.db.Strange()...)
	stored := ""
	for _, id := range w.jobs {
		var end *job.Record
		r, err := w.stores[0].Get(context.Background(), id, false)
		switch {
		case err == nil:
			end = &r
			stored += fmt.Sprintf("%s: %v, %v by %q, attempts %d, token %s, requeues %d; ", id, r.Work.State, r.Work.Mode, r.RequestID, r.Work.Attempts, r.Work.Token, r.Work.Requeues)
		case errors.Is(err, job.ErrNotFound):
			stored += id + ": none; "
		default:
			problems = append(problems, fmt.Sprintf("reading %s in the end: %v", id, err))
			continue
		}
		var calls []storetest.Call
		for _, c := range w.calls[id] {
			if c.Unknown {
				c.Nows = w.nows[c.store][c.at:]
			}
			calls = append(calls, c.Call)
		}
		if err := w.explain(calls, end); err != nil && !w.echoed(calls, len(w.past[id]), end) {
			problems = append(problems, fmt.Sprintf("%s: %v", id, err))
		}
		if problems = append(problems, firsts(calls)...); w.awaits {
			became, wrong := w.awaited(calls, end != nil)
			stored, problems = stored+became, append(problems, wrong...)
		}
	}
	if ids := w.ids(); len(ids) != len(slices.Compact(slices.Clone(ids))) {
		problems = append(problems, fmt.Sprintf("there are records of the jobs %q", ids))
	}
	if !w.awaits && (w.expected || w.kept != "") {
		switch page, _, err := w.stores[0].ListExpectations(context.Background(), job.AllExpectations, "", "", 10); {
		case err != nil:
			problems = append(problems, fmt.Sprintf("listing expectations in the end: %v", err))
		case w.kept != "" && (len(page) != 1 || page[0].StatusURL != w.kept):
			problems = append(problems, fmt.Sprintf("the expectation %s was kept, and in the end there is %+v", w.kept, page))
		default:
			stored += fmt.Sprintf("%d expected", len(page))
		}
	}
	if len(problems) > 0 {
		err = errors.New(strings.Join(problems, "\n"))
	}
	return strings.Join(append(slices.Clone(w.outcome), stored), "\n"), err
}

func (w *world) explain(calls []storetest.Call, end *job.Record) error {
	return storetest.Explain(calls, end, storetest.Clocks{Skew: w.skew, SetBack: w.drift > w.skew})
}

// ids are those of the records that there are, in order.
func (w *world) ids() (ids []string) {
	for _, d := range w.db.Documents(jobs) {
		ids = append(ids, d.Lookup("job_id").StringValue())
	}
	slices.Sort(ids)
	return ids
}

// echoed tells whether the history is explained by a delivery that was made again after a deletion: a standalone server does not
// know a write again that its client has repeated, and one whose connection was cut may come after both. docs/operations.md says
// so.
func (w *world) echoed(calls []storetest.Call, past int, end *job.Record) bool {
	if w.kind != modeldb.Standalone || !slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Deletes() }) {
		return false
	}
	again := slices.Clone(calls)
	for _, c := range calls[past:] {
		if c.Op.Records() && !c.Unknown {
			c.Unknown, c.Nows = true, slices.Concat(w.nows...)
			again = append(again, c)
		}
	}
	return w.explain(again, end) == nil
}

// firsts finds calls that were both told to be the first, of a job that nobody has deleted.
func firsts(calls []storetest.Call) (problems []string) {
	if slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Deletes() }) {
		return nil
	}
	var first []string
	for _, c := range calls {
		if o := c.Op.String(); c.Answer.First() && !slices.Contains(first, o) {
			first = append(first, o)
		}
	}
	if len(first) > 1 {
		problems = append(problems, fmt.Sprintf("%q were all told to be first", first))
	}
	return problems
}

var tokenText = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)

// plain is an outcome with the tokens numbered in the order in which they stand there, and without times.
func plain(outcome string) string {
	var tokens []string
	outcome = tokenText.ReplaceAllStringFunc(outcome, func(token string) string {
		if !slices.Contains(tokens, token) {
			tokens = append(tokens, token)
		}
		return fmt.Sprintf("token-%d", slices.Index(tokens, token))
	})
	return timeText.ReplaceAllString(outcome, "time")
}

var timeText = regexp.MustCompile(`\b17[0-9]{11}\b`)

// abandon ends the run, wherever it is.
func (w *world) abandon() {
	for _, c := range w.play.callers {
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

// key stands for all that what happens next depends on, and what is judged in the end. gone are commands of which nobody will wait
// for the answer.
func (w *world) key(gone ...string) (key [32]byte) {
	h := sha256.New()
	h.Write(w.db.Digest())
	for _, s := range w.seen {
		h.Write(s[:])
	}
	gone = slices.Concat(gone, w.gone()) // the others follow from what the stores have seen
	slices.Sort(gone)
	fmt.Fprint(h, slices.Compact(gone))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, nows := range w.nows {
		for _, now := range nows {
			fmt.Fprint(h, now.UnixMilli(), ",")
		}
	}
	fmt.Fprint(h, w.progress)
	h.Sum(key[:0])
	return key
}
