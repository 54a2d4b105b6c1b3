package chaostest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/testenv"
)

// patience bounds what must happen anyway. Only a run that fails gets there.
const patience = 5 * time.Minute

// world is a store with one service or several before it, and their clients.
type world struct {
	t         *testing.T
	clock     *clock
	tally     *tally
	rng       *rand.Rand
	instances []*testenv.Service
	// trial and load have a client for each instance, that makes one attempt for each call; quiet waits and repeats.
	trial, load []*remote
	quiet       *remote

	// faults are what may strike, each as often as it stands there.
	faults []fault
	// calm ends the faults that last; storm begins them.
	storm, calm func()
	// most is how many deliveries of a job may have been written at most, given its account; 0 when nobody knows.
	most func(jobID string, a *account) int64
	// file is the embedded store's.
	file string
	// final looks at the store when all is over and the services have ended; nil for nothing to look at.
	final func() []finding

	// exclusive is true when the store is the instance's own, so that it does nothing while that is dead.
	exclusive  bool
	leastCalls int64 // of the load of a round

	deck []fault // what is left of the faults
}

// fault strikes once, with the round going on. It returns when the service is to be had again.
type fault struct {
	name   string
	strike func(r *round) error
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, clock: newClock(t), tally: newTally(), rng: rand.New(rand.NewPCG(seed, 0)), storm: func() {}, calm: func() {},
		leastCalls: leastCallsShort}
	w.most = func(_ string, a *account) int64 { return a.answered + a.unknown }
	return w
}

// connect makes the clients, once the instances run.
func (w *world) connect() {
	w.t.Helper()
	for _, i := range w.instances {
		w.trial = append(w.trial, newRemote(w.t, i.Addr(), w.split(), client.WithoutBatching()))
		w.load = append(w.load, newRemote(w.t, i.Addr(), w.split()))
	}
	// The quiet one repeats a call until it is answered, and is never in a hurry.
	w.quiet = newRemote(w.t, w.instances[0].Addr(), nil, client.WithoutBatching(), client.WithRetry(client.RetryPolicy{}))
}

// split returns a source of randomness for somebody else.
func (w *world) split() *rand.Rand { return rand.New(rand.NewPCG(w.rng.Uint64(), 1)) }

// draw takes the next fault. Each has its turn before the deck is shuffled anew, so that a short run has them all.
func (w *world) draw() fault {
	if len(w.deck) == 0 {
		w.deck = append(w.deck, w.faults...)
		w.rng.Shuffle(len(w.deck), func(i, j int) { w.deck[i], w.deck[j] = w.deck[j], w.deck[i] })
	}
	f := w.deck[0]
	w.deck = w.deck[1:]
	return f
}

// killInstance kills an instance and starts it again.
func killInstance(r *round) error {
	i := r.instances[r.rng.IntN(len(r.instances))]
	if err := r.kill(i); err != nil {
		return err
	}
	return i.Start()
}

// kill kills an instance. What it was doing is done or never will be, unless a database goes on with it.
func (r *round) kill(i *testenv.Service) error {
	err := i.Kill()
	if r.exclusive {
		for _, tr := range r.trials {
			tr.Settle(r.clock.now())
		}
	}
	return err
}

// cutClients ends every connection between the clients and an instance.
func cutClients(r *round) error {
	r.instances[r.rng.IntN(len(r.instances))].Cut()
	return nil
}

// run has rounds until one finds something, and returns what it found: so many, and more until every fault has struck, or as
// long as limit says when that is not 0.
func (w *world) run(rounds int, limit time.Duration, faultsPerRound int) []finding {
	w.t.Helper()
	began, reported := time.Now(), time.Now()
	enough := func(n int) bool {
		if limit > 0 {
			return time.Since(began) >= limit
		}
		return n >= rounds && (faultsPerRound == 0 || len(w.missing()) == 0 || n >= 4*rounds)
	}
	for n := 0; !enough(n); n++ {
		if found := w.round(n, faultsPerRound); len(found) > 0 {
			w.report(fmt.Sprintf("until round %d: ", n))
			return found
		}
		if time.Since(reported) > time.Minute {
			reported = time.Now()
			w.report(fmt.Sprintf("%v: ", time.Since(began).Round(time.Second)))
		}
	}
	w.report("in all: ")
	if w.final == nil {
		return nil
	}
	return w.final()
}

// missing are the faults that have not struck.
func (w *world) missing() (names []string) {
	w.tally.mu.Lock()
	defer w.tally.mu.Unlock()
	for _, f := range w.faults {
		if w.tally.faults[f.name] == 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// report writes one line on what happened so far, at once.
func (w *world) report(prefix string) {
	w.t.Logf("%s%v", prefix, w.tally)
}

func (n *tally) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var faults []string
	for _, name := range sortedKeys(n.faults) {
		faults = append(faults, fmt.Sprintf("%s %d", name, n.faults[name]))
	}
	return fmt.Sprintf("%d calls with %d deliveries in %d rounds; %d outcomes unknown, %d refused; %d histories of %d operations; faults: %s",
		n.calls.Load(), n.deliveries.Load(), n.rounds.Load(), n.unknown.Load(), n.refused.Load(), n.trials.Load(), n.operations.Load(),
		strings.Join(faults, ", "))
}

// progress counts the calls of a round's trials that began, and those calls that were refused.
type progress struct {
	mu             sync.Mutex
	calls, refused int64
	over           bool
	changed        chan struct{} // closed at the next change
}

func newProgress() *progress { return &progress{changed: make(chan struct{})} }

func (p *progress) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// until waits until reached is, or the trials are over; then it returns false.
func (p *progress) until(ctx context.Context, reached func(calls, refused int64) bool) bool {
	for {
		p.mu.Lock()
		is, over, changed := reached(p.calls, p.refused), p.over, p.changed
		p.mu.Unlock()
		if is || over {
			return is
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
