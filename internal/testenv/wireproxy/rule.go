package wireproxy

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
)

// Rule says which commands meet a fault. Fill it in, then give it to [Proxy.Add]; after that only its methods may be
// used.
type Rule struct {
	// Command is the command's name, such as "update". Empty: any but hello, so that the client's monitoring stays
	// untouched. A rule for hello may only cut, hold or delay: a new connection's first one is not an OP_MSG.
	Command string
	// If narrows it further; nil: no further. It is asked before Skip, Times and Chance count, one command at a time.
	If func(Command) bool
	// Skip is how many matching commands pass first.
	Skip int
	// Times is how many meet the fault after that; 0: all.
	Times int
	// Chance is how probable the fault is, from 0 to 1, for [Proxy.Random]; 0: certain.
	Chance float64
	// Do is the fault. Required.
	Do Fault

	mu           sync.Mutex
	seen         int
	begun, ended int
	changed      chan struct{} // closed at the next change of begun or ended
}

// Add puts a rule behind those already there. The first that applies to a command decides; without any it passes.
func (p *Proxy) Add(r *Rule) *Rule {
	r.changed = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Clear takes all rules away. What is held by one stays held.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Random adds rules that strike by chance. The seed decides the sequence of chances and is printed when the test fails;
// which command meets which of them depends on the order in which the commands arrive, so a seed repeats a run of
// concurrent clients only in kind.
func (p *Proxy) Random(t testing.TB, seed uint64, rules ...*Rule) {
	t.Helper()
	p.mu.Lock()
	p.random = rand.New(rand.NewPCG(seed, 0))
	p.mu.Unlock()
	for _, r := range rules {
		p.Add(r)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the faults' seed is %d", seed)
		}
	})
}

// find returns the rule that applies to the command; nil for none.
func (p *Proxy) find(c Command) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.applies(c, p.random) {
			return r
		}
	}
	return nil
}

func (r *Rule) applies(c Command, random *rand.Rand) bool {
	if c.Name != r.Command && (r.Command != "" || c.Name == "hello") {
		return false
	}
	if r.If != nil && !r.If(c) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	if r.seen <= r.Skip || r.Times > 0 && r.begun >= r.Times {
		return false
	}
	if r.Chance > 0 && random.Float64() >= r.Chance {
		return false
	}
	r.begun++
	r.announce()
	return true
}

func (r *Rule) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	r.announce()
}

func (r *Rule) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Hits is how many commands have met the fault.
func (r *Rule) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

// Begun waits until n commands have met the fault. It returns the context's error when that ends first.
func (r *Rule) Begun(ctx context.Context, n int) error {
	return r.wait(ctx, func() bool { return r.begun >= n })
}

// Ended waits until the fault is through with n commands: they were answered, or their connections cut. It returns the
// context's error when that ends first.
func (r *Rule) Ended(ctx context.Context, n int) error {
	return r.wait(ctx, func() bool { return r.ended >= n })
}

func (r *Rule) wait(ctx context.Context, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
