package main

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fared runs all scenarios with a client.
func fared(t *testing.T, client Client, patience time.Duration) []Outcome {
	t.Helper()
	scenarios, err := Scenarios()
	testenv.Must(t, err)
	outcomes, err := Run(t.Context(), client, scenarios, patience)
	testenv.Must(t, err)
	return outcomes
}

// TestGo is the Go client, which must pass everything.
func TestGo(t *testing.T) {
	for _, o := range fared(t, goClient, patience) {
		for _, problem := range o.Problems {
			t.Errorf("%s: %s", o.Scenario.Name, problem)
		}
	}
}

// TestNaive is a client that makes the usual mistakes, and must fail exactly where the scenarios say.
func TestNaive(t *testing.T) {
	for _, o := range fared(t, naiveClient, 5*time.Second) {
		if fails := len(o.Problems) > 0; fails != (o.Scenario.Naive == Fails) {
			t.Errorf("%s: the naive client is said to be one that %s: %v", o.Scenario.Name, o.Scenario.Naive, o.Problems)
		}
	}
}

// TestScenariosAreWhole: each has all that a reader needs, and a name of its own.
func TestScenariosAreWhole(t *testing.T) {
	scenarios, err := Scenarios()
	testenv.Must(t, err)
	seen := make(map[string]bool)
	for _, s := range scenarios {
		if s.Name == "" || s.About == "" || len(s.Steps) == 0 || s.Naive != Passes && s.Naive != Fails || seen[s.Name] {
			t.Errorf("%+v lacks something", s)
		}
		seen[s.Name] = true
	}
}

// TestTable is what a run prints.
func TestTable(t *testing.T) {
	var out strings.Builder
	failures := Table(&out, []string{"a", "bb"}, map[string][]Outcome{
		"a":  {{Scenario: Scenario{Name: "one"}}, {Scenario: Scenario{Name: "other"}}},
		"bb": {{Scenario: Scenario{Name: "one"}}, {Scenario: Scenario{Name: "other"}, Problems: []string{"wrong"}}},
	})
	const want = "scenario a bb one pass pass other pass FAIL bb: other: wrong"
	if got := strings.Join(strings.Fields(out.String()), " "); failures != 1 || got != want {
		t.Errorf("%d failures:\n%s", failures, &out)
	}
}
