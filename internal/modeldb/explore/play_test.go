package explore_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/storetest"
)

// play is a run of a scenario as far as it has come: all that what happens next depends on, and what is judged in the end. It is played by
// the stores of a world, or on a copy of the database without any: what the stores do was seen before then.
type play struct {
	*scenario
	kind  modeldb.Deployment
	db    *modeldb.Server
	world *world // whose stores play; nil on a copy

	clock  time.Time
	clocks []time.Time // of each store: the same, unless it is ahead
	// seen is for each store the digest of all that it has seen, from which follows all that it does next. Its random
	// numbers are made of it too.
	seen [][32]byte
	nows [][]time.Time // what the clock of each store has said
	progress
	notes  *note
	place  *place
	faults int
	worn   bool // the unique index is not what it was any more
}

// progress is how far the callers have come.
type progress struct {
	ended []int // calls of each caller
	// order tells of each call what had ended when it began.
	order      []string
	left, over []bool
	lapses     int
	waited     bool
}

// step is that a caller begins or ends a call, or is over.
type step struct {
	caller int // that of what comes before a run is -1
	kind   byte
	// Of an end: the call, what it said, and what is wrong with that.
	call, said, problem string
	// Of the end of a call on a job, that the model knows.
	jobID  string
	op     storetest.Op
	answer storetest.Answer
	// hears is set for a call about a webhook that is to come. keeps is the URL of an expectation that is to be there in the end.
	hears bool
	keeps string
}

const (
	begins = 'b'
	ends   = 'e'
	isOver = 'o'
)

// note is a step that was taken, and what its store's clock had said by then.
type note struct {
	step
	nows   []time.Time
	before *note
}

// place is how a state was come to: by something that happened in an earlier one. It takes less memory than a schedule.
type place struct {
	before *place
	by     string
}

func (p *place) schedule() (s schedule) {
	for ; p != nil; p = p.before {
		s = append(s, p.by)
	}
	slices.Reverse(s)
	return s
}

// copy is the same play without the stores. What they share is not changed: who writes makes it anew.
func (p *play) copy() *play {
	c := *p
	c.db, c.world = p.db.Copy(), nil
	return &c
}

// with is a slice with another value at a place.
func with[T any](s []T, at int, value T) []T {
	s = slices.Clone(s)
	s[at] = value
	return s
}

func (p *play) storeOf(caller int) int { return max(caller, 0) % len(p.clocks) }

// active is how many callers are not over.
func (p *play) active() (n int) {
	for _, over := range p.over {
		if !over {
			n++
		}
	}
	return n
}

// take takes a step.
func (p *play) take(s step) {
	switch {
	case s.caller < 0:
	case s.kind == begins:
		p.order = with(p.order, s.caller, p.order[s.caller]+fmt.Sprint(p.ended))
	case s.kind == ends:
		p.ended = with(p.ended, s.caller, p.ended[s.caller]+1)
	case s.kind == isOver:
		p.over = with(p.over, s.caller, true)
	}
	p.notes = &note{s, p.nows[p.storeOf(s.caller)], p.notes}
}

// saw notes what a store has seen.
func (p *play) saw(store int, what ...any) {
	h := sha256.New()
	h.Write(p.seen[store][:])
	fmt.Fprint(h, what...)
	fmt.Fprint(h, len(p.nows[store]), p.clocks[store].UnixMilli())
	p.seen = with(p.seen, store, [32]byte(h.Sum(nil)))
	if p.world != nil {
		p.world.seed(store)
	}
}

// read notes what the clock of a store says.
func (p *play) read(store int) {
	p.nows = with(p.nows, store, append(slices.Clip(p.nows[store]), p.clocks[store]))
}

// move moves the clock of a store.
func (p *play) move(store int, by time.Duration) {
	p.clocks = with(p.clocks, store, p.clocks[store].Add(by))
	p.read(store)
}

// lapse moves the clocks past a lease, or by the next of the scenario's steps.
func (p *play) lapse() {
	by := past
	if p.lapses < len(p.moves) {
		by = p.moves[p.lapses]
	}
	p.lapses++
	p.clock = p.clock.Add(by)
	for i := range p.clocks {
		p.move(i, by)
	}
}

// leave is that a caller's context ends.
func (p *play) leave(caller int) {
	p.left = with(p.left, caller, true)
	if p.saw(p.storeOf(caller), "left", caller); p.world != nil {
		p.world.stage.callers[caller].leave()
	}
}

// goesOn is the store that goes on for callers which have left; -1 when none does, or more than one.
func (p *play) goesOn() (store int) {
	store = -1
	for caller := range p.left {
		if i := p.storeOf(caller); p.left[caller] && !p.over[caller] && i != store {
			if store >= 0 {
				return -1
			}
			store = i
		}
	}
	return store
}

// wait lets so much time pass that a store stops going on for callers which have left.
func (p *play) wait(store int) {
	p.waited = true
	if p.saw(store, "waited"); p.world != nil {
		time.Sleep(afterLeaving)
	}
}

// key stands for all that what happens next depends on, and what is judged in the end.
func (p *play) key() (key [32]byte) {
	h := sha256.New()
	h.Write(p.db.Digest())
	for _, s := range p.seen {
		h.Write(s[:])
	}
	for _, c := range p.db.Calls() { // those that are waited for follow from what the stores have seen
		if c.Gone {
			io.WriteString(h, nameOf(c))
		}
	}
	for _, nows := range p.nows {
		for _, now := range nows {
			fmt.Fprint(h, now.UnixMilli(), ",")
		}
		io.WriteString(h, ";")
	}
	fmt.Fprint(h, p.progress)
	h.Sum(key[:0])
	return key
}

// reaction is what follows when a store has seen something: what its callers do, the commands that come, and those of which it does not
// wait for the answer any more.
type reaction struct {
	steps []step
	calls []*modeldb.Call
	gone  []string
}

// and is a reaction that was seen twice, as it is known from both times; false when it was not the same.
func (r reaction) and(o reaction) (both reaction, same bool) {
	if !reflect.DeepEqual(r.steps, o.steps) || !slices.Equal(r.gone, o.gone) || len(r.calls) != len(o.calls) {
		return r, false
	}
	both = reaction{r.steps, slices.Clone(r.calls), r.gone}
	for i, c := range r.calls {
		if both.calls[i], same = c.And(o.calls[i]); !same {
			return r, false
		}
	}
	return both, true
}

// reactions tells what follows when a store has seen all that a digest stands for: always the same.
type reactions map[[32]byte]reaction

// changed is the store that has seen more than before; -1 when none has.
func (p *play) changed(before [][32]byte) int {
	for i, seen := range p.seen {
		if seen != before[i] {
			return i
		}
	}
	return -1
}

// cause is what a reaction depends on: what its store has seen and, where one caller can wait for another or all look at the indexes, what
// the others had.
func (p *play) cause(store int) [32]byte {
	if !p.hands && !p.indexes {
		return p.seen[store]
	}
	h := sha256.New()
	fmt.Fprint(h, store)
	for _, seen := range p.seen {
		h.Write(seen[:])
	}
	return [32]byte(h.Sum(nil))
}

// of is what follows when, of what the stores had seen before, one has seen more; false when that has not been met yet. Nothing
// follows where none has.
func (r reactions) of(p *play, before [][32]byte) (is reaction, known bool) {
	i := p.changed(before)
	if i < 0 {
		return is, true
	}
	is, known = r[p.cause(i)]
	return is, known
}

// otherwise is what a run panics with that goes another way than it did before. Where a store does two things at once, that may be for once:
// the random numbers are drawn in another order when the machine is busy.
type otherwise string

// learn notes what followed. Nothing follows elsewhere than in the store that has seen something, but where one caller can wait for another
// or all look at the indexes.
func (r reactions) learn(p *play, before [][32]byte, is reaction) {
	i := p.changed(before)
	if alone := !p.hands && !p.indexes; alone && (slices.ContainsFunc(is.steps, func(s step) bool { return p.storeOf(s.caller) != i }) ||
		slices.ContainsFunc(is.calls, func(c *modeldb.Call) bool { return c.Client != i })) {
		panic(fmt.Sprintf("%s: what follows from %v is elsewhere: %v", p.name, p.place.schedule(), is))
	}
	if was, known := r.of(p, before); known {
		both, same := is.and(was)
		if !same {
			panic(otherwise(fmt.Sprintf("%s: what follows from %v is %v, and was %v before", p.name, p.place.schedule(), is, was)))
		}
		is = both
	}
	if i >= 0 {
		r[p.cause(i)] = is
	}
}

// react takes the steps that follow. The stores see what callers of theirs do because of what another store has seen: one caller can wait
// for another.
func (p *play) react(before [][32]byte, is reaction) {
	for _, s := range is.steps {
		p.take(s)
	}
	for _, s := range is.steps {
		if i := p.storeOf(s.caller); p.seen[i] == before[i] {
			p.saw(i, s.caller, string(s.kind), s.call, s.said)
		}
	}
}

// after is the play once something more has happened, without the stores; false where it is not known what follows from that.
func (p *play) after(e happening, r reactions) (next *play, known bool) {
	next = p.copy()
	next.happened(e)
	e.do(next)
	is, known := r.of(next, p.seen)
	if !known || !next.db.Arrive(is.calls, func(c *modeldb.Call) bool { return slices.Contains(is.gone, nameOf(c)) }) {
		return nil, false
	}
	next.react(p.seen, is)
	return next, true
}

// happened notes what is happening.
func (p *play) happened(e happening) {
	p.place = &place{p.place, e.name}
	if e.fault {
		p.faults++
	}
	for i := range p.clocks { // a look at the indexes goes on by itself, so that nothing is the same after another order
		if p.indexes {
			p.saw(i, e.name)
		}
	}
}

// history is what a play has come to.
type history struct {
	calls    map[string][]storetest.Call // on each job
	earlier  map[string]int              // how many of them came before the run
	words    []word
	outcome  []string // of each call, in the order of the callers
	kept     string   // the URL of an expectation that is to be there in the end
	problems []string
}

// history tells the steps anew.
func (p *play) history() history {
	h := history{calls: map[string][]storetest.Call{}, earlier: map[string]int{}, outcome: make([]string, len(p.over))}
	var notes []*note
	for n := p.notes; n != nil; n = n.before {
		notes = append(notes, n)
	}
	slices.Reverse(notes)
	began, at := map[int]int{}, map[int]int{} // the latest call of each caller
	for to, n := range notes {
		if n.kind == begins {
			began[n.caller], at[n.caller] = to, len(n.nows)-1
		}
		if n.kind != ends {
			continue
		}
		from, nows, unknown := began[n.caller], n.nows, n.said == "unknown"
		if unknown {
			nows = p.nows[p.storeOf(n.caller)]
		}
		if n.jobID != "" && n.said != "unavailable" { // which promises to have had no effect
			h.calls[n.jobID] = append(h.calls[n.jobID], storetest.Call{Op: n.op, Answer: n.answer, Unknown: unknown, From: from, To: to, Nows: nows[at[n.caller]:]})
			if n.caller < 0 {
				h.earlier[n.jobID]++
			}
		}
		if n.hears {
			h.words = append(h.words, word{n.call, n.said, from, to})
		}
		if n.problem != "" {
			h.problems = append(h.problems, n.problem)
		}
		if h.kept = cmp.Or(n.keeps, h.kept); n.caller >= 0 {
			h.outcome[n.caller] += fmt.Sprintf("%s: %s; ", n.call, n.said)
		}
	}
	return h
}

func (r reaction) String() string {
	text := fmt.Sprintf("the steps %+v, none waiting for %v", r.steps, r.gone)
	for _, c := range r.calls {
		text += fmt.Sprintf(", the command %v", c)
	}
	return text
}
