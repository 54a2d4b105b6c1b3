package sqlitestore

import (
	"testing"
	"time"
)

// machine is the clocks of a machine, which the test moves.
type machine struct {
	wall time.Time
	mono time.Duration
}

func (m *machine) read() (time.Time, time.Duration) { return m.wall, m.mono }

// pass lets time pass, which both clocks show.
func (m *machine) pass(d time.Duration) {
	m.wall, m.mono = m.wall.Add(d), m.mono+d
}

func TestClockFollows(t *testing.T) {
	for _, c := range []struct {
		name string
		set  time.Duration // by how much the wall clock is set
		// after this long the clock has not caught up yet, and after a second more than until it has.
		until time.Duration
		// slowest and fastest is how much of a second the clock does in one.
		slowest, fastest float64
	}{
		{"forward, a little", 500 * time.Millisecond, 1000 * time.Second, 1, 1.0005},
		{"back, a little", -500 * time.Millisecond, 5 * time.Second, 0.9, 1},
		{"back an hour", -time.Hour, 10 * time.Hour, 0.9, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &machine{wall: time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)}
			clock := newClock(m.read)
			m.pass(time.Hour)
			clock.look()
			if now := clock.now(); !now.Equal(m.wall) {
				t.Fatalf("it is %v, want %v", now, m.wall)
			}
			m.wall = m.wall.Add(c.set)
			for passed := time.Duration(0); passed < c.until+2*time.Second; passed += lookEvery {
				behind, _ := clock.look()
				if caughtUp := behind == 0; caughtUp != (passed >= c.until) {
					t.Fatalf("after %v the wall clock is ahead by %v", passed, behind)
				}
				before := clock.now()
				m.pass(lookEvery)
				if rate := clock.now().Sub(before).Seconds() / lookEvery.Seconds(); rate < c.slowest-1e-9 || rate > c.fastest+1e-9 {
					t.Fatalf("after %v it goes at %v, want %v to %v", passed, rate, c.slowest, c.fastest)
				}
			}
		})
	}
}

// TestClockNobodyLooksAt does not go beyond the wall clock, and not backwards.
func TestClockNobodyLooksAt(t *testing.T) {
	m := &machine{wall: time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)}
	clock := newClock(m.read)
	for _, set := range []time.Duration{700 * time.Millisecond, -700 * time.Millisecond} {
		m.wall = m.wall.Add(set)
		before := clock.now()
		clock.look()
		if now := clock.now(); !now.Equal(before) {
			t.Errorf("a look alone moved it from %v to %v", before, now)
		}
		m.pass(24 * time.Hour)
		if now := clock.now(); !now.Equal(m.wall) {
			t.Errorf("it is %v, want %v", now, m.wall)
		}
		clock.look()
	}
}

func TestClockJumps(t *testing.T) {
	m := &machine{wall: time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)}
	clock := newClock(m.read)
	m.wall = m.wall.Add(time.Hour)
	behind, set := clock.look()
	if _, again := clock.look(); !set || again {
		t.Errorf("it says %t and %t that the wall clock was set", set, again)
	}
	clock.jump(behind)
	for range 3 {
		if now := clock.now(); !now.Equal(m.wall) {
			t.Errorf("it is %v, want %v", now, m.wall)
		}
		m.pass(time.Minute)
	}
	m.wall = m.wall.Add(-time.Hour)
	if _, set := clock.look(); !set {
		t.Error("it does not say that the wall clock was set again")
	}
}
