package sqlitestore

import (
	"sync"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// lookEvery is how often the clock is held against the wall clock.
	lookEvery = time.Second
	// The clock gains one part in catchUp while it is behind the wall clock, as little as crystals may differ by, since
	// leases then end early. It loses one part in holdBack while it is ahead: leases then only last longer.
	catchUp  = 2000
	holdBack = 10
	// jumpFrom is how far it may be behind and still catch up like that. From there on it jumps, and running leases with it. A
	// restart takes the wall clock at once, so leases are told shorter by as much.
	jumpFrom = 20 * time.Millisecond
)

// clock is the store's clock: the wall clock when the store was opened, carried on by the monotonic one. It follows a
// wall clock that was set since, and never goes backwards. Somebody calls look every lookEvery.
type clock struct {
	// read gives the wall clock and the monotonic one of the same moment.
	read func() (wall time.Time, mono time.Duration)

	mu sync.Mutex
	// base is the clock at the monotonic time at, and behind how far the wall clock was ahead of it then.
	base   time.Time
	at     time.Duration
	behind time.Duration
	// far is whether that was jumpFrom or more, either way.
	far bool
}

func newClock(read func() (time.Time, time.Duration)) *clock {
	c := &clock{read: read}
	c.base, c.at = read()
	return c
}

// machineClock reads the clocks of this machine.
func machineClock() func() (time.Time, time.Duration) {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(start)
	}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, mono := c.read()
	return c.nowAt(mono)
}

func (c *clock) nowAt(mono time.Duration) time.Time {
	passed := mono - c.at
	made := min(c.behind, passed/catchUp)
	if c.behind < 0 {
		made = max(c.behind, -passed/holdBack)
	}
	return c.base.Add(passed + made)
}

// look has the clock follow the wall clock. It returns how far that is ahead, and whether it is far away, either way, and
// was not at the look before.
func (c *clock) look() (behind time.Duration, set bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.read()
	c.base, c.at = c.nowAt(mono), mono
	c.behind = wall.Sub(c.base)
	before := c.far
	c.far = c.behind.Abs() >= jumpFrom
	return c.behind, c.far && !before
}

// jump sets the clock forward at once.
func (c *clock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = c.base.Add(d)
	c.behind -= d
	c.far = c.behind.Abs() >= jumpFrom
}

// told is the lease that work is under as its holder is to hear of it: by so much less as the clock may gain while the lease
// runs, in this process or by a restart, so that the holder's own clock is not the later one. Nor is it more than was granted: what lies further ahead is
// measured anew, and may then end sooner.
func (s *Store) told(w *job.Work, now time.Time) job.Lease {
	l := w.Lease(now)
	l.Remaining = min(l.Remaining, w.Granted)
	if s.clock != nil {
		l.Remaining = max(0, l.Remaining-l.Remaining/catchUp-jumpFrom)
	}
	return l
}
