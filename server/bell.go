package server

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// The pace at which a process looks for work that it did not make, on behalf of all its calls that wait: every pollEvery for
// each kind of work that they wait for, but no more often than every pollLeast altogether.
const (
	pollEvery = 160 * time.Millisecond
	pollLeast = 50 * time.Millisecond
)

// bell wakes those who wait for work. One job is for one, so one is woken that the job is for, the longest waiting first;
// who finds that there is more rings again.
type bell struct {
	mu      sync.Mutex
	waiting []*waiter
	// poll sends somebody to look now and then, as long as anybody waits.
	poll *time.Timer
}

// waiter is one who waits, for jobs with one of the events, any when there are none, and an id that begins with the prefix.
type waiter struct {
	events []string
	prefix string
	kind   string        // the events and the prefix as one text
	rung   chan struct{} // holds one ring
	look   chan struct{} // holds none: who looks already need not be sent
}

func newBell() *bell { return &bell{} }

// ring wakes one who waits for a job with this id and event.
func (b *bell) ring(jobID, event string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.waiting {
		if (len(w.events) == 0 || slices.Contains(w.events, event)) && strings.HasPrefix(jobID, w.prefix) && signal(w.rung) {
			return
		}
	}
}

// ringAny wakes one waiter of each kind. It is for work of which it is not known whom it is for.
func (b *bell) ringAny() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eachKind(func(w *waiter) bool { return signal(w.rung) })
}

// eachKind tries those of each kind, the longest waiting first, until one succeeds, and returns how many kinds there are.
func (b *bell) eachKind(try func(*waiter) bool) int {
	done := map[string]bool{}
	for _, w := range b.waiting {
		if !done[w.kind] {
			done[w.kind] = try(w)
		}
	}
	return len(done)
}

// signal reports whether c took it.
func signal(c chan struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter puts the caller among those who wait, until it calls leave. It must look for work after that.
func (b *bell) enter(events []string, prefix string) *waiter {
	w := &waiter{events: events, prefix: prefix, kind: prefix + "\x00" + strings.Join(events, "\x00"), rung: make(chan struct{}, 1), look: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting = append(b.waiting, w); len(b.waiting) == 1 {
		b.poll = time.AfterFunc(pollAfter(1), b.sendOne)
	}
	return w
}

// leave takes w out. A ring that it did not use goes to somebody else.
func (b *bell) leave(w *waiter) {
	b.mu.Lock()
	b.waiting = slices.DeleteFunc(b.waiting, func(other *waiter) bool { return other == w })
	if len(b.waiting) == 0 {
		b.poll.Stop()
	}
	b.mu.Unlock()
	select {
	case <-w.rung:
		b.ringAny()
	default:
	}
}

// sendOne has one of each kind look for work.
func (b *bell) sendOne() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 {
		b.poll.Reset(pollAfter(b.eachKind(func(w *waiter) bool { return signal(w.look) })))
	}
}

// pollAfter is the time to the next look for so many kinds, which differs a little so that instances do not look together.
func pollAfter(kinds int) time.Duration {
	d := max(pollEvery, time.Duration(kinds)*pollLeast)
	return d - d/5 + rand.N(2*d/5)
}
