package explore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// exploration runs every schedule of a scenario within a bound of faults: first those without, then those with one, and the shorter ones
// first. Each state is so met for the first time with the most faults left. A schedule goes on from a state without the stores; those run it
// where it is not known yet what they do then, and to see now and then that they do.
type exploration struct {
	t        *testing.T
	scenario scenario
	task     task
	lab      *lab

	root      *play
	visited   map[[32]byte]*place // the states that were met, with how they were come to first
	reactions reactions
	result    result
}

// result is what came of an exploration within a bound of faults.
type result struct {
	// Schedules are those that came to an end that no other had come to, Pruned those that were given up because they led to a state that
	// was met. States are all that were met.
	Schedules, Pruned, States int
	// Runs are the schedules that the stores ran, Checked those of them that repeated what was known, to see that it is so, and Repeated
	// those that went otherwise, and were made anew.
	Runs, Checked, Repeated int
	// Outcomes are how often each came.
	Outcomes map[string]int
	// Found is the shortest schedule whose outcome cannot be explained, and Problem why.
	Found   schedule
	Problem string
	Seconds float64
	// Cut is set when the time was up before all was run.
	Cut bool
}

// explore explores a task's scenario, and gives what came of it by the number of faults. It ends when a schedule cannot be explained, or the
// time is up.
func explore(t *testing.T, s scenario, j task) (results []result) {
	began := time.Now()
	x := &exploration{t: t, scenario: s, task: j, visited: map[[32]byte]*place{}, reactions: reactions{}, result: result{Outcomes: map[string]int{}}}
	defer x.closeLab()
	x.inWorld(func(w *world) {
		w.reset()
		w.start()
		x.root = w.play.copy()
		w.abandon()
	})
	var earlier [][]*play // the states of one fault fewer, by how much had happened
	for faults := 0; faults <= j.Faults && x.result.Found == nil; faults++ {
		var states [][]*play
		var next []*play
		if faults == 0 {
			next = x.meet(next, x.root)
		}
		for depth := 0; len(next) > 0 || depth < len(earlier); depth++ {
			now := next
			next = nil
			for _, p := range now {
				next = x.goOn(next, p, false)
			}
			if depth < len(earlier) {
				for _, p := range earlier[depth] {
					next = x.goOn(next, p, true)
				}
				earlier[depth] = nil
			}
			if faults < j.Faults {
				states = append(states, now)
			}
		}
		earlier = states
		r := x.result
		r.Outcomes, r.Seconds = maps.Clone(r.Outcomes), time.Since(began).Seconds()
		results = append(results, r)
	}
	return results
}

// over tells whether it is enough.
func (x *exploration) over() bool {
	if !x.task.Until.IsZero() && time.Now().After(x.task.Until) {
		x.result.Cut = true
	}
	return x.result.Cut || x.result.Found != nil
}

// goOn goes on from a state by everything that may happen there and is a fault, or is none, and adds what it leads to that was not met.
func (x *exploration) goOn(next []*play, p *play, fault bool) []*play {
	if x.over() {
		return nil
	}
	events := p.events()
	if len(events) == 0 && !fault {
		x.end(p)
	}
	for _, e := range events {
		if e.fault == fault && (!fault || strings.Contains(e.name, x.task.Of)) {
			next = x.meet(next, x.after(p, e))
		}
	}
	return next
}

// checkEvery is of how many schedules that lead to a state that was met before one is run on nevertheless, and of how many that came to an
// end one is run with new clients.
const checkEvery = 50

// meet adds a state that was not met before.
func (x *exploration) meet(next []*play, p *play) []*play {
	key := p.key()
	was, met := x.visited[key]
	if !met {
		x.visited[key] = p.place
		x.result.States++
		return append(next, p)
	}
	if x.result.Pruned++; x.result.Pruned%checkEvery == 0 {
		x.same(was.schedule(), p.place.schedule(), x.task.Faults-p.faults)
	}
	return next
}

// end judges what a play has come to.
func (x *exploration) end(p *play) {
	path := p.place.schedule()
	var outcome string
	var err error
	if x.scenario.indexes { // the stores must be ready again, too
		outcome, err = x.run(path, first)
	} else {
		x.inWorld(func(w *world) { outcome, err = w.judge(p) })
	}
	if x.result.Schedules++; x.result.Schedules%checkEvery == 0 {
		x.checkNew(path, outcome, err)
	}
	x.result.Outcomes[plain(outcome)]++
	if err == nil && p.faults == 0 && !x.scenario.doubts && unanswered(outcome) {
		err = errors.New("without faults a call has no answer")
	}
	x.found(path, outcome, err)
}

// found keeps the first schedule whose outcome cannot be explained.
func (x *exploration) found(path schedule, outcome string, err error) {
	if err != nil && x.result.Found == nil {
		x.result.Found, x.result.Problem = path, fmt.Sprintf("%v\n%s", err, outcome)
	}
}

// unanswered tells whether a call of an outcome failed. A deletion explains that of a delivery, which finds its record gone, and is first
// when it is tried again.
func unanswered(outcome string) bool {
	if strings.Contains(outcome, "Delete{") {
		outcome = unknownRecord.ReplaceAllString(outcome, "")
	}
	return strings.Contains(outcome, "unknown") || strings.Contains(outcome, "unavailable")
}

var unknownRecord = regexp.MustCompile(`Record\{[^}]*\}: unknown`)

// after is the play once something more has happened. The stores are asked for what follows where that is not known yet.
func (x *exploration) after(p *play, e happening) *play {
	next, known := p.after(e, x.reactions)
	if !known {
		x.run(append(p.place.schedule(), e.name), func() func(*play, []happening) int { return x.unknown })
		if next, known = p.after(e, x.reactions); !known {
			panic(fmt.Sprintf("%s: what follows from %v is not known after it was run", x.scenario.name, append(p.place.schedule(), e.name)))
		}
	}
	return next
}

// unknown is an event of which it is not known what follows, while there are faults left; -1 when there is none.
func (x *exploration) unknown(p *play, events []happening) int {
	return slices.IndexFunc(events, func(e happening) bool {
		if e.fault && p.faults == x.task.Faults {
			return false
		}
		_, known := p.after(e, x.reactions)
		return !known
	})
}

// mostTries is how often a run is made anew that went otherwise.
const mostTries = 10

// run has the stores run a schedule, and what then chooses after that.
func (x *exploration) run(path schedule, then func() func(*play, []happening) int) (outcome string, err error) {
	for try := 1; ; try++ {
		var why otherwise
		x.inWorld(func(w *world) {
			defer func() {
				if r := recover(); r != nil {
					is := false
					if why, is = r.(otherwise); !is || try == mostTries {
						panic(r)
					}
				}
			}()
			outcome, err = w.perform(x.compared(path, then()))
		})
		if x.result.Runs++; why == "" {
			return outcome, err
		}
		x.result.Repeated++
	}
}

// compared chooses what a schedule says, and then chooses after that. Each step is held to what it comes to without the stores.
func (x *exploration) compared(path schedule, then func(*play, []happening) int) func(*play, []happening) int {
	alone, chosen, depth := x.root, 0, 0
	return func(p *play, events []happening) int {
		mine := alone.events()
		if depth > 0 {
			alone, _ = alone.after(mine[chosen], x.reactions)
			mine = alone.events()
		}
		if !slices.Equal(names(events), names(mine)) || p.key() != alone.key() {
			panic(otherwise(fmt.Sprintf("%s: the stores come by %v to where %v may happen, and without them that is %v, or another state",
				x.scenario.name, p.place.schedule(), names(events), names(mine))))
		}
		if chosen = path.at(depth, mine); chosen < 0 {
			chosen = then(alone, mine)
		}
		depth++
		return chosen
	}
}

// first is that whatever comes first happens.
func first() func(*play, []happening) int { return func(*play, []happening) int { return 0 } }

// same runs two schedules that led to the same state on to their ends, which must be the same. What happens on the way there is drawn by lot,
// but for the faults, of which the latter has so many left.
func (x *exploration) same(a, b schedule, left int) {
	x.result.Checked += 2
	var rest schedule
	one, err1 := x.run(a, func() func(*play, []happening) int {
		lots, left := rand.New(rand.NewPCG(uint64(x.result.Pruned), 0)), left
		rest = nil
		return func(_ *play, events []happening) int {
			if len(events) == 0 {
				return 0
			}
			i := lots.IntN(len(events))
			if events[i].fault && left == 0 {
				i = 0
			}
			if events[i].fault {
				left--
			}
			rest = append(rest, events[i].name)
			return i
		}
	})
	x.found(slices.Concat(a, rest), one, err1)
	two, err2 := x.run(slices.Concat(b, rest), first)
	if plain(one) != plain(two) || (err1 == nil) != (err2 == nil) {
		panic(fmt.Sprintf("%s: two schedules lead to the same state and with %v to different outcomes:\n%v\n%s%v\n%v\n%s%v",
			x.scenario.name, rest, a, one, err1, b, two, err2))
	}
}

// checkNew runs a schedule with new clients, which must come to the same.
func (x *exploration) checkNew(s schedule, outcome string, err error) {
	x.result.Runs++
	x.result.Checked++
	again, err2 := replay(x.t, x.scenario, x.task.Deployment, s, quietly)
	if plain(again) != plain(outcome) || (err == nil) != (err2 == nil) {
		panic(fmt.Sprintf("%s: with new clients, the schedule %v comes to\n%s%v\nand before it came to\n%s%v", x.scenario.name, s, again, err2, outcome, err))
	}
}

// lab is where a world is: a bubble, in which things are done for an exploration that is outside.
type lab struct {
	work  chan func(*world)
	ended chan struct{}
}

// inWorld does something in a world that is young.
func (x *exploration) inWorld(do func(*world)) {
	if x.lab == nil {
		lab := &lab{make(chan func(*world)), make(chan struct{})}
		x.lab = lab
		go func() {
			defer close(lab.ended)
			synctest.Test(x.t, func(t *testing.T) {
				w := newWorld(t, x.scenario, x.task.Deployment, x.reactions)
				defer w.close()
				for do := range lab.work {
					do(w)
				}
			})
		}()
	}
	young := make(chan bool)
	work := func(w *world) {
		do(w)
		young <- w.young()
	}
	select {
	case x.lab.work <- work:
	case <-x.lab.ended:
		x.t.FailNow()
	}
	select {
	case is := <-young:
		if !is {
			x.closeLab()
		}
	case <-x.lab.ended:
		x.t.FailNow()
	}
}

func (x *exploration) closeLab() {
	if x.lab != nil {
		close(x.lab.work)
		<-x.lab.ended
		x.lab = nil
	}
}

func names(events []happening) (names []string) {
	for _, e := range events {
		names = append(names, e.name)
	}
	return names
}

// replay runs a schedule with new stores, and then on to the end with whatever comes first. It says what happens.
func replay(t *testing.T, s scenario, kind modeldb.Deployment, schedule schedule, say func(format string, args ...any)) (outcome string, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s, kind, reactions{})
		defer w.close()
		depth := 0
		outcome, err = w.perform(func(_ *play, events []happening) int {
			i := max(0, schedule.at(depth, events))
			if depth++; i < len(events) {
				say("%-22s %s", events[i].name, events[i].about)
			}
			return i
		})
	})
	return outcome, err
}

// at is the place of what the schedule has happen at some depth; -1 when it says nothing more.
func (s schedule) at(depth int, events []happening) int {
	if depth >= len(s) {
		return -1
	}
	i := slices.IndexFunc(events, func(e happening) bool { return e.name == s[depth] })
	if i < 0 {
		panic(fmt.Sprintf("after %v there is only %v", s[:depth], names(events)))
	}
	return i
}

func quietly(string, ...any) {}
