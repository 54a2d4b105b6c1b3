package job

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The bounds of a list: how many jobs are on a page, and how many are looked at for each of them.
const (
	DefaultPageSize = 50
	MaxPageSize     = 500
	ExaminedPerJob  = 20

	// MaxCount is how far jobs are counted, MaxCountExamined how many are looked at where no index knows the number.
	MaxCount         = 10_000
	MaxCountExamined = 20 * MaxCount
)

// Order is the order of a list.
type Order uint8

// The orders. In those by time, jobs of one millisecond are in the order of their ids, and records of others without a time
// are left out.
const (
	NewestFirst Order = iota
	OldestFirst
	ByID
)

// Filter says which jobs: those that meet all that is set.
type Filter struct {
	// State is StateUnknown for any.
	State WorkState
	// SeenFrom and SeenBefore bound when the job was first seen, in whole milliseconds; zero for no bound.
	SeenFrom, SeenBefore time.Time
	// Conflicts wants jobs that are in conflict.
	Conflicts bool
	// Prefix is what the id begins with.
	Prefix string
}

// Matches tells whether the filter finds the job.
func (f *Filter) Matches(r *Record) bool {
	return (f.State == StateUnknown || r.Work.State == f.State) &&
		(f.SeenFrom.IsZero() || !r.FirstSeen.Before(f.SeenFrom)) && (f.SeenBefore.IsZero() || r.FirstSeen.Before(f.SeenBefore)) &&
		(!f.Conflicts || r.Conflicts > 0) && strings.HasPrefix(r.JobID, f.Prefix)
}

// ListQuery asks for a page of jobs.
type ListQuery struct {
	Filter
	Order Order
	Size  int
	// After is where the page before ended; the zero value for the first page.
	After Place
}

// Place is a job's place in a list. By id, Seen is not used.
type Place struct {
	// Seen is when the job was first seen, in milliseconds since 1970.
	Seen  int64
	JobID string
}

// String is the place as [ParsePlace] reads it; empty for the zero value.
func (p Place) String() string {
	if p == (Place{}) {
		return ""
	}
	return strconv.FormatInt(p.Seen, 10) + "." + p.JobID
}

// ParsePlace reads a place. ok is false when the text is none.
func ParsePlace(text string) (p Place, ok bool) {
	if text == "" {
		return p, true
	}
	seen, id, found := strings.Cut(text, ".")
	n, err := strconv.ParseInt(seen, 10, 64)
	if !found || err != nil {
		return p, false
	}
	return Place{n, id}, true
}

// PlaceOf is the job's place.
func PlaceOf(r *Record) Place { return Place{r.FirstSeen.UnixMilli(), r.JobID} }

// Page is a part of a list.
type Page struct {
	// Jobs are without bodies and results.
	Jobs []Record
	// Next is where the next page goes on; the zero value when there is no more.
	Next Place
	// Examined is how many jobs were looked at.
	Examined int
}

// Pager makes a page of the jobs that a store reads, in the list's order from behind [ListQuery.After] on.
type Pager struct {
	query *ListQuery
	page  Page
	last  Place
}

// NewPager begins a page.
func NewPager(q *ListQuery) *Pager { return &Pager{query: q} }

// Limit is how many jobs the store need read at most.
func (p *Pager) Limit() int { return p.query.Size*ExaminedPerJob + 1 }

// Room tells whether the next job may be looked at. If not, the page has an end, and there is more.
func (p *Pager) Room() bool {
	room := len(p.page.Jobs) < p.query.Size && p.page.Examined < p.query.Size*ExaminedPerJob
	if !room {
		p.page.Next = p.query.beyond(p.last)
	}
	return room
}

// beyond is the place to go on from behind a job. A list by time looks also at jobs that the prefix is not of: the place tells
// none of their ids, since whoever asks may have no business with them.
func (q *ListQuery) beyond(last Place) Place {
	switch {
	case q.Order != NewestFirst || strings.HasPrefix(last.JobID, q.Prefix):
	case last.JobID > q.Prefix: // those of the same millisecond that the prefix is of are still to come
		last.JobID = Behind(q.Prefix)
	default: // they have been
		last.JobID = ""
	}
	return last
}

// Add looks at the job at the place; nil for one that cannot be read. One whose id cannot be told is no place to go on from, as
// long as there is another.
func (p *Pager) Add(at Place, r *Record) {
	p.page.Examined++
	if at.JobID != "" || p.last == (Place{}) && p.query.Order != ByID {
		p.last = at
	}
	if r != nil && p.query.Matches(r) {
		p.page.Jobs = append(p.page.Jobs, *r)
	}
}

// Page is the page.
func (p *Pager) Page() Page { return p.page }

// Count is how many there are.
type Count struct {
	N int64
	// More is true when there are more, or may be.
	More bool
}

// CountOf is the count of which no more than one above MaxCount was counted.
func CountOf(n int64) Count { return Count{min(n, MaxCount), n > MaxCount} }

// Counts are how many jobs there are.
type Counts struct {
	// States has every known state.
	States    map[WorkState]Count
	Conflicts Count
}

// CountsOf are the counts of jobs that were looked at one by one: so many in each state, and so many in conflict. When
// MaxCountExamined were looked at, there may be more of each.
func CountsOf(states map[WorkState]int64, conflicts int64) Counts {
	examined := int64(0)
	for _, n := range states {
		examined += n
	}
	count := func(n int64) Count {
		c := CountOf(n)
		c.More = c.More || examined >= MaxCountExamined
		return c
	}
	c := Counts{States: make(map[WorkState]Count), Conflicts: count(conflicts)}
	for _, state := range EveryState {
		c.States[state] = count(states[state])
	}
	return c
}

// TrackedStates are the states of work that is followed.
var TrackedStates = []WorkState{StateQueued, StateLeased, StateCompleted, StateDead}

// EveryState is the states that this version knows.
var EveryState = append([]WorkState{StateUntracked}, TrackedStates...)

// Behind is the first text behind all that begin with the prefix, which is not empty; "" when there is none.
func Behind(prefix string) string {
	for prefix != "" {
		r, n := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-n]
		if r == 0xd7ff { // before the surrogates, which no text has
			return prefix + "\ue000"
		}
		if r < utf8.MaxRune {
			return prefix + string(r+1)
		}
	}
	return ""
}
