package explore_test

import (
	"fmt"
	"slices"
	"testing"
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
	// visited are the states that were met, with the schedule that led there first and the faults that were left.
	visited map[[32]byte]visit
	result  result
}

type turn struct {
	events []string
	faulty []bool
	chosen int
	left   int // faults, before it
}

type visit struct {
	schedule schedule
	left     int
}

// result is what came of an exploration.
type result struct {
	Schedules, Pruned, Checked int
	// Outcomes are how often each came.
	Outcomes map[string]int
	// Found is the shortest schedule whose outcome cannot be explained, and Problem why.
	Found   schedule
	Problem string
	Seconds float64
}

// explore runs every schedule. It ends early when so many of them cannot be explained.
func explore(t *testing.T, s scenario, kind modeldb.Deployment, faults, found int) result {
	began := time.Now()
	x := &exploration{t: t, scenario: s, kind: kind, faults: faults, visited: map[[32]byte]visit{}, result: result{Outcomes: map[string]int{}}}
	for more := true; more && found > 0; more = x.next() {
		pruned, depth, known := false, 0, schedule(nil)
		outcome, err := run(t, s, kind, func(w *world, events []happening) int {
			defer func() { depth++ }()
			if depth < len(x.path) {
				return x.again(depth, events)
			}
			left := faults
			if depth > 0 {
				left = x.path[depth-1].after()
			}
			if depth > 0 && len(events) > 0 {
				key := w.key()
				if was, met := x.visited[key]; met && was.left >= left {
					pruned = true
					known = was.schedule
					return -1
				}
				x.visited[key] = visit{x.schedule(), left}
			}
			x.path = append(x.path, newTurn(events, left))
			return x.path[depth].chosen
		})
		if pruned {
			if x.result.Pruned++; x.result.Pruned%checkEvery == 0 {
				x.check(known, x.schedule())
			}
			continue
		}
		x.result.Schedules++
		x.result.Outcomes[plain(outcome)]++
		if err != nil {
			found--
			if x.result.Found == nil || len(x.schedule()) < len(x.result.Found) {
				x.result.Found, x.result.Problem = x.schedule(), fmt.Sprintf("%v\n%s", err, outcome)
			}
		}
	}
	x.result.Seconds = time.Since(began).Seconds()
	return x.result
}

// checkEvery is how many runs that met a state again are given up for one that is not.
const checkEvery = 50

func newTurn(events []happening, left int) turn {
	t := turn{left: left}
	for _, e := range events {
		t.events, t.faulty = append(t.events, e.name), append(t.faulty, e.fault)
	}
	return t
}

// after is how many faults are left after the turn.
func (t turn) after() int {
	if t.faulty[t.chosen] {
		return t.left - 1
	}
	return t.left
}

// again chooses what was chosen before, and holds the run to having the same choice.
func (x *exploration) again(depth int, events []happening) int {
	turn := x.path[depth]
	if !slices.EqualFunc(events, turn.events, func(e happening, name string) bool { return e.name == name }) {
		panic(fmt.Sprintf("the schedule %v has the events %v first, and %v then", x.schedule(), turn.events, newTurn(events, 0).events))
	}
	return turn.chosen
}

// next goes on to the next schedule, and tells whether there is one.
func (x *exploration) next() bool {
	for len(x.path) > 0 {
		last := &x.path[len(x.path)-1]
		for last.chosen++; last.chosen < len(last.events); last.chosen++ {
			if !last.faulty[last.chosen] || last.left > 0 {
				return true
			}
		}
		x.path = x.path[:len(x.path)-1]
	}
	return false
}

// schedule is that of the latest run.
func (x *exploration) schedule() (s schedule) {
	for _, t := range x.path {
		s = append(s, t.events[t.chosen])
	}
	return s
}

// check runs two schedules that led to the same state on to their ends, which must be the same.
func (x *exploration) check(a, b schedule) {
	x.result.Checked++
	one, err1 := replay(x.t, x.scenario, x.kind, a, quietly)
	two, err2 := replay(x.t, x.scenario, x.kind, b, quietly)
	if plain(one) != plain(two) || (err1 == nil) != (err2 == nil) {
		panic(fmt.Sprintf("%s: two schedules lead to the same state and then to different outcomes:\n%v\n%s%v\n%v\n%s%v",
			x.scenario.name, a, one, err1, b, two, err2))
	}
}

// replay runs a schedule, and then on to the end with whatever comes first. It says what happens.
func replay(t *testing.T, s scenario, kind modeldb.Deployment, schedule schedule, say func(format string, args ...any)) (outcome string, err error) {
	depth := 0
	return run(t, s, kind, func(_ *world, events []happening) int {
		i := 0
		if depth < len(schedule) {
			i = slices.IndexFunc(events, func(e happening) bool { return e.name == schedule[depth] })
		}
		depth++
		if i < 0 {
			panic(fmt.Sprintf("after %v there is only %v", schedule[:depth-1], newTurn(events, 0).events))
		}
		say("%-22s %s", events[i].name, events[i].about)
		return i
	})
}

func quietly(string, ...any) {}
