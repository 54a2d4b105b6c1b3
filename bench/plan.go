package main

import "slices"

// The kinds of cells, which end a cell's name.
const (
	kindDirect   = "direct"          // callers do the plain upsert on MongoDB by themselves
	kindRelay    = "relay"           // callers call a bare gRPC server that does the plain upsert: what any service must cost
	kindBulk     = "bulk"            // 4 writers of 500 upserts each: what the database can do
	kindBulkFull = "bulk_full"       // the same, with the record that JobOnce stores
	kindService  = "service"         // callers call JobOnce
	kindBatching = "batching_client" // callers call JobOnce through the client's own batching
	kindEcho     = "echo"            // callers call a bare gRPC server that does nothing
	kindPostgres = "postgres"        // callers call PostgreSQL
	kindRedis    = "redis"           // callers call Redis
	kindSmall    = "small"           // callers call JobOnce on a store with few jobs
	kindLarge    = "large"           // callers call JobOnce on a store with many jobs
)

// store is what JobOnce keeps its jobs in.
type store string

const (
	embedded store = "embedded"
	mongodb  store = "mongo"
)

// group is the cells that are compared with each other, and so are measured in turn. All have the same workload.
type group struct {
	name  string
	store store

	callers, duplicates, hotKeys, bodyBytes int

	kinds []string
}

// figure is one line of the output.
type figure struct {
	name  string
	cells []string // what it is made of
	value func(*results) float64
}

// plan returns what to measure, and the figures in the order of the output.
func plan(cfg config) ([]group, []figure) {
	var groups []group
	var figures []figure
	for _, g := range allGroups(cfg.short) {
		var kinds []string
		for _, f := range figuresOf(g) {
			if !cfg.only.MatchString(f.name) {
				continue
			}
			figures = append(figures, f)
			for _, kind := range g.kinds {
				if slices.Contains(f.cells, g.cell(kind)) && !slices.Contains(kinds, kind) {
					kinds = append(kinds, kind)
				}
			}
		}
		if len(kinds) > 0 {
			slices.SortFunc(kinds, func(a, b string) int { return slices.Index(g.kinds, a) - slices.Index(g.kinds, b) })
			g.kinds = kinds
			groups = append(groups, g)
		}
	}
	return groups, figures
}

func (g group) cell(kind string) string { return g.name + "." + kind }

func allGroups(short bool) []group {
	const kib = 1 << 10
	both := []string{kindDirect, kindService}
	groups := []group{
		{name: "mongo.1", store: mongodb, callers: 1, bodyBytes: kib, kinds: []string{kindDirect, kindService, kindRelay}},
		{name: "mongo.16", store: mongodb, callers: 16, bodyBytes: kib, kinds: both},
		{name: "mongo.64", store: mongodb, callers: 64, bodyBytes: kib, kinds: both},
		{name: "mongo.256", store: mongodb, callers: 256, bodyBytes: kib,
			kinds: []string{kindDirect, kindService, kindBatching, kindBulk, kindBulkFull}},
		{name: "mongo.64.dup30", store: mongodb, callers: 64, duplicates: 30, bodyBytes: kib, kinds: both},
		{name: "mongo.64.hot", store: mongodb, callers: 64, hotKeys: 16, bodyBytes: kib, kinds: both},
		{name: "mongo.64.16kib", store: mongodb, callers: 64, bodyBytes: 16 * kib, kinds: both},

		{name: "embedded.1", store: embedded, callers: 1, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.16", store: embedded, callers: 16, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64", store: embedded, callers: 64, bodyBytes: kib,
			kinds: []string{kindService, kindEcho, kindPostgres, kindRedis}},
		{name: "embedded.256", store: embedded, callers: 256, bodyBytes: kib,
			kinds: []string{kindService, kindBatching, kindRedis}},
		{name: "embedded.64.dup30", store: embedded, callers: 64, duplicates: 30, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64.hot", store: embedded, callers: 64, hotKeys: 16, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64.16kib", store: embedded, callers: 64, bodyBytes: 16 * kib, kinds: []string{kindService}},
	}
	if !short {
		for _, s := range []store{embedded, mongodb} {
			groups = append(groups, group{name: string(s) + ".growth", store: s, callers: 64, bodyBytes: kib,
				kinds: []string{kindSmall, kindLarge}})
		}
	}
	return groups
}

// figuresOf returns the figures that a group can give.
func figuresOf(g group) []figure {
	has := func(kind string) bool { return slices.Contains(g.kinds, kind) }
	var figures []figure
	add := func(name string, value func(*results) float64, kinds ...string) {
		f := figure{name: name, value: value}
		for _, kind := range kinds {
			f.cells = append(f.cells, g.cell(kind))
		}
		figures = append(figures, f)
	}
	// compare adds the quotient of what get finds in two cells.
	compare := func(name string, get func(sample) float64, over, under string) {
		add(name, func(r *results) float64 {
			return r.median(g.cell(over), get) / r.median(g.cell(under), get)
		}, over, under)
	}
	if has(kindSmall) {
		compare(g.name, rate, kindLarge, kindSmall)
	}
	if has(kindDirect) {
		compare(g.name+".vs_direct", rate, kindService, kindDirect)
		compare(g.name+".p50_vs_direct", p50, kindService, kindDirect)
		compare(g.name+".cpu_vs_direct", cpu, kindService, kindDirect)
	}
	if has(kindRelay) {
		compare(g.name+".relay.p50_vs_direct", p50, kindRelay, kindDirect)
		compare(g.name+".p50_vs_relay", p50, kindService, kindRelay)
	}
	if has(kindBulk) {
		compare(g.name+".vs_bulk_ceiling", rate, kindService, kindBulk)
		compare(g.name+".vs_bulk_full", rate, kindService, kindBulkFull)
		compare(g.name+"."+kindBatching+".vs_bulk_ceiling", rate, kindBatching, kindBulk)
	}
	for _, rival := range []string{kindEcho, kindPostgres, kindRedis} {
		if has(rival) {
			compare(g.name+".vs_"+rival, rate, kindService, rival)
		}
	}
	if has(kindBatching) && has(kindRedis) {
		compare(g.name+"."+kindBatching+".vs_redis", rate, kindBatching, kindRedis)
	}
	if g.name == "embedded.64" {
		add("record.p99_over_p50", func(r *results) float64 {
			return r.median(g.cell(kindService), p99) / r.median(g.cell(kindService), p50)
		}, kindService)
	}
	for _, kind := range g.kinds {
		for _, unit := range []struct {
			name string
			get  func(sample) float64
		}{{"rate", rate}, {"p50_ms", p50}, {"p99_ms", p99}, {"cpu_us", cpu}} {
			add(g.cell(kind)+"."+unit.name, func(r *results) float64 { return r.median(g.cell(kind), unit.get) }, kind)
		}
	}
	return figures
}
