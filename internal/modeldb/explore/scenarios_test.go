package explore_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestScenarios runs every schedule of every scenario: without faults, when all calls succeed; with one fault; and the core
// ones with two, on a replica set. In the long form all with two, and three callers with one, as far as an hour goes, or
// JOBONCE_TEST_SCENARIOS_FOR. It prints what it did, and holds the outcomes to those that were known. JOBONCE_TEST_SCENARIOS limits it to
// those whose names match a regular expression.
func TestScenarios(t *testing.T) {
	began := time.Now()
	var until time.Time
	if testenv.Long() {
		until = began.Add(allotted(t))
	}
	var tasks []task
	only := regexp.MustCompile(os.Getenv("JOBONCE_TEST_SCENARIOS"))
	for _, s := range scenarios() {
		if !only.MatchString(s.name) {
			continue
		}
		for _, kind := range deployments {
			if s.drift > 0 && kind == modeldb.Standalone { // has one clock
				continue
			}
			most := 1
			switch {
			case s.calm:
				most = 0
			case s.core && kind == modeldb.ReplicaSet || testenv.Long() && !s.long:
				most = 2
			}
			if !s.long || testenv.Long() {
				tasks = append(tasks, task{Scenario: s.name, Deployment: kind, Faults: most, Until: until})
			}
		}
	}
	// The largest first, so that the workers end together; where the time may be up before, last.
	slices.SortStableFunc(tasks, func(a, b task) int {
		if testenv.Long() {
			a, b = b, a
		}
		return b.size() - a.size()
	})
	var cut, lines []string
	schedules, runs, repeated, seconds := 0, 0, 0, 0.0
	exploreAll(t, buildWorker(t, ""), tasks, func(j task, results []result) bool {
		for faults, r := range results {
			name := named(j, faults)
			t.Logf("%-75v %7d schedules to an end, %8d to what was met, %7d states, %6d runs, %4d outcomes, %6.1f s",
				name, r.Schedules, r.Pruned, r.States, r.Runs, len(r.Outcomes), r.Seconds)
			switch {
			case r.Found != nil:
				t.Errorf("%v: the schedule %v\n%s", name, r.Found, r.Problem)
			case r.Cut:
				cut = append(cut, name)
			default:
				lines = append(lines, fmt.Sprintf("%v: %d", name, len(r.Outcomes)))
			}
		}
		last := results[len(results)-1]
		schedules, runs, repeated, seconds = schedules+last.Schedules+last.Pruned, runs+last.Runs, repeated+last.Repeated, seconds+last.Seconds
		return true
	})
	slices.Sort(lines)
	t.Logf("%d schedules, %d of them run by the stores and %d made anew, in %.0f s of %d workers, %.0f s in all", schedules, runs, repeated, seconds, processors, time.Since(began).Seconds())
	if len(cut) > 0 {
		t.Logf("not explored to an end:\n%s", strings.Join(cut, "\n"))
	}
	golden(t, lines)
}

// allotted is how long the long form goes on.
func allotted(t *testing.T) time.Duration {
	given := os.Getenv("JOBONCE_TEST_SCENARIOS_FOR")
	if given == "" {
		return time.Hour
	}
	d, err := time.ParseDuration(given)
	if err != nil {
		t.Fatalf("JOBONCE_TEST_SCENARIOS_FOR: %v", err)
	}
	return d
}

// goldenFile has the number of outcomes of each task. JOBONCE_TEST_GOLDEN=1 writes it anew.
const goldenFile = "testdata/outcomes.txt"

func golden(t *testing.T, lines []string) {
	t.Helper()
	b, err := os.ReadFile(goldenFile)
	if err != nil && os.Getenv("JOBONCE_TEST_GOLDEN") == "" {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if i := strings.LastIndex(line, ": "); i > 0 {
			known[line[:i]] = strings.TrimSpace(line[i+2:])
		}
	}
	for _, line := range lines {
		i := strings.LastIndex(line, ": ")
		name, n := line[:i], line[i+2:]
		switch was, pinned := known[name]; {
		case os.Getenv("JOBONCE_TEST_GOLDEN") != "" || was == n:
		case !pinned && testenv.Long():
			t.Logf("%s: %s outcomes, which %s does not have yet", name, n, goldenFile)
		default:
			t.Errorf("%s: %s outcomes, and %s has %q", name, n, goldenFile, was)
		}
		known[name] = n
	}
	if os.Getenv("JOBONCE_TEST_GOLDEN") == "" {
		return
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(known)) {
		fmt.Fprintf(&out, "%s: %s\n", name, known[name])
	}
	if err := os.WriteFile(goldenFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReplay runs one schedule and prints what it comes to: JOBONCE_TEST_SCHEDULE has the scenario, the deployment and the
// schedule, with a semicolon between them.
func TestReplay(t *testing.T) {
	given := os.Getenv("JOBONCE_TEST_SCHEDULE")
	if given == "" {
		given = "record twice; replica set; A1-cut A2 A1-late"
	}
	part := strings.SplitN(given, ";", 3)
	if len(part) != 3 {
		t.Fatalf("%q is not SCENARIO; DEPLOYMENT; SCHEDULE", given)
	}
	s, ok := scenarioNamed(strings.TrimSpace(part[0]))
	if !ok {
		t.Fatalf("no scenario %q", part[0])
	}
	for _, kind := range deployments {
		if kind.String() == strings.TrimSpace(part[1]) {
			outcome, err := replay(t, s, kind, strings.Fields(part[2]), t.Logf)
			t.Logf("in the end:\n%s", outcome)
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Fatalf("no deployment %q", part[1])
}
