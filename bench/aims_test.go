package main

import (
	"bytes"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestAims(t *testing.T) {
	_, figures := plan(config{run: regexp.MustCompile(""), before: "x"})
	for _, a := range aims {
		for _, name := range []string{a.figure, a.figure + beforeSuffix} {
			found := slices.ContainsFunc(figures, func(f figure) bool { return f.name == name })
			if wanted := name == a.figure || !a.nowOnly; found != wanted {
				t.Errorf("%s: %v, want %v", name, found, wanted)
			}
		}
		if better := a.goal >= a.must; better == a.lower && a.goal != a.must {
			t.Errorf("%s: the goal is worse than the must", a.figure)
		}
	}
}

func TestPrintAims(t *testing.T) {
	values := map[string]float64{
		"mongo.64.vs_direct": 1.699, "mongo.64.vs_direct.before": 1.5, "mongo.256.vs_direct": 3.2,
		"mongo.64.cpu_vs_direct": 0.521, "mongo.1.p50_vs_relay": 1.03, "embedded.64.vs_echo": math.NaN(), "mongo.16.vs_direct": 2,
	}
	var figures []figure
	for name, value := range values {
		figures = append(figures, figure{name: name, value: func(*results) float64 { return value }})
	}
	var out bytes.Buffer
	if err := printAims(&out, newResults(), figures); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"aim mongo.64.vs_direct now 1.70 before 1.50 must 1.7 goal 2.2 must",
		"aim mongo.256.vs_direct now 3.20 before - must 2.3 goal 3 goal",
		"aim mongo.64.cpu_vs_direct now 0.521 before - must 0.52 goal 0.42 missed",
		"aim mongo.1.p50_vs_relay now 1.03 before - must 1.08 goal 1.03 goal",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
