package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// aim is what a figure has to be: at least, or at most where lower is better.
type aim struct {
	figure     string
	lower      bool
	must, goal float64
	nowOnly    bool // an older commit cannot tell
}

// aims are printed at the end of a run, in this order.
var aims = []aim{
	{figure: "mongo.64.vs_direct", must: 1.7, goal: 2.2},
	{figure: "mongo.256.vs_direct", must: 2.3, goal: 3},
	{figure: "mongo.64.cpu_vs_direct", lower: true, must: 0.52, goal: 0.42},
	{figure: "mongo.256.vs_bulk_ceiling", must: 0.55, goal: 0.62},
	{figure: "mongo.256.batching_client.vs_bulk_ceiling", must: 0.6, goal: 0.75},
	{figure: "mongo.64.secure_cpu_vs_plain", lower: true, must: 1.25, goal: 1.1, nowOnly: true},
	{figure: "embedded.64.secure_cpu_vs_plain", lower: true, must: 1.25, goal: 1.1, nowOnly: true},
	{figure: "mongo.64.vs_without_lists", must: 0.95, goal: 1, nowOnly: true},
	{figure: "embedded.64.vs_without_lists", must: 0.95, goal: 1, nowOnly: true},
	{figure: "work.mongo.64.recorded_vs_without_lists", must: 0.95, goal: 1, nowOnly: true},
	{figure: "work.embedded.64.recorded_vs_without_lists", must: 0.95, goal: 1, nowOnly: true},
	{figure: "mongo.64.16kib.vs_direct", must: 1.2, goal: 1.6},
	{figure: "mongo.64.dup30.vs_direct", must: 1.6, goal: 2},
	{figure: "mongo.1.p50_vs_relay", lower: true, must: 1.08, goal: 1.03},
	{figure: "mongo.64.bytes_vs_direct", lower: true, must: 1.35, goal: 1.25},
	{figure: "work.embedded.64.vs_river", must: 1, goal: 3},
	{figure: "work.mongo.64.vs_by_hand", must: 3, goal: 5},
	{figure: "work.mongo.64.two_instances_vs_one", must: 0.95, goal: 1},
	{figure: "work.mongo.64.won_vs_tried", must: 0.8, goal: 0.8, nowOnly: true},
	{figure: "work.embedded.64.drained_vs_recorded", must: 0.35, goal: 0.6},
	{figure: "embedded.64.vs_echo", must: 0.45, goal: 0.6},
	{figure: "webhook.64.vs_bare_http", must: 0.2, goal: 0.5, nowOnly: true},
	{figure: "embedded.256.batching_client.vs_redis", must: 0.65, goal: 1},
}

func aimOf(figure string) (aim, bool) {
	i := slices.IndexFunc(aims, func(a aim) bool { return a.figure == figure })
	if i < 0 {
		return aim{}, false
	}
	return aims[i], true
}

// verdict compares the figure as people read it, so that 1.70 is not short of 1.7.
func (a aim) verdict(value float64) string {
	// The number that was printed reads back.
	var shown float64
	_, _ = fmt.Sscan(number(value), &shown)
	if a.lower {
		shown = -shown
	}
	for _, step := range []struct {
		aim  float64
		word string
	}{{a.goal, "goal"}, {a.must, "must"}} {
		if a.lower {
			step.aim = -step.aim
		}
		if shown >= step.aim {
			return step.word
		}
	}
	return "missed"
}

// printAims writes a line for each aim whose figure was measured: what it is, what it was before, if that was measured in
// the same run, what it must be and had better be, and which of the two it reaches.
func printAims(w io.Writer, r *results, figures []figure) error {
	values := map[string]float64{}
	for _, f := range figures {
		values[f.name] = f.value(r)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, a := range aims {
		now, ok := values[a.figure]
		if !ok || math.IsNaN(now) {
			continue
		}
		was, ok := values[a.figure+beforeSuffix]
		if !ok {
			was = math.NaN()
		}
		fmt.Fprintf(tw, "aim %s\tnow %s\tbefore %s\tmust %v\tgoal %v\t%s\n", a.figure, number(now), number(was), a.must, a.goal, a.verdict(now))
	}
	return tw.Flush()
}
