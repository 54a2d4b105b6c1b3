package server

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// The pace at which waiting calls look for work that this process did not make. Each looks every second, and all of them
// together no more often than every 50 ms.
const (
	pollEach = time.Second
	pollAll  = 50 * time.Millisecond
)

// bell wakes those who wait for work. One job is for one, so one is woken that the job is for, the longest waiting first;
// who finds that there is more rings again.
type bell struct {
	mu      sync.Mutex
	waiting []*waiter
}

// waiter is one who waits, for jobs with one of the events; for any when there are none.
type waiter struct {
	events []string
	rung   chan struct{} // holds one ring
}

func newBell() *bell { return &bell{} }

// ring wakes one who waits for a job with this event.
func (b *bell) ring(event string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.waiting {
		if (len(w.events) == 0 || slices.Contains(w.events, event)) && w.wake() {
			return
		}
	}
}

// ringAny wakes one of each kind of those who wait: there is work, and whose it is nobody knows here.
func (b *bell) ringAny() {
	b.mu.Lock()
	defer b.mu.Unlock()
	woken := map[string]bool{}
	for _, w := range b.waiting {
		if kind := strings.Join(w.events, "\x00"); !woken[kind] {
			woken[kind] = w.wake()
		}
	}
}

// wake reports whether w was asleep.
func (w *waiter) wake() bool {
	select {
	case w.rung <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter puts the caller among those who wait, until it calls leave. It must look for work after that.
func (b *bell) enter(events []string) *waiter {
	w := &waiter{events: events, rung: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, w)
	return w
}

// leave takes w out. A ring that it did not use goes to somebody else.
func (b *bell) leave(w *waiter) {
	b.mu.Lock()
	b.waiting = slices.DeleteFunc(b.waiting, func(other *waiter) bool { return other == w })
	b.mu.Unlock()
	select {
	case <-w.rung:
		b.ringAny()
	default:
	}
}

// pollInterval spreads the looks of all who wait.
func (b *bell) pollInterval() time.Duration {
	b.mu.Lock()
	n := len(b.waiting)
	b.mu.Unlock()
	d := max(pollEach, time.Duration(n)*pollAll)
	return d - d/5 + rand.N(2*d/5)
}
