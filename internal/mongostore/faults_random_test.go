package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// history is what the callers were told, by job.
type history struct {
	mu        sync.Mutex
	answered  map[string]int64           // deliveries that were answered
	creators  map[string]map[string]bool // request ids that were told that they made the record
	leases    map[string]map[int64]grant // by generation
	completed map[string]bool
}

// grant is a lease that somebody was told of, or released.
type grant struct {
	token       string
	start, ends time.Time
	released    bool // its holder has called ReleaseWork or CompleteWork, whatever the answer
}

func newHistory() *history {
	return &history{answered: map[string]int64{}, creators: map[string]map[string]bool{}, leases: map[string]map[int64]grant{}, completed: map[string]bool{}}
}

func (h *history) record(d job.Delivery, o job.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered[d.JobID]++
	if o.Verdict.FirstDelivery || o.Verdict.Disposition == job.First {
		if h.creators[d.JobID] == nil {
			h.creators[d.JobID] = map[string]bool{}
		}
		h.creators[d.JobID][d.RequestID] = true
	}
}

// leased notes a lease and reports whether its number was given out twice. Nobody renews in these runs.
func (h *history) leased(t *testing.T, jobID string, l job.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leases[jobID] == nil {
		h.leases[jobID] = map[int64]grant{}
	}
	g, known := h.leases[jobID][l.Generation]
	if known && g.token != l.Token {
		t.Errorf("%s: two leases have the number %d", jobID, l.Generation)
	}
	h.leases[jobID][l.Generation] = grant{token: l.Token, start: l.Expires.Add(-time.Minute), ends: l.Expires, released: g.released}
}

func (h *history) giveUp(jobID string, l job.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.leases[jobID][l.Generation]
	g.released = true
	h.leases[jobID][l.Generation] = g
}

// storm is every fault at once, each now and then.
func storm() []*wireproxy.Rule {
	var rules []*wireproxy.Rule
	add := func(command string, chance float64, faults ...wireproxy.Fault) {
		for _, f := range faults {
			rules = append(rules, &wireproxy.Rule{Command: command, Chance: chance, Do: f})
		}
	}
	add("update", 0.01, wireproxy.CutBefore, wireproxy.CutAfter, wireproxy.Fail(10107, "NotWritablePrimary"), wireproxy.Fail(91, "ShutdownInProgress"))
	add("update", 0.04, wireproxy.FailConcern(64, "WriteConcernTimeout"), wireproxy.Fail(50, "MaxTimeMSExpired"), wireproxy.Delay(5*time.Millisecond),
		wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, anyItem), wireproxy.DisownItems(wireproxy.ItemError{Code: 11602}, anyItem))
	add("find", 0.01, wireproxy.CutBefore, wireproxy.Fail(11602, "InterruptedDueToReplStateChange"))
	return rules
}

// TestRandomFaults: many callers on few jobs, through two stores, under every fault. No caller is ever told what another
// contradicts, and when the storm is over each call gets its answer and each job is done or can be claimed.
func TestRandomFaults(t *testing.T) {
	seed := testenv.Seed(t)
	rounds, jobs := 3, 6
	if testenv.Long() {
		rounds = 60
	}
	b := newBench(t, "")
	other := open(t, b.opts)
	stores := []job.Store{b.store, batch.New(other, batch.Config{Lanes: 2})}
	faults := 0
	b.proxy.Random(t, seed)
	for round := range rounds {
		h, rules := newHistory(), storm()
		for _, r := range rules {
			b.proxy.Add(r)
		}
		var callers sync.WaitGroup
		for i := range 8 {
			c := &caller{t: t, b: b, h: h, store: stores[i%len(stores)], random: rand.New(rand.NewPCG(seed, uint64(round*8+i)))}
			callers.Go(func() {
				for n := range 12 {
					c.call(fmt.Sprintf("round %d job %d", round, c.random.IntN(jobs)), fmt.Sprintf("request %d of %d", n, i))
				}
			})
		}
		callers.Wait()
		b.calm()
		for i := range jobs {
			h.verify(t, b, fmt.Sprintf("round %d job %d", round, i))
		}
		b.drain(h)
		for _, r := range rules {
			faults += r.Hits()
		}
	}
	t.Logf("%d faults", faults)
	if faults < 10*rounds {
		t.Errorf("%d faults in %d rounds: that was no storm", faults, rounds)
	}
}

// caller makes one call after the other, and repeats each until it is answered.
type caller struct {
	t      *testing.T
	b      *bench
	h      *history
	store  job.Store
	random *rand.Rand
}

// until repeats what do does, with a time limit now and then, for as long as nobody knows its outcome.
func (c *caller) until(do func(ctx context.Context) error) error {
	for whole := within(c.t); ; {
		limit := time.Minute
		if c.random.IntN(8) == 0 {
			limit = time.Duration(1+c.random.IntN(30)) * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(whole, limit)
		err := do(ctx)
		cancel()
		if whole.Err() != nil || !errors.Is(err, job.ErrOutcomeUnknown) && !errors.Is(err, job.ErrUnavailable) {
			return err
		}
	}
}

// call records a delivery of the job, whose mode depends on the job alone, and does something with the lease if it gets
// one: complete, release, or let it lapse. Now and then time passes.
func (c *caller) call(jobID, requestID string) {
	mode := job.WorkMode(1 + int(jobID[len(jobID)-1]-'0')%3)
	if c.random.IntN(6) == 0 {
		c.b.clock.Advance(40 * time.Second)
	}
	if mode == job.ModeQueued && c.random.IntN(2) == 0 {
		c.claim(jobID + requestID)
		return
	}
	d := newDelivery(c.t, jobID, requestID, mode)
	var lease *job.Lease
	err := c.until(func(ctx context.Context) error {
		o := c.store.Record(ctx, []job.Delivery{d})[0]
		if o.Err == nil {
			c.h.record(d, o)
			lease = o.Lease
		}
		return o.Err
	})
	if err != nil {
		c.t.Errorf("%s, %s: %v", jobID, requestID, err)
		return
	}
	if lease != nil {
		c.h.leased(c.t, jobID, *lease)
		c.work(jobID, *lease)
	}
}

func (c *caller) claim(requestID string) {
	var got []job.Claimed
	err := c.until(func(ctx context.Context) (err error) {
		got, err = c.store.Claim(ctx, job.ClaimRequest{RequestID: requestID, Max: 2, Lease: time.Minute, MaxBytes: 1 << 20})
		return err
	})
	if err != nil {
		c.t.Errorf("claim %s: %v", requestID, err)
	}
	for _, g := range got {
		c.h.leased(c.t, g.Record.JobID, g.Lease)
		c.work(g.Record.JobID, g.Lease)
	}
}

func (c *caller) work(jobID string, l job.Lease) {
	var err error
	switch c.random.IntN(6) {
	case 0:
		c.h.giveUp(jobID, l)
		err = c.until(func(ctx context.Context) error { return job.Complete(ctx, c.store, jobID, l.Token, "done") })
		if err == nil {
			c.h.mu.Lock()
			c.h.completed[jobID] = true
			c.h.mu.Unlock()
		}
	case 1, 2:
		c.h.giveUp(jobID, l)
		err = c.until(func(ctx context.Context) error { return job.GiveBack(ctx, c.store, jobID, l.Token, job.Release{}) })
	}
	if err != nil && !errors.Is(err, job.ErrLeaseLost) {
		c.t.Errorf("%s: %v", jobID, err)
	}
}

// verify holds what the callers of one job were told against each other and against the document.
func (h *history) verify(t *testing.T, b *bench, jobID string) {
	t.Helper()
	if h.answered[jobID] == 0 {
		return
	}
	doc, work := b.stored(jobID)
	n, _ := doc.Lookup("deliveries").AsInt64OK()
	if n < h.answered[jobID] || n > b.attempted(jobID) {
		t.Errorf("%s counts %d deliveries; %d were answered, %d sent", jobID, n, h.answered[jobID], b.attempted(jobID))
	}
	creator, _ := doc.Lookup("request_id").StringValueOK()
	if len(h.creators[jobID]) > 1 || len(h.creators[jobID]) == 1 && !h.creators[jobID][creator] {
		t.Errorf("%s was made by %q; first were told to be: %v", jobID, creator, h.creators[jobID])
	}
	if state, _ := work.Lookup("state").StringValueOK(); h.completed[jobID] && state != "completed" {
		t.Errorf("%s was completed and is %s", jobID, state)
	}
	var before grant
	generations := make([]int64, 0, len(h.leases[jobID]))
	for generation := range h.leases[jobID] {
		generations = append(generations, generation)
	}
	slices.Sort(generations)
	for i, generation := range generations {
		l := h.leases[jobID][generation]
		if i > 0 && !before.released && l.start.Before(before.ends) {
			t.Errorf("%s: lease %d began %v before the one before it ended", jobID, generation, before.ends.Sub(l.start))
		}
		before = l
	}
}

// drain claims and completes whatever is not done: none of it may be out of reach.
func (b *bench) drain(h *history) {
	b.t.Helper()
	b.clock.Advance(time.Hour)
	for n := 0; ; n++ {
		got, err := b.store.Claim(within(b.t), job.ClaimRequest{RequestID: fmt.Sprint("drain ", b.clock.Now(), n), Max: 10, Lease: time.Minute, MaxBytes: 1 << 20})
		testenv.Must(b.t, err)
		if len(got) == 0 {
			break
		}
		for _, c := range got {
			if err := job.Complete(within(b.t), b.store, c.Record.JobID, c.Lease.Token, ""); err != nil {
				b.t.Errorf("%s: %v", c.Record.JobID, err)
			}
		}
	}
	for jobID := range h.answered {
		if _, work := b.stored(jobID); work != nil {
			if state, _ := work.Lookup("state").StringValueOK(); state != "completed" {
				b.t.Errorf("%s stays %s, and nobody can claim it", jobID, state)
			}
		}
	}
}
