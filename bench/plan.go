package main

import (
	"slices"
	"strings"
)

// The kinds of cells, which end a cell's name.
const (
	kindDirect   = "direct"          // callers do the plain upsert on MongoDB by themselves
	kindRelay    = "relay"           // callers call a bare gRPC server that does the plain upsert: what any service must cost
	kindBulk     = "bulk"            // 4 writers of 500 upserts each: what the database can do
	kindBulkOnce = "bulk_once"       // the same, with all that JobOnce stores, and the body as a document alone
	kindBulkFull = "bulk_full"       // the same, and the body as text beside it
	kindService  = "service"         // callers call JobOnce; in groups of work, workers of the Go client
	kindBatching = "batching_client" // callers call JobOnce through the client's own batching
	kindSecure   = "secure"          // callers call JobOnce by TLS, with a token
	kindNoLists  = "without_lists"   // callers call JobOnce on a store without the indexes that lists need
	kindEcho     = "echo"            // callers call a bare gRPC server that does nothing
	kindFrontend = "frontend"        // senders deliver webhooks to a handler of client/webhook, which calls JobOnce
	kindBareHTTP = "bare_http"       // senders deliver them to a handler that verifies and does nothing
	kindPostgres = "postgres"        // callers call PostgreSQL
	kindRedis    = "redis"           // callers call Redis
	kindSmall    = "small"           // callers call JobOnce on a store with few jobs
	kindLarge    = "large"           // callers call JobOnce on a store with many jobs

	// In groups of work only.
	kindTwo    = "two_instances"  // the same workers, over two instances of JobOnce on one database
	kindFour   = "four_instances" // over four
	kindByHand = "by_hand"        // a queue in a collection of MongoDB, as one writes it oneself
	kindRiver  = "river"          // River on PostgreSQL
	kindAsynq  = "asynq"          // asynq on Redis
)

// beforeSuffix makes the kind of the same cell with an older JobOnce.
const beforeSuffix = ".before"

// older tells whether a kind is one of an older JobOnce, and which without that.
func older(kind string) (base string, old bool) { return strings.CutSuffix(kind, beforeSuffix) }

// before is the kind with an older JobOnce, which is the same where JobOnce takes no part.
func before(kind string) string {
	if slices.Contains([]string{kindService, kindBatching, kindTwo, kindFour}, kind) {
		return kind + beforeSuffix
	}
	return kind
}

// instances is how many instances of JobOnce a kind calls.
func instances(kind string) int {
	switch base, _ := older(kind); base {
	case kindTwo:
		return 2
	case kindFour:
		return 4
	}
	return 1
}

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

	work  bool // what is measured is how fast recorded work is done
	node  bool // the callers are a frontend in Node
	sizes bool // how large the documents become is measured too

	kinds []string
}

func (g group) cell(kind string) string { return g.name + "." + kind }

func allGroups(short bool) []group {
	const kib = 1 << 10
	both := []string{kindDirect, kindService}
	forms := []string{kindBulkOnce, kindBulkFull}
	groups := []group{
		{name: "mongo.1", store: mongodb, callers: 1, bodyBytes: kib, kinds: []string{kindDirect, kindService, kindRelay}},
		{name: "mongo.16", store: mongodb, callers: 16, bodyBytes: kib, kinds: both},
		{name: "mongo.64", store: mongodb, callers: 64, bodyBytes: kib, sizes: true,
			kinds: []string{kindDirect, kindService, kindSecure, kindNoLists}},
		{name: "mongo.256", store: mongodb, callers: 256, bodyBytes: kib,
			kinds: []string{kindDirect, kindService, kindBatching, kindBulk, kindBulkOnce}},
		{name: "mongo.64.dup30", store: mongodb, callers: 64, duplicates: 30, bodyBytes: kib, kinds: both},
		{name: "mongo.64.hot", store: mongodb, callers: 64, hotKeys: 16, bodyBytes: kib, kinds: both},
		{name: "mongo.64.16kib", store: mongodb, callers: 64, bodyBytes: 16 * kib, kinds: both},
		{name: "mongo.64.128kib", store: mongodb, callers: 64, bodyBytes: 128 * kib, kinds: both},
		{name: "mongo.64.node", store: mongodb, callers: 64, bodyBytes: kib, kinds: both, node: true},

		{name: "mongo.bulk.512b", store: mongodb, callers: bulkWriters, bodyBytes: kib / 2, kinds: forms, sizes: true},
		{name: "mongo.bulk.1kib", store: mongodb, callers: bulkWriters, bodyBytes: kib, kinds: forms, sizes: true},
		{name: "mongo.bulk.4kib", store: mongodb, callers: bulkWriters, bodyBytes: 4 * kib, kinds: forms, sizes: true},
		{name: "mongo.bulk.16kib", store: mongodb, callers: bulkWriters, bodyBytes: 16 * kib, kinds: forms, sizes: true},

		{name: "embedded.1", store: embedded, callers: 1, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.16", store: embedded, callers: 16, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64", store: embedded, callers: 64, bodyBytes: kib,
			kinds: []string{kindService, kindSecure, kindNoLists, kindEcho, kindPostgres, kindRedis}},
		{name: "embedded.256", store: embedded, callers: 256, bodyBytes: kib,
			kinds: []string{kindService, kindBatching, kindRedis}},
		{name: "embedded.64.dup30", store: embedded, callers: 64, duplicates: 30, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64.hot", store: embedded, callers: 64, hotKeys: 16, bodyBytes: kib, kinds: []string{kindService}},
		{name: "embedded.64.16kib", store: embedded, callers: 64, bodyBytes: 16 * kib, kinds: []string{kindService}},

		{name: "webhook.64", store: embedded, callers: 64, bodyBytes: kib, kinds: []string{kindFrontend, kindBareHTTP}},

		{name: "work.mongo.10", store: mongodb, callers: 10, bodyBytes: kib, work: true,
			kinds: []string{kindService, kindTwo, kindByHand}},
		{name: "work.mongo.64", store: mongodb, callers: 64, bodyBytes: kib, work: true,
			kinds: []string{kindService, kindTwo, kindFour, kindNoLists, kindByHand}},
		{name: "work.embedded.10", store: embedded, callers: 10, bodyBytes: kib, work: true,
			kinds: []string{kindService, kindRiver, kindAsynq}},
		{name: "work.embedded.64", store: embedded, callers: 64, bodyBytes: kib, work: true,
			kinds: []string{kindService, kindNoLists, kindRiver, kindAsynq}},
	}
	if !short {
		for _, s := range []store{embedded, mongodb} {
			groups = append(groups, group{name: string(s) + ".growth", store: s, callers: 64, bodyBytes: kib,
				kinds: []string{kindSmall, kindLarge}})
		}
	}
	return groups
}

// plan returns what to measure, and the figures in the order of the output.
func plan(cfg config) ([]group, []figure) {
	var groups []group
	var figures []figure
	for _, g := range allGroups(cfg.short) {
		wanted := map[string]bool{} // cells
		add := func(f figure) {
			figures = append(figures, f)
			for _, cell := range f.cells {
				wanted[cell] = true
			}
		}
		for _, f := range ratiosOf(g, asNow) {
			if cfg.run.MatchString(f.name) {
				add(f)
			}
		}
		if cfg.before != "" {
			for _, f := range ratiosOf(g, before) {
				if a, aimed := aimOf(f.name); aimed && !a.nowOnly && cfg.run.MatchString(f.name) {
					f.name += beforeSuffix
					add(f)
				}
			}
		}
		var kinds []string
		for _, now := range g.kinds {
			for _, kind := range slices.Compact([]string{now, before(now)}) {
				for _, f := range unitsOf(g, kind) {
					asked := cfg.run.MatchString(strings.Replace(f.name, beforeSuffix, "", 1))
					if asked && (kind == now || wanted[g.cell(kind)]) {
						add(f)
					}
				}
				if wanted[g.cell(kind)] {
					kinds = append(kinds, kind)
				}
			}
		}
		if g.kinds = kinds; len(kinds) > 0 {
			groups = append(groups, g)
		}
	}
	return groups, figures
}
