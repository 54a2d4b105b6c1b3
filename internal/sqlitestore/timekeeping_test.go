package sqlitestore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// machine is a machine's clocks, and a store that goes by them.
type machine struct {
	*sqlitestore.Store
	dir string
	log bytes.Buffer

	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir(), wall: time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)}
	m.start(t)
	return m
}

func (m *machine) read() (time.Time, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wall, m.mono
}

// start opens the store, as a new process does.
func (m *machine) start(t *testing.T) {
	t.Helper()
	opts := sqlitestore.Options{Logger: slog.New(slog.NewTextHandler(&m.log, nil))}.WithClock(m.read)
	s, err := sqlitestore.Open(t.Context(), m.dir, opts)
	testenv.Must(t, err)
	m.Store = s
	t.Cleanup(func() { m.end(t) })
}

func (m *machine) end(t *testing.T) {
	t.Helper()
	testenv.OK(t, m.Close())
}

// set sets the wall clock, and lets the store see it.
func (m *machine) set(by time.Duration) {
	m.mu.Lock()
	m.wall = m.wall.Add(by)
	m.mu.Unlock()
	m.Tend(1)
}

// pass lets time pass, with a look at the clock each second.
func (m *machine) pass(d time.Duration) {
	for ; d > 0; d -= time.Second {
		m.mu.Lock()
		m.wall, m.mono = m.wall.Add(time.Second), m.mono+time.Second
		m.mu.Unlock()
		m.Tend(1)
	}
}

// claims tells whether somebody else now gets the lease on the job, for a minute.
func (m *machine) claims(t *testing.T, id string) bool {
	t.Helper()
	o := m.Record(t.Context(), []job.Delivery{delivery(t, id, "e", false)})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	return o.Verdict.StartWork
}

// wantLeaseFor wants a lease that was just granted for a minute to run a minute from now, and not much longer.
func (m *machine) wantLeaseFor(t *testing.T, id string, atMost time.Duration) {
	t.Helper()
	for passed := time.Duration(0); ; passed += time.Second {
		switch claimed := m.claims(t, id); {
		case claimed && passed < time.Minute:
			t.Fatalf("%s: a second lease %v after the first was granted for a minute", id, passed)
		case claimed:
			return
		case passed > atMost:
			t.Fatalf("%s: no other lease after %v", id, passed)
		}
		m.pass(time.Second)
	}
}

// TestClockIsSetUnderALease sets the wall clock while the holder is alive: nobody gets a second lease before the first ends,
// and it ends soon after that.
func TestClockIsSetUnderALease(t *testing.T) {
	for name, set := range map[string]time.Duration{
		"back an hour": -time.Hour, "forward an hour": time.Hour, "forward six years": 6 * 365 * 24 * time.Hour,
		"back a little": -300 * time.Millisecond, "forward a little": 15 * time.Millisecond, "forward by more": 300 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if !m.claims(t, "j") {
				t.Fatal("not first")
			}
			m.set(set)
			m.wantLeaseFor(t, "j", 68*time.Second)
			if !m.claims(t, "later") {
				t.Fatal("not first")
			}
			m.wantLeaseFor(t, "later", 68*time.Second)
		})
	}
}

// TestClockIsSetForward: after a jump the store goes by the new time, in the same process and in the next; neither a lease
// nor a delay is over early.
func TestClockIsSetForward(t *testing.T) {
	m := newMachine(t)
	lease := m.Record(t.Context(), []job.Delivery{delivery(t, "delayed", "e", false)})[0].Lease
	testenv.Must(t, job.GiveBack(t.Context(), m, "delayed", lease.Token, job.Release{Delay: time.Minute}))
	m.claims(t, "held")
	m.set(time.Hour)
	m.end(t)
	m.start(t)
	m.claims(t, "new")
	if r, err := m.Get(t.Context(), "new", false); err != nil || !r.FirstSeen.Equal(m.wall) {
		t.Errorf("after the jump it is %v for the store, %v; want %v", r.FirstSeen, err, m.wall)
	}
	for range 59 {
		if m.pass(time.Second); m.claims(t, "delayed") || m.claims(t, "held") {
			t.Fatal("a lease before its time")
		}
	}
	if m.pass(time.Second); !m.claims(t, "delayed") || !m.claims(t, "held") {
		t.Error("no lease when it was time")
	}
}

// TestLeaseOfAFastClock grants leases by a clock that is ahead, and starts again with the right one: the jobs are not
// blocked for longer than the leases were granted for.
func TestLeaseOfAFastClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"an hour": time.Hour, "six years": 6 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.set(ahead)
			m.end(t)
			m.start(t)
			m.claims(t, "leased")
			before, err := m.Get(t.Context(), "leased", false)
			testenv.Must(t, err)
			d, err := job.Input{JobID: "queued", Mode: job.ModeQueued}.Delivery(1 << 20)
			testenv.Must(t, errors.Join(err, m.Record(t.Context(), []job.Delivery{d})[0].Err))
			m.end(t)
			m.wall = m.wall.Add(-ahead)
			m.start(t)
			if !strings.Contains(m.log.String(), "behind the newest job") || !strings.Contains(m.log.String(), "run anew from now") {
				t.Errorf("logged %s", &m.log)
			}
			if !m.claims(t, "queued") {
				t.Error("queued work is not due")
			}
			m.wantLeaseFor(t, "leased", time.Minute)
			after, err := m.Get(t.Context(), "leased", false)
			if err != nil || after.Work.Generation <= before.Work.Generation {
				t.Errorf("the generation went from %d to %d, %v", before.Work.Generation, after.Work.Generation, err)
			}
		})
	}
}

// TestAnchorEveryMinute: what lies too far ahead is found while the store serves, however much there is of it and whatever
// else lies further ahead.
func TestAnchorEveryMinute(t *testing.T) {
	m := newMachine(t)
	for _, id := range []string{"a", "b", "c"} {
		m.claims(t, id)
	}
	execSQL(t, sqlitestore.File(m.dir), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
		INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen, last_seen, deliveries, body_kind,
			work_state, work_mode, work_due, work_granted) SELECT 'n' || i, '', '', x'', '', '', 1, 1, 1, 0, 'queued', 'leased', 9e12, 8.9e12 FROM n;
		UPDATE jobs SET work_due = work_due + 3600000 WHERE job_id IN ('a', 'b');
		UPDATE jobs SET work_granted = NULL, work_due = work_due + 3600000 WHERE job_id = 'c';
		UPDATE jobs SET work_granted = 1000 WHERE job_id IN (SELECT 'n' || i FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500) SELECT i FROM n))`)
	m.Tend(60)
	m.wantLeaseFor(t, "a", time.Minute)
	for _, id := range []string{"b", "n1", "n1500"} {
		if !m.claims(t, id) {
			t.Errorf("%s is still held", id)
		}
	}
	for _, id := range []string{"c", "n1501"} { // c may have been granted a day
		if m.claims(t, id) {
			t.Errorf("%s is not held any more", id)
		}
	}
}

// TestToldLessThanTheClockMayGain: while the clock catches up, the time that the holder was told is over before the lease is.
func TestToldLessThanTheClockMayGain(t *testing.T) {
	m := newMachine(t)
	m.set(19 * time.Millisecond)
	o := m.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", false)})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	m.mu.Lock()
	m.mono += o.Lease.Remaining // and the wall clock stays ahead
	m.wall = m.wall.Add(o.Lease.Remaining)
	m.mu.Unlock()
	if m.claims(t, "j") {
		t.Errorf("the lease was told to run for %v, and was over by then", o.Lease.Remaining)
	}
	if o.Lease.Remaining < 59*time.Second {
		t.Errorf("the lease of a minute was told to run for %v", o.Lease.Remaining)
	}
}

// TestRestartUnderALease restarts the service after the machine's clock was set by a little: no lease ends before its holder
// was told.
func TestRestartUnderALease(t *testing.T) {
	for _, by := range []time.Duration{-900 * time.Millisecond, 19 * time.Millisecond, 900 * time.Millisecond, time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			m := newMachine(t)
			o := m.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", false)})[0]
			if o.Err != nil || o.Lease == nil {
				t.Fatalf("%+v", o)
			}
			m.set(by)
			m.end(t)
			m.start(t)
			m.mu.Lock()
			m.wall, m.mono = m.wall.Add(o.Lease.Remaining-time.Millisecond), m.mono+o.Lease.Remaining-time.Millisecond
			m.mu.Unlock()
			if m.claims(t, "j") {
				t.Errorf("a second lease within the %v that the first holder was told", o.Lease.Remaining)
			}
		})
	}
}

// TestToldNoMoreThanGranted: a lease that lies further ahead than granted, and is not measured anew yet, is told as it will be.
func TestToldNoMoreThanGranted(t *testing.T) {
	m := newMachine(t)
	o := m.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", false)})[0]
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	execSQL(t, sqlitestore.File(m.dir), "UPDATE jobs SET work_due = work_due + 3600000") // as when the start could not write
	told, err := job.Renew(t.Context(), m, "j", o.Lease.Token, time.Minute)
	testenv.Must(t, err)
	m.Tend(60)
	kept, err := m.Get(t.Context(), "j", false)
	testenv.Must(t, err)
	if left := kept.Work.Due.Sub(m.wall); told.Remaining > left {
		t.Errorf("the holder was told %v, and %v are kept", told.Remaining, left)
	}
}

// TestGenerationGrowsBeyondDeletion: a job that is deleted and recorded anew gets a higher generation, also when the clock was
// set back before a restart, whoever deleted it.
func TestGenerationGrowsBeyondDeletion(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, m *machine){
		"by an operator": func(t *testing.T, m *machine) {
			r, err := m.Get(t.Context(), "j", false)
			testenv.Must(t, err)
			o := m.Delete(t.Context(), []job.Deletion{{Expected: job.ExpectedOf(&r), Kind: job.DeleteJob, Force: true}})[0]
			if testenv.OK(t, o.Err); !o.Deleted {
				t.Fatal("not deleted")
			}
			m.end(t)
		},
		"by hand": func(t *testing.T, m *machine) {
			m.end(t)
			execSQL(t, m.dir+"/jobonce.db", "DELETE FROM jobs")
		},
	} {
		for mode, first := range map[job.WorkMode]bool{job.ModeLeased: true, job.ModeQueued: false} {
			t.Run(name+", "+mode.String(), func(t *testing.T) {
				m := newMachine(t)
				record := func(mode job.WorkMode) int64 {
					t.Helper()
					d := delivery(t, "j", "e", false)
					d.Mode = mode
					o := m.Record(t.Context(), []job.Delivery{d})[0]
					testenv.OK(t, o.Err)
					return o.Record.Work.Generation
				}
				before := record(job.ModeLeased)
				m.pass(2 * time.Second)
				remove(t, m)
				m.set(-time.Hour)
				m.start(t)
				after := record(mode)
				if !first {
					after = record(job.ModeLeased) // claims it
				}
				if after <= before {
					t.Errorf("generation %d after the deletion, %d before", after, before)
				}
			})
		}
	}
}
