package server

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// The pace at which waiting calls look for work that this process did not make. Each looks every second, and all of them
// together no more often than every 50 ms.
const (
	pollEach = time.Second
	pollAll  = 50 * time.Millisecond
)

// bell wakes those who wait for work. One ring wakes one of them: one job is for one, and who finds that there is more
// rings again. A ring that nobody waits for is kept, once.
type bell struct {
	rung    chan struct{}
	waiting atomic.Int64
}

func newBell() *bell { return &bell{rung: make(chan struct{}, 1)} }

func (b *bell) ring() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// enter counts the caller among those who wait, until it calls leave.
func (b *bell) enter() <-chan struct{} {
	b.waiting.Add(1)
	return b.rung
}

func (b *bell) leave() { b.waiting.Add(-1) }

// pollInterval spreads the looks of all who wait.
func (b *bell) pollInterval() time.Duration {
	d := max(pollEach, time.Duration(b.waiting.Load())*pollAll)
	return d - d/5 + rand.N(2*d/5)
}
