package explore_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// exploration runs every schedule of a scenario within a bound of faults, depth first. It goes back to a place by running
// the scenario anew up to there.
type exploration struct {
	t        *testing.T
	scenario scenario
	kind     modeldb.Deployment
	faults   int

	// path is how the latest run went: for each of its events the place that was chosen, among which.
	path []turn
	// visited are the states that were met, with how they were come to first and the faults that were left.
	visited   map[[32]byte]visit
	reactions map[[32]byte]reaction
	result    result
}

type turn struct {
	events []option
	chosen int
	left   int    // faults, before it
	place  *place // nil in the beginning
}

// option is a happening that can be chosen in a turn.
type option struct {
	name  string
	fault bool
	// leads is the state that it leads to, as far as that is foreseen.
	leads    [32]byte
	foreseen bool
}

type visit struct {
	place *place
	left  int
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

// result is what came of an exploration.
type result struct {
	// Runs are all; Checked are those that came besides, to repeat what was known and see that it is so. Schedules are the runs that
	// came to an end that no other had come to. Pruned are the events that were not chosen, because they lead to a state that was met.
	Runs, Checked, Schedules, Pruned int
	// Outcomes are how often each came.
	Outcomes map[string]int
	// Found is the shortest schedule whose outcome cannot be explained, and Problem why.
	Found   schedule
	Problem string
	Seconds float64
	// Cut is set when the time was up before all was run.
	Cut bool
}

// explore runs every schedule of a task's scenario. It ends early when enough of them cannot be explained, or the time is up.
func explore(t *testing.T, s scenario, j task) result {
	began, kind, found := time.Now(), j.Deployment, j.Found
	x := &exploration{t: t, scenario: s, kind: kind, faults: j.Faults, visited: map[[32]byte]visit{}, reactions: map[[32]byte]reaction{},
		result: result{Outcomes: map[string]int{}}}
	for more := true; more && found > 0; {
		if x.result.Cut = !j.Until.IsZero() && time.Now().After(j.Until); x.result.Cut {
			break
		}
		var checks []func()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, s, kind, x.reactions)
			defer w.close()
			for ; more && found > 0 && w.young(); more = x.next() {
				same, outcome, err := x.one(w)
				x.result.Runs++
				switch path := x.schedule(); {
				case len(same) > 0 && s.indexes: // which leaves no world as it was
					checks = append(checks, func() {
						x.check(func(a schedule) (string, error) { return replay(t, s, kind, a, quietly) }, same, path)
					})
				case len(same) > 0:
					x.check(func(a schedule) (string, error) { return w.run(follow(a, quietly)) }, same, path)
				case same != nil: // all that could come next was met before
				default:
					if x.result.Schedules++; x.result.Schedules%checkEvery == 0 {
						checks = append(checks, func() { x.checkNew(path, outcome) })
					}
					x.result.Outcomes[plain(outcome)]++
					if err == nil && j.Faults == 0 && !s.doubts && unanswered(outcome) {
						err = errors.New("without faults a call has no answer")
					}
					if err != nil {
						found--
						if x.result.Found == nil || len(path) < len(x.result.Found) {
							x.result.Found, x.result.Problem = path, fmt.Sprintf("%v\n%s", err, outcome)
						}
					}
				}
			}
		})
		for _, check := range checks {
			check()
		}
	}
	x.result.Seconds = time.Since(began).Seconds()
	return x.result
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

// one runs the next schedule. When it comes to a state that was met before, it is given up, and same is the schedule that led
// there; empty when all that could come next leads to such states.
func (x *exploration) one(w *world) (same schedule, outcome string, err error) {
	depth := 0
	outcome, err = w.run(func(w *world, events []happening) int {
		if depth++; depth <= len(x.path) {
			return x.again(depth-1, events)
		}
		left := x.faults
		var at *place
		if depth > 1 {
			left = x.path[depth-2].after()
			key := w.key()
			last := &x.path[depth-2]
			e := last.events[last.chosen]
			if e.foreseen && e.leads != key {
				panic(fmt.Sprintf("%s: %v leads to another state than was foreseen", x.scenario.name, x.schedule()))
			}
			if was, met := x.visited[key]; met && was.left >= left {
				same = was.place.schedule()
				return -1
			}
			at = &place{last.place, e.name}
			x.visited[key] = visit{at, left}
		}
		if len(events) == 0 {
			return 0
		}
		x.path = append(x.path, newTurn(w, events, left))
		x.path[depth-1].place = at
		if x.path[depth-1].chosen = -1; !x.choose() {
			same = schedule{}
			return -1
		}
		return x.path[depth-1].chosen
	})
	return same, outcome, err
}

// choose goes on to the next event of the last turn that is to be chosen, and tells whether there is one.
func (x *exploration) choose() bool {
	last := &x.path[len(x.path)-1]
	for last.chosen++; last.chosen < len(last.events); last.chosen++ {
		if last.after() < 0 {
			continue
		}
		if e := last.events[last.chosen]; e.foreseen {
			if was, met := x.visited[e.leads]; met && was.left >= last.after() {
				if x.result.Pruned++; x.result.Pruned%checkEvery != 0 {
					continue
				}
			}
		}
		return true
	}
	return false
}

// checkEvery is of how many events that lead to a state that was met before one is chosen nevertheless, and of how many runs one
// is repeated with new clients.
const checkEvery = 50

func newTurn(w *world, events []happening, left int) turn {
	t := turn{events: make([]option, len(events)), left: left}
	for i, e := range events {
		t.events[i] = option{name: e.name, fault: e.fault}
		if left > 0 || !e.fault {
			t.events[i].leads, t.events[i].foreseen = w.foresee(e)
		}
	}
	return t
}

func names(events []happening) (names []string) {
	for _, e := range events {
		names = append(names, e.name)
	}
	return names
}

func (t turn) names() (names []string) {
	for _, e := range t.events {
		names = append(names, e.name)
	}
	return names
}

// after is how many faults are left after the turn.
func (t turn) after() int {
	if t.events[t.chosen].fault {
		return t.left - 1
	}
	return t.left
}

// again chooses what was chosen before, and holds the run to having the same choice.
func (x *exploration) again(depth int, events []happening) int {
	turn := x.path[depth]
	if !slices.EqualFunc(events, turn.events, func(e happening, was option) bool { return e.name == was.name }) {
		panic(fmt.Sprintf("the schedule %v has the events %v first, and %v then", x.schedule(), turn.names(), names(events)))
	}
	return turn.chosen
}

// next goes on to the next schedule, and tells whether there is one.
func (x *exploration) next() bool {
	for len(x.path) > 0 {
		if x.choose() {
			return true
		}
		x.path = x.path[:len(x.path)-1]
	}
	return false
}

// schedule is that of the latest run.
func (x *exploration) schedule() (s schedule) {
	for _, t := range x.path {
		if t.chosen < len(t.events) {
			s = append(s, t.events[t.chosen].name)
		}
	}
	return s
}

// check runs two schedules that led to the same state on to their ends, which must be the same.
func (x *exploration) check(run func(schedule) (string, error), a, b schedule) {
	x.result.Checked += 2
	one, err1 := run(a)
	two, err2 := run(b)
	if plain(one) != plain(two) || (err1 == nil) != (err2 == nil) {
		panic(fmt.Sprintf("%s: two schedules lead to the same state and then to different outcomes:\n%v\n%s%v\n%v\n%s%v",
			x.scenario.name, a, one, err1, b, two, err2))
	}
}

// checkNew runs a schedule with new clients, which must come to the same.
func (x *exploration) checkNew(s schedule, outcome string) {
	x.result.Checked++
	if again, err := replay(x.t, x.scenario, x.kind, s, quietly); plain(again) != plain(outcome) {
		panic(fmt.Sprintf("%s: with new clients, the schedule %v comes to\n%s%v\nand before it came to\n%s", x.scenario.name, s, again, err, outcome))
	}
}

// replay runs a schedule, and then on to the end with whatever comes first. It says what happens.
func replay(t *testing.T, s scenario, kind modeldb.Deployment, schedule schedule, say func(format string, args ...any)) (outcome string, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s, kind, map[[32]byte]reaction{})
		defer w.close()
		outcome, err = w.run(follow(schedule, say))
	})
	return outcome, err
}

// follow chooses what a schedule says, and then whatever comes first.
func follow(schedule schedule, say func(format string, args ...any)) func(*world, []happening) int {
	depth := 0
	return func(_ *world, events []happening) int {
		if len(events) == 0 {
			return 0
		}
		i := 0
		if depth < len(schedule) {
			i = slices.IndexFunc(events, func(e happening) bool { return e.name == schedule[depth] })
		}
		depth++
		if i < 0 {
			panic(fmt.Sprintf("after %v there is only %v", schedule[:depth-1], names(events)))
		}
		say("%-22s %s", events[i].name, events[i].about)
		return i
	}
}

func quietly(string, ...any) {}
