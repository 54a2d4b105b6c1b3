package mongostore

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// lab is a clock in a world whose time the test moves.
type lab struct {
	*clock
	mono, wall time.Duration // since the start
}

func newLab() *lab {
	l := &lab{clock: newClock(nil)}
	l.clock.mono = func() time.Duration { return l.mono }
	l.clock.wall = func() time.Time { return l.start.Add(l.wall) }
	return l
}

// pass lets time pass.
func (l *lab) pass(d time.Duration) { l.mono, l.wall = l.mono+d, l.wall+d }

// measure is a hello to a server whose clock is ahead, with the time that it takes to get there and back.
func (l *lab) measure(server string, ahead, there, back time.Duration) {
	sent, apart := l.begin()
	l.pass(there)
	answered := l.start.Add(l.mono + ahead).Truncate(time.Millisecond)
	l.pass(back)
	l.add(sent, apart, answered, server)
}

// wantTime fails unless the server's true time is within what the clock says.
func (l *lab) wantTime(t *testing.T, ahead time.Duration) {
	t.Helper()
	now, wrong, known := l.now()
	if off := now.Sub(l.start.Add(l.mono + ahead)); !known || off.Abs() > wrong {
		t.Errorf("the clock is %v off, and says %v; known: %t", off, wrong, known)
	}
}

// TestClockBounds: whatever the ways there and back take, the clock is never further off than it says, and good ways make
// it good.
func TestClockBounds(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		spread := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
		l, ahead := newLab(), spread(2*time.Hour)-time.Hour
		for range 50 {
			there, back := spread(time.Millisecond), spread(time.Millisecond)
			if random.IntN(4) == 0 {
				there = spread(3 * time.Second) // selecting a server, dialling, TLS, SCRAM
			}
			if random.IntN(4) == 0 {
				back = spread(3 * time.Second)
			}
			l.measure("a", ahead, there, back)
			l.wantTime(t, ahead)
			l.pass(spread(time.Minute))
			l.wantTime(t, ahead)
		}
	}
}

// TestClockSlowFirstConnection: 2.5 s for the first hello do not make the clock 1.25 s fast.
func TestClockSlowFirstConnection(t *testing.T) {
	l := newLab()
	l.measure("a", 0, 2500*time.Millisecond, 0)
	l.wantTime(t, 0)
	l.measure("a", 0, time.Millisecond, time.Millisecond)
	l.wantTime(t, 0)
	if _, wrong, _ := l.now(); wrong > 2*time.Millisecond {
		t.Errorf("after a good measurement it may still be %v off", wrong)
	}
}

// TestClockSuspendedUnderWay: what was asked before a suspension, and heard of after it, says nothing.
func TestClockSuspendedUnderWay(t *testing.T) {
	l := newLab()
	sent, apart := l.begin()
	answered := l.start
	l.wall += time.Minute // the monotonic clock stands still
	l.add(sent, apart, answered, "a")
	if _, _, known := l.now(); known {
		t.Error("the clock is known")
	}
	l.measure("a", time.Minute, 0, 0)
	l.wantTime(t, time.Minute)
}

// TestClockDrift: what was measured long ago says less, and in the end nothing.
func TestClockDrift(t *testing.T) {
	l := newLab()
	l.measure("a", 0, 0, 0)
	_, before, _ := l.now()
	l.pass(10 * time.Minute)
	if _, wrong, _ := l.now(); wrong-before < 290*time.Millisecond {
		t.Errorf("after ten minutes it may be %v off", wrong)
	}
	l.measure("a", 300*time.Millisecond, 0, 0) // as far as crystals drift
	l.wantTime(t, 300*time.Millisecond)
	if len(l.samples) != 1 {
		t.Errorf("%d measurements count", len(l.samples))
	}
}

// TestClockForgets has what makes earlier measurements void. Until the next one no lease is granted, and the time goes on
// as it was.
func TestClockForgets(t *testing.T) {
	topology := func(primary string) event.TopologyDescription {
		return event.TopologyDescription{Servers: []event.ServerDescription{{Addr: address.Address(primary), Kind: "RSPrimary"}}}
	}
	for name, happen := range map[string]func(*lab){
		"wall clock set forward": func(l *lab) { l.wall += 5 * time.Minute },
		"wall clock set back":    func(l *lab) { l.wall -= 5 * time.Minute },
		"suspended":              func(l *lab) { l.wall += time.Second },
		"another primary": func(l *lab) {
			l.topology(&event.TopologyDescriptionChangedEvent{PreviousDescription: topology("a:1"), NewDescription: topology("b:1")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab()
			l.measure("a", time.Hour, 0, 0)
			happen(l)
			now, _, known := l.now()
			if known || now.Sub(l.start.Add(l.mono+time.Hour)).Abs() > time.Millisecond {
				t.Errorf("known: %t, %v", known, now)
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := l.wait(gone); !errors.Is(err, job.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("waited: %v", err)
			}
			select {
			case <-l.stale:
			default:
				t.Error("nobody is told to measure it anew")
			}
			waited := make(chan error, 1)
			go func() { waited <- l.wait(context.Background()) }()
			l.measure("a", 2*time.Hour, 0, 0)
			testenv.OK(t, <-waited)
			l.wantTime(t, 2*time.Hour)
		})
	}
	l := newLab()
	l.measure("a", 0, 0, 0)
	l.topology(&event.TopologyDescriptionChangedEvent{PreviousDescription: topology("a:1"), NewDescription: topology("a:1")})
	l.topology(&event.TopologyDescriptionChangedEvent{PreviousDescription: topology("a:1")})
	l.wantTime(t, 0) // the same primary, and none
}

// TestClockFailover: measurements of two primaries, 5 s apart either way, are never mixed, whether the new one is known by
// its name or by its time alone.
func TestClockFailover(t *testing.T) {
	for _, ahead := range []time.Duration{5 * time.Second, -5 * time.Second, time.Hour} {
		for _, server := range []string{"a", "b"} {
			l := newLab()
			for range 3 {
				l.measure("a", 0, time.Millisecond, time.Millisecond)
			}
			l.measure(server, ahead, time.Millisecond, time.Second)
			l.wantTime(t, ahead)
		}
	}
}

// TestClocksApart: two instances, each as far off as it may be, one of whose clocks is 200 ms ahead. Nobody takes over
// what the other holds, and nobody measures the other's leases anew.
func TestClocksApart(t *testing.T) {
	stores := map[string]*Store{}
	for name, ahead := range map[string]time.Duration{"slow": 0, "fast": 200 * time.Millisecond} {
		l := newLab()
		l.measure("a", ahead, 40*time.Millisecond, 0)
		stores[name] = &Store{clock: l.clock, opts: Options{MaxClockSkew: DefaultMaxClockSkew}}
	}
	for a, b := range map[string]string{"slow": "fast", "fast": "slow"} {
		granter, other := stores[a], stores[b]
		w := job.Work{State: job.StateQueued}.Claim(job.Grant{Token: "t", Duration: time.Second}, granter.now())
		if _, anchored := w.Anchor(other.allowance(), other.now()); anchored {
			t.Errorf("%s measures a lease of %s anew", b, a)
		}
		told := w.Lease(granter.latest()).Remaining
		if told > time.Second-19*time.Millisecond {
			t.Errorf("%s tells that %v are left, and may be %v off", a, told, 20*time.Millisecond)
		}
		l := other.clock
		mono := l.mono
		for past, free := range map[time.Duration]bool{told: false, time.Second + 200*time.Millisecond: false, 3 * time.Second: true} {
			l.mono = func() time.Duration { return mono() + past }
			l.wall = func() time.Time { return l.start.Add(l.mono()) }
			if other.free(&w) != free {
				t.Errorf("%v after %s granted a lease of a second, %s may take it: %t", past, a, b, !free)
			}
		}
		l.mono = mono
	}
}

// TestOperatorsClocksApart: what runs by one instance's clock is not taken away without force by another's, and a job is not
// deleted whose generation the next job of its id could get once more.
func TestOperatorsClocksApart(t *testing.T) {
	lab := newLab()
	lab.measure("a", 0, 0, 0)
	s := &Store{clock: lab.clock, opts: Options{MaxClockSkew: DefaultMaxClockSkew}}
	now, seen := s.now(), job.Millis(s.now().Add(-time.Hour))
	for name, c := range map[string]struct {
		granted, due time.Duration // before now
		state        job.WorkState
		requeue, del bool
	}{
		"lapsed by this clock alone": {time.Hour, 500 * time.Millisecond, job.StateLeased, false, false},
		"lapsed by every clock":      {time.Hour, 1500 * time.Millisecond, job.StateLeased, true, true},
		"granted just now":           {500 * time.Millisecond, 0, job.StateCompleted, true, false},
		"granted a while ago":        {1500 * time.Millisecond, 0, job.StateCompleted, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := job.Record{JobID: "j", FirstSeen: seen, Work: job.Work{State: c.state, Generation: now.Add(-c.granted).UnixMilli()}}
			if c.state == job.StateLeased {
				r.Work.Token, r.Work.Due, r.Work.Granted = "t", job.Millis(now.Add(-c.due)), time.Minute
			}
			next, err := s.requeued(&r, &job.Requeue{Expected: job.ExpectedOf(&r)})
			if (err == nil) != c.requeue || err == nil && !next.Due.Equal(job.Millis(s.now())) {
				t.Errorf("requeued: %+v, %v", next, err)
			}
			if _, gone, err := s.deletion(&r, &job.Deletion{Expected: job.ExpectedOf(&r)}); gone != c.del || (err == nil) != c.del {
				t.Errorf("deleted: %t, %v", gone, err)
			}
			erased, _, err := s.deletion(&r, &job.Deletion{Expected: job.ExpectedOf(&r), Kind: job.ErasePayload, Force: true})
			if err != nil || !erased.BodyDropped.Equal(job.Millis(s.now())) {
				t.Errorf("erased: %v, %v", erased.BodyDropped, err)
			}
		})
	}
}

// TestClockAnsweredByTheFormer: what a server answers to a question from before another one became primary says nothing.
func TestClockAnsweredByTheFormer(t *testing.T) {
	l := newLab()
	l.measure("a", 0, 0, 0)
	sent, apart := l.begin()
	l.pass(time.Millisecond)
	l.forget()
	l.pass(time.Millisecond)
	l.add(sent, apart, l.start.Add(l.mono), "a")
	if now, wrong, known := l.now(); known {
		t.Errorf("the clock is known, by the former primary: %v, %v", now, wrong)
	}
	l.measure("b", 5*time.Second, 0, 0)
	l.wantTime(t, 5*time.Second)
}
