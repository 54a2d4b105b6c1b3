package main

import "slices"

// figure is one line of the output.
type figure struct {
	name  string
	cells []string // what it is made of
	value func(*results) float64
}

// asNow is the kind itself: figures of the JobOnce of this tree.
func asNow(kind string) string { return kind }

// ratiosOf returns the figures of a group that compare its cells. as says which kind stands in for a kind, which is how
// an older JobOnce gets the same figures.
func ratiosOf(g group, as func(kind string) string) []figure {
	has := func(kind string) bool { return slices.Contains(g.kinds, kind) }
	var figures []figure
	// compare adds the quotient of what is found in two cells.
	compare := func(name string, over string, getOver func(sample) float64, under string, getUnder func(sample) float64) {
		over, under = g.cell(as(over)), g.cell(as(under))
		figures = append(figures, figure{
			name: name, cells: slices.Compact([]string{over, under}),
			value: func(r *results) float64 { return r.median(over, getOver) / r.median(under, getUnder) },
		})
	}
	same := func(name string, get func(sample) float64, over, under string) {
		compare(g.name+"."+name, over, get, under, get)
	}

	if has(kindDirect) {
		same("vs_direct", rate, kindService, kindDirect)
		same("p50_vs_direct", p50, kindService, kindDirect)
		same("cpu_vs_direct", cpu, kindService, kindDirect)
		if g.sizes {
			same("bytes_vs_direct", docBytes, kindService, kindDirect)
			same("disk_vs_direct", diskBytes, kindService, kindDirect)
		}
	}
	if has(kindSecure) {
		same("secure_cpu_vs_plain", cpu, kindSecure, kindService)
	}
	if has(kindNoLists) {
		same("vs_without_lists", rate, kindService, kindNoLists)
		same("cpu_vs_without_lists", cpu, kindService, kindNoLists)
		if g.work {
			same("recorded_vs_without_lists", recorded, kindService, kindNoLists)
		}
	}
	if has(kindRelay) {
		same("relay.p50_vs_direct", p50, kindRelay, kindDirect)
		same("p50_vs_relay", p50, kindService, kindRelay)
	}
	if has(kindBulk) {
		same("vs_bulk_ceiling", rate, kindService, kindBulk)
		same("vs_bulk_once", rate, kindService, kindBulkOnce)
		same("batching_client.vs_bulk_ceiling", rate, kindBatching, kindBulk)
	}
	if has(kindBulkFull) {
		same("once_vs_full", rate, kindBulkOnce, kindBulkFull)
		same("once_cpu_vs_full", cpu, kindBulkOnce, kindBulkFull)
		same("once_bytes_vs_full", docBytes, kindBulkOnce, kindBulkFull)
		same("once_disk_vs_full", diskBytes, kindBulkOnce, kindBulkFull)
	}
	for _, peer := range []string{kindEcho, kindPostgres, kindRedis, kindByHand, kindRiver, kindAsynq} {
		if has(peer) {
			same("vs_"+peer, rate, kindService, peer)
		}
	}
	if has(kindBatching) && has(kindRedis) {
		same("batching_client.vs_redis", rate, kindBatching, kindRedis)
	}
	if has(kindFrontend) {
		same("vs_bare_http", rate, kindFrontend, kindBareHTTP)
	}
	if has(kindTwo) {
		same("two_instances_vs_one", rate, kindTwo, kindService)
	}
	if has(kindFour) {
		same("four_instances_vs_one", rate, kindFour, kindService)
		compare(g.name+".won_vs_tried", kindFour, won, kindFour, tried)
	}
	if g.work {
		compare(g.name+".drained_vs_recorded", kindService, rate, kindService, recorded)
	}
	if has(kindLarge) {
		compare(g.name, kindLarge, rate, kindSmall, rate)
	}
	if g.name == "embedded.64" {
		compare("record.p99_over_p50", kindService, p99, kindService, p50)
	}
	return figures
}

// unitsOf returns the figures of a cell by itself. Those that are not known are not printed.
func unitsOf(g group, kind string) []figure {
	cell := g.cell(kind)
	var figures []figure
	for _, unit := range []struct {
		name string
		get  func(sample) float64
	}{
		{"rate", rate}, {"p50_ms", p50}, {"p99_ms", p99}, {"cpu_us", cpu}, {"bytes", docBytes}, {"disk_bytes", diskBytes}, {"recorded", recorded},
	} {
		figures = append(figures, figure{
			name: cell + "." + unit.name, cells: []string{cell},
			value: func(r *results) float64 { return r.median(cell, unit.get) },
		})
	}
	return figures
}
