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
	stores []*mongostore.Store
	born   time.Time
	runs   int
	// What a run begins with: the data, the clock, the calls that came before and what the last of them answered.
	data   modeldb.Snapshot
	now    time.Time
	past   []storetest.Call
	before storetest.Answer
	known  job.Expected
	// token is that of the poller that has the job.
	token string
	// hurt is set once a client may have lost its connections.
	hurt bool

	*play
}

// play is one run of a scenario. It stands still until a command is answered or something else happens.
type play struct {
	// seen is for each store the digest of all that it has seen, from which follows all that it does next. Its random
	// numbers are made of it too.
	seen    [][32]byte
	callers []*caller
	hand    chan string // a token, from one caller to another
	running sync.WaitGroup

	mu       sync.Mutex
	sequence int   // of what begins and ends
	begun    int   // calls
	ended    []int // calls of each caller
	// order tells of each call what had ended when it began.
	order    []string
	nows     []time.Time
	calls    map[string][]storetest.Call // by job
	outcome  []string                    // of each call, in the order of the callers
	kept     string                      // the URL of an expectation that is to be there in the end
	problems []string
}

// lifetime is how long a world is young, in the bubble's time: shorter than until the stores look after themselves again.
const (
	lifetime = 40 * time.Second
	mostRuns = 200
)

func (w *world) young() bool { return time.Since(w.born) < lifetime && w.runs < mostRuns }

// run runs the scenario once. choose is asked what is to happen next, and gives the place of one of the events, or -1 for
// the run to be given up. The outcome is what came of it; empty when it was given up.
func (w *world) run(choose func(w *world, events []happening) int) (outcome string, err error) {
	w.reset()
	defer w.abandon()
	w.start()
	for {
		events := w.events()
		if len(events) == 0 {
			return w.judge()
		}
		i := choose(w, events)
		if i < 0 {
			return "", nil
		}
		w.hurt = w.hurt || events[i].hurts
		events[i].do(w)
		w.settle()
	}
}

func newWorld(t *testing.T, s scenario, kind modeldb.Deployment) *world {
	w := &world{scenario: s, t: t, kind: kind, db: modeldb.New(kind), clock: testenv.NewClock(), born: time.Now()}
	if len(w.jobs) == 0 {
		w.jobs = []string{"job"}
	}
	cryptotest.SetGlobalRandom(t, 1)
	stores := len(s.callers)
	if s.shared {
		stores = 1
	}
	for i := range stores {
		store, err := mongostore.Open(mongostore.Options{URI: w.db.URI(), Dialer: w.db.Dialer(i), Now: w.clock.Now, MaxAttempts: storetest.MaxAttempts,
			PausesEvery: time.Hour,
			NewPause:    func() backoff.BackOff { return backoff.NewConstantBackOff(pause) }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		<-store.Ready()
		w.stores = append(w.stores, store)
	}
	synctest.Wait()
	w.play = &play{nows: []time.Time{w.clock.Now()}, calls: map[string][]storetest.Call{}}
	cryptotest.SetGlobalRandom(t, 2)
	setup := &caller{world: w, number: -1, store: w.stores[0], ctx: context.Background()}
	if w.expected {
		setup.expect("first", false)
	}
	if w.polled {
		o, err := setup.store.ClaimOverdue(setup.ctx, job.OverdueRequest{Max: 1, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		w.token = o.Jobs[0].Token
	}
	for _, o := range w.scenario.before {
		w.before, _ = setup.do(o)
	}
	if r, err := setup.store.Get(setup.ctx, w.jobs[0], false); err == nil {
		w.known = job.ExpectedOf(&r)
	}
	if w.aged {
		w.clock.Advance(time.Second)
	}
	if w.lapsed {
		w.clock.Advance(past)
	}
	w.data, w.now, w.past = w.db.Snapshot(), w.clock.Now(), w.calls[w.jobs[0]]
	return w
}

// reset makes the world what it was in the beginning.
func (w *world) reset() {
	w.runs++
	if w.hurt {
		w.hurt = false
		for _, s := range w.stores { // finds the primary again
			if err := s.Check(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}
		synctest.Wait()
	}
	w.db.Restore(w.data)
	w.clock.Set(w.now)
	if w.pauses {
		for _, s := range w.stores { // knows which claims are paused
			if _, err := s.Pauses(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	n := len(w.scenario.callers)
	w.play = &play{nows: []time.Time{w.now}, calls: map[string][]storetest.Call{w.jobs[0]: slices.Clone(w.past)}, hand: make(chan string, 1),
		sequence: 2 * len(w.past), outcome: make([]string, n), ended: make([]int, n), order: make([]string, n)}
	for i := range w.stores {
		w.seen = append(w.seen, [32]byte{byte(i)})
	}
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
		c := &caller{world: w, number: i, store: w.stores[i%len(w.stores)], before: w.before, known: w.known}
		c.ctx, c.leave = context.WithCancel(context.Background())
		w.play.callers = append(w.play.callers, c)
		w.seed(i % len(w.stores))
		w.running.Go(func() {
			act(c)
			w.mu.Lock()
			c.over = true
			w.mu.Unlock()
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
	fmt.Fprint(h, len(w.nows))
	h.Sum(w.seen[store][:0])
	w.seed(store)
}

// settle waits until every caller that is not over waits for the database, or for another one.
func (w *world) settle() {
	synctest.Wait()
	for i, while := range []time.Duration{2 * pause, patience, patience, 10 * time.Second, time.Minute} {
		time.Sleep(while)
		synctest.Wait()
		if calls := w.waiting(); calls >= w.active() || i > 1 && calls > 0 {
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
	for _, c := range w.play.callers {
		if !c.over {
			n++
		}
	}
	return n
}

// calm tells that no election can change what is read.
func (w *world) calm() bool {
	for i := range w.stores {
		if w.db.Behind(i) {
			return false
		}
	}
	return !w.db.Pending()
}

// lapse moves the clock past a lease.
func (w *world) lapse() {
	w.clock.Advance(past)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nows = append(w.nows, w.clock.Now())
}

// begin and end are around a call.
func (w *world) begin(number int) (from, at int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequence++
	w.begun++
	if number >= 0 {
		w.order[number] += fmt.Sprint(w.ended)
	}
	return w.sequence, len(w.nows) - 1
}

// note notes the end of a call that the model does not know.
func (w *world) note(number int, what string, err error, said ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequence++
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		said = []any{"unknown"}
	case errors.Is(err, job.ErrUnavailable):
		said = []any{"unavailable"}
	case errors.Is(err, job.ErrNoExpectation), errors.Is(err, job.ErrLeaseLost):
		said = []any{err}
	case err != nil:
		w.problems = append(w.problems, fmt.Sprintf("%s failed: %v", what, err))
	}
	if number >= 0 {
		w.ended[number]++
		w.outcome[number] += fmt.Sprintf("%s: %v; ", what, said)
	}
}

func (w *world) end(number int, jobID string, from, at int, o storetest.Op, answer storetest.Answer, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequence++
	said := answer.String()
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		said = "unknown"
	case errors.Is(err, job.ErrUnavailable):
		said = "unavailable"
	case err != nil:
		w.problems = append(w.problems, fmt.Sprintf("%v failed: %v", o, err))
	}
	if number >= 0 {
		w.ended[number]++
		w.outcome[number] += fmt.Sprintf("%v: %s; ", o, said)
	}
	if said != "unavailable" { // which promises to have had no effect
		w.calls[jobID] = append(w.calls[jobID], storetest.Call{Op: o, Answer: answer, Unknown: said == "unknown", From: from, To: w.sequence,
			Nows: slices.Clone(w.nows[at:])})
	}
}

// judge asks whether what the callers were told, and what is stored in the end, can be explained.
func (w *world) judge() (outcome string, err error) {
	w.db.Hold(false)
	w.running.Wait()
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
		for i := range w.calls[id] {
			if c := &w.calls[id][i]; c.Unknown {
				first := slices.IndexFunc(w.nows, c.Nows[0].Equal)
				c.Nows = w.nows[first:]
			}
		}
		if err := storetest.Explain(w.calls[id], end); err != nil && !w.echoed(w.calls[id], end) {
			problems = append(problems, fmt.Sprintf("%s: %v", id, err))
		}
		problems = append(problems, firsts(w.calls[id])...)
	}
	if w.expected || w.kept != "" {
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

// echoed tells whether the history is explained by a delivery that was made again after a deletion: a standalone server does not
// know a write again that its client has repeated, and one whose connection was cut may come after both. docs/operations.md says
// so.
func (w *world) echoed(calls []storetest.Call, end *job.Record) bool {
	if w.kind != modeldb.Standalone || !slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Deletes() }) {
		return false
	}
	again := slices.Clone(calls)
	for _, c := range calls[len(w.past):] {
		if c.Op.Records() && !c.Unknown {
			c.Unknown, c.Nows = true, w.nows
			again = append(again, c)
		}
	}
	return storetest.Explain(again, end) == nil
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

// key stands for all that what happens next depends on, and what is judged in the end.
func (w *world) key() (key [32]byte) {
	h := sha256.New()
	h.Write(w.db.Digest())
	for _, s := range w.seen {
		h.Write(s[:])
	}
	for _, c := range w.db.Calls() {
		fmt.Fprint(h, c.Client, c.Number, c.Gone, ";")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.play.callers {
		fmt.Fprint(h, c.over, c.left)
	}
	fmt.Fprint(h, len(w.nows), w.order)
	h.Sum(key[:0])
	return key
}
