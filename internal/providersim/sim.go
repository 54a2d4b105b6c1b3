package providersim

import (
	"bytes"
	"cmp"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"
)

// URL is where the endpoint is, as the sender knows it.
const URL = "https://frontend.example/hook"

// Start is when a simulation starts.
var Start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// Scenario is what happens around the deliveries. Times are counted from [Start].
type Scenario struct {
	Name string
	// Events happen Every so often, from the start.
	Events int
	Every  time.Duration
	// Away says when the frontend takes no connections.
	Away func(time.Duration) bool
	// Lost says when an answer does not reach the sender.
	Lost func(time.Duration) bool
	// Copies is how often each event is delivered though it was answered well. 0: once.
	Copies int
	// Over is when the operator has mended what was wrong: a subscription that was removed before is made again then.
	Over time.Duration
}

// Sim delivers a scenario's events as a provider does.
type Sim struct {
	Provider *Provider
	Scenario Scenario
	// Answered hears of each answer that the sender got, or did not get (0).
	Answered func(e Event, at time.Duration, status int)

	now      time.Duration
	removed  bool
	failing  time.Duration // since when
	inARow   int           // how many attempts have failed since the last success
	attempts []*delivery   // by time
	serial   int
}

type delivery struct {
	event  Event
	at     time.Duration
	number int
	copies int
	serial int
}

// Now is the time of the simulation.
func (s *Sim) Now() time.Time { return Start.Add(s.now) }

// Elapsed is the time since its start.
func (s *Sim) Elapsed() time.Duration { return s.now }

// Run delivers everything to h, and returns how many times a subscription was removed or an endpoint disabled.
func (s *Sim) Run(h http.Handler) (removals int) {
	for n := range s.Scenario.Events {
		s.add(&delivery{event: s.Provider.Event(n), at: time.Duration(n) * s.Scenario.Every, copies: max(1, s.Scenario.Copies)})
	}
	for len(s.attempts) > 0 {
		d := s.attempts[0]
		s.attempts = s.attempts[1:]
		s.now = d.at
		if s.removed && d.at >= s.Scenario.Over {
			s.removed, s.inARow = false, 0
		}
		if s.removed {
			continue
		}
		status := s.deliver(h, d)
		if s.Answered != nil {
			s.Answered(d.event, s.now, status)
		}
		if s.disabled(status) {
			s.removed = true
			removals++
			continue
		}
		switch {
		case s.Provider.ok(status):
			if d.copies--; d.copies > 0 {
				s.add(&delivery{event: d.event, at: d.at + time.Second, copies: d.copies})
			}
		case d.number < len(s.Provider.Gaps) && s.Provider.again(status):
			s.add(&delivery{event: d.event, at: d.at + s.Provider.Gaps[d.number], number: d.number + 1, copies: d.copies})
		case d.number > 0 && s.Provider.RemovedByExhaustion:
			s.removed = true
			removals++
		}
	}
	return removals
}

// disabled says whether the endpoint is disabled after one more answer.
func (s *Sim) disabled(status int) bool {
	if s.Provider.ok(status) {
		s.inARow = 0
		return false
	}
	if s.inARow++; s.inARow == 1 {
		s.failing = s.now
	}
	rule := s.Provider.DisabledAfter
	return rule > 0 && s.now-s.failing >= rule && s.inARow >= s.Provider.DisabledInARow
}

func (s *Sim) add(d *delivery) {
	s.serial++
	d.serial = s.serial
	at, _ := slices.BinarySearchFunc(s.attempts, d, func(a, b *delivery) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.serial, b.serial))
	})
	s.attempts = slices.Insert(s.attempts, at, d)
}

// deliver makes one attempt and returns the status that the sender sees, 0 for none.
func (s *Sim) deliver(h http.Handler, d *delivery) int {
	if s.Scenario.Away != nil && s.Scenario.Away(s.now) {
		return 0
	}
	a := &Attempt{Event: d.event, URL: URL, Secret: s.Provider.Secret, At: s.Now(), Number: d.number}
	r := httptest.NewRequest(http.MethodPost, URL, bytes.NewReader(d.event.Body))
	for name, values := range d.event.Header {
		r.Header[name] = values
	}
	for name, values := range s.Provider.Sign(a) {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if s.Scenario.Lost != nil && s.Scenario.Lost(s.now) {
		return 0
	}
	return w.Code
}
