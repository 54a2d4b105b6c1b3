package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/jobonce/jobonce/internal/job"
)

// DefaultMaxClockSkew is how far apart the clocks of the members of a replica set, or of several mongos, are assumed to be
// at most.
const DefaultMaxClockSkew = time.Second

const (
	// sampleEvery is how often the clock is measured, sampleSoon how often while nothing is known, or not well enough.
	sampleEvery = 10 * time.Second
	sampleSoon  = 100 * time.Millisecond
	// wide is an error of the clock that is worth another measurement at once: the first one opens a connection.
	wide = 20 * time.Millisecond
	// sampleAge is how long a measurement counts. Meanwhile it is widened by maxDrift, in millionths of its age: crystals
	// are within 100.
	sampleAge = 5 * time.Minute
	maxDrift  = 500
	// suspended is by how much this machine's two clocks may drift apart between two measurements. More means that it was
	// suspended, or that its clock was set, and in the first case its monotonic clock stood still.
	suspended = 200 * time.Millisecond
	// maxOffset is the difference of clocks that is worth a warning.
	maxOffset = time.Second
)

// clock is the database's clock as this process knows it: its own monotonic clock, and by how much the database's is
// ahead. Each measurement bounds that from both sides, and so the bounds of several narrow it down. Leases are granted by
// no other clock, and by this one only while it is known.
type clock struct {
	// mono is the time since start on the monotonic clock, wall what this machine takes for the time. Tests replace them.
	mono  func() time.Duration
	wall  func() time.Time
	start time.Time // wall, when mono was 0
	// fixed replaces all that is measured; nil unless Options.Now is set.
	fixed func() time.Time

	mu      sync.Mutex
	samples []sample
	// server is who was measured: another one has another clock.
	server string
	// apart is wall less mono at the latest measurement.
	apart time.Duration
	// offset is the last one that was known; until it is measured anew only what grants no lease goes by it.
	offset time.Duration
	// forgot is when another server became the one that answers: what was asked before says nothing.
	forgot time.Duration
	// known is closed while samples are there.
	known chan struct{}
	// stale is sent to when the clock is to be measured at once.
	stale chan struct{}
}

// sample bounds the offset of the database's clock from start plus mono.
type sample struct {
	at, low, high time.Duration
}

func newClock(fixed func() time.Time) *clock {
	start := time.Now()
	return &clock{
		fixed: fixed,
		mono:  func() time.Duration { return time.Since(start) }, wall: time.Now, start: start.Round(0),
		known: make(chan struct{}), stale: make(chan struct{}, 1),
	}
}

// begin is the moment before a server is asked for its time.
func (c *clock) begin() (sent, apart time.Duration) { return c.mono(), c.wallApart() }

// add takes a measurement in: since it began a server has answered with its time, in whole milliseconds. One of another
// server, or one that does not go with the earlier ones, makes those void; one during which this machine was suspended, or
// another member became primary, counts for nothing.
func (c *clock) add(sent, apart time.Duration, answered time.Time, server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkWall()
	received, ahead := c.mono(), answered.Sub(c.start)
	if sent < c.forgot || (c.wallApart()-apart).Abs() > suspended {
		return
	}
	s := sample{at: received, low: ahead - received, high: ahead + time.Millisecond - sent}
	if low, high, ok := c.bounds(received); server != c.server || ok && (s.low > high || s.high < low) {
		c.void()
	}
	c.server, c.apart = server, c.wallApart()
	if len(c.samples) == 0 {
		close(c.known)
	}
	kept := c.samples[:0]
	for _, old := range c.samples {
		if received-old.at < sampleAge {
			kept = append(kept, old)
		}
	}
	c.samples = append(kept, s)
}

// forget makes what was measured void, because another server may answer from now on.
func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgot = c.mono()
	c.void()
	c.measure()
}

func (c *clock) void() {
	if len(c.samples) == 0 {
		return
	}
	low, high, _ := c.bounds(c.mono())
	c.offset = low + (high-low)/2
	c.samples, c.known = nil, make(chan struct{})
	c.measure()
}

// measure has the clock measured at once.
func (c *clock) measure() {
	select {
	case c.stale <- struct{}{}:
	default:
	}
}

// checkWall makes what was measured void after a suspension.
func (c *clock) checkWall() {
	if len(c.samples) > 0 && (c.wallApart()-c.apart).Abs() > suspended {
		c.void()
	}
}

func (c *clock) wallApart() time.Duration { return c.wall().Round(0).Sub(c.start) - c.mono() }

// bounds are those of the offset now.
func (c *clock) bounds(now time.Duration) (low, high time.Duration, ok bool) {
	for i, s := range c.samples {
		widened := (now - s.at) * maxDrift / 1_000_000
		l, h := s.low-widened, s.high+widened
		if i == 0 {
			low, high = l, h
		}
		low, high = max(low, l), min(high, h)
	}
	return low, high, len(c.samples) > 0
}

// now is the database's time and how much it may be wrong by. known tells whether leases may be granted by it.
func (c *clock) now() (_ time.Time, wrong time.Duration, known bool) {
	if c.fixed != nil {
		return c.fixed(), 0, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkWall()
	mono := c.mono()
	low, high, known := c.bounds(mono)
	if !known {
		return c.start.Add(mono + c.offset), 0, false
	}
	return c.start.Add(mono + low + (high-low)/2), (high - low) / 2, true
}

// wait waits until the clock is known. The error matches job.ErrUnavailable, and the context's.
func (c *clock) wait(ctx context.Context) error {
	if c.fixed != nil {
		return nil
	}
	for {
		c.mu.Lock()
		c.checkWall()
		known, ok := c.known, len(c.samples) > 0
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-known:
		case <-ctx.Done():
			return fmt.Errorf("%w: the database's clock is not known: %w", job.ErrUnavailable, ctx.Err())
		}
	}
}

// topology makes what was measured void when another member becomes primary.
func (c *clock) topology(e *event.TopologyDescriptionChangedEvent) {
	if before, now := primaryOf(e.PreviousDescription), primaryOf(e.NewDescription); now != "" && now != before {
		c.forget()
	}
}

func primaryOf(t event.TopologyDescription) string {
	for _, server := range t.Servers {
		if server.Kind == "RSPrimary" {
			return server.Addr.String()
		}
	}
	return ""
}

// time is the database's time, as nearly as it is known. Leases may be granted by it only when it is known.
func (s *Store) time() (now time.Time, known bool) {
	now, _, known = s.clock.now()
	return now, known
}

// now is the time for what grants no lease.
func (s *Store) now() time.Time {
	now, _ := s.time()
	return now
}

// told is work as its holder and others are told of it: what a clock that was ahead has set will be measured anew, so nobody
// may count on more than that leaves.
func (s *Store) told(w job.Work) job.Work {
	if w.Due.IsZero() {
		return w // as most is, and the clock has a lock
	}
	w, _ = w.Anchor(s.allowance(), s.now())
	return w
}

// errNoClock: a lease cannot be granted yet.
var errNoClock = errors.New("the database's clock is not known")

// latest is the latest that the database's time may be: what is told of the time that a lease has left.
func (s *Store) latest() time.Time {
	now, wrong, _ := s.clock.now()
	return now.Add(wrong)
}

// lapsed is the time up to which a lease must have been due to be taken over: earlier than now by what our clock may be
// wrong by, and by what other members' clocks may be apart from the one that was measured.
func (s *Store) lapsed() time.Time {
	now, wrong, _ := s.clock.now()
	return now.Add(-wrong - s.opts.MaxClockSkew)
}

// free tells whether work may be claimed.
func (s *Store) free(w *job.Work) bool {
	if w.State == job.StateLeased {
		return w.Free(s.lapsed())
	}
	return w.Free(s.now())
}

// allowance is how much further ahead than granted a due time may lie when all clocks are as assumed.
func (s *Store) allowance() time.Duration {
	_, wrong, _ := s.clock.now()
	return 2*wrong + s.opts.MaxClockSkew
}

// timed waits until leases may be granted.
func (s *Store) timed(ctx context.Context) error { return s.clock.wait(ctx) }

// ClockOffset is how far the database's clock is ahead of this machine's, as measured last.
func (s *Store) ClockOffset() time.Duration {
	now, _, _ := s.clock.now()
	return now.Sub(s.clock.wall().Round(0))
}

// hello learns what the database is and measures its clock.
func (s *Store) hello(ctx context.Context) error {
	var reply struct {
		LocalTime time.Time     `bson:"localTime"`
		SetName   string        `bson:"setName"`
		Msg       string        `bson:"msg"`
		Session   *int64        `bson:"logicalSessionTimeoutMinutes"`
		Me        string        `bson:"me"`
		Election  bson.ObjectID `bson:"electionId"`
		Version   struct {
			Process bson.ObjectID `bson:"processId"`
		} `bson:"topologyVersion"`
	}
	sent, apart := s.clock.begin()
	if err := s.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&reply); err != nil {
		return err
	}
	if reply.LocalTime.IsZero() {
		return errors.New("the database does not tell its time (hello has no localTime), so no lease can be granted")
	}
	s.clock.add(sent, apart, reply.LocalTime, fmt.Sprint(reply.Me, reply.Election, reply.Version.Process))
	t := deployment{kind: standalone}
	switch {
	case reply.Msg == "isdbgrid":
		t.kind = sharded
	case reply.SetName != "":
		t.kind = replicaSet
	}
	t.sessions = t.kind != standalone && reply.Session != nil
	s.deployment.Store(&t)
	return nil
}

// keepTime measures the clock now and then, and at once when it is not known.
func (s *Store) keepTime(ctx context.Context) {
	warned := time.Duration(0)
	for n := 1; ; n++ {
		measuring, cancel := context.WithTimeout(ctx, prepareTimeout)
		err := s.hello(measuring)
		cancel()
		_, wrong, known := s.clock.now()
		pause := sampleEvery
		switch {
		case err != nil:
			pause = 5 * sampleSoon
		case !known || wrong > wide && n%4 != 0: // a few more, where the way to the database is not simply long
			pause = sampleSoon
		}
		if offset := s.ClockOffset(); known && offset.Abs() > maxOffset && (offset-warned).Abs() > maxOffset {
			warned = offset
			s.log.Warn("this machine's clock differs from the database's; leases are kept by the database's", "offset", offset)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.stale:
		case <-time.After(pause):
		}
	}
}
