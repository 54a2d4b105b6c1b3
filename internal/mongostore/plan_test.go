package mongostore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestReadsUseOneIndex shows the query plans of all reads of many jobs, as they are sent, among many finished jobs: 20 thousand of
// them, a million in a long run. Each goes by one index alone: that on the ids has all the finished jobs.
func TestReadsUseOneIndex(t *testing.T) {
	finished := 20_000
	if testenv.Long() {
		finished = 1_000_000
	}
	proxy := wireproxy.Start(t, testenv.MongoURI(t))
	s := openReady(t, Options{URI: proxy.URI(), Database: testenv.Database(t), Logger: testenv.Logger(t)})
	const bulk = 5000
	for n := 0; n < finished; n += bulk {
		docs := make([]any, bulk)
		for i := range docs {
			done := job.Work{State: job.StateCompleted, Mode: job.ModeQueued, Generation: 1, Attempts: 1}
			docs[i] = bson.D{{Key: fieldJobID, Value: fmt.Sprint("done-", n+i)}, {Key: fieldDeliveries, Value: 1}, {Key: fieldFirstSeen, Value: time.UnixMilli(int64(n + i))},
				{Key: fieldWork, Value: bson.Raw(workDocument(&done, true))}}
		}
		if _, err := s.coll.InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
	in := job.Input{JobID: "due", Mode: job.ModeQueued}
	d, err := in.Delivery(0)
	testenv.Must(t, err)
	if o := s.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil {
		t.Fatal(o.Err)
	}
	var mu sync.Mutex
	var sent []bson.Raw
	note := func(x *wireproxy.Exchange) error {
		mu.Lock()
		sent = append(sent, slices.Clone(x.Command.Body))
		mu.Unlock()
		return x.Pass()
	}
	for _, name := range []string{"find", "aggregate"} {
		proxy.Add(&wireproxy.Rule{Command: name, Do: note})
	}
	claim := func(prefix string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Claim(ctx, job.ClaimRequest{RequestID: "c" + prefix, Max: 10, Lease: time.Minute, MaxBytes: 1 << 20, Prefix: prefix})
			return err
		}
	}
	list := func(q job.ListQuery) func(context.Context) error {
		return func(ctx context.Context) error {
			q.Size = job.DefaultPageSize
			_, err := s.List(ctx, q)
			return err
		}
	}
	count := func(prefix string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Count(ctx, prefix)
			return err
		}
	}
	overdue := func(prefix string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.ClaimOverdue(ctx, job.OverdueRequest{Max: 10, Lease: time.Minute, Prefix: prefix})
			return err
		}
	}
	for what, read := range map[string]struct {
		do      func(context.Context) error
		indexes []string
	}{
		"the longest due":         {func(ctx context.Context) error { _, _, err := s.LongestDue(ctx); return err }, []string{dueIndexName}},
		"claim":                   {claim(""), []string{claimIndexName, dueIndexName}},
		"claim, by prefix":        {claim("shop:"), []string{claimIndexName, groupIndexName}},
		"list":                    {list(job.ListQuery{}), []string{indexSeen}},
		"list, oldest first":      {list(job.ListQuery{Order: job.OldestFirst}), []string{indexSeen}},
		"list, by time":           {list(job.ListQuery{Filter: job.Filter{SeenFrom: time.UnixMilli(9)}}), []string{indexSeen}},
		"list, by id":             {list(job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "done-7"}}), []string{indexName}},
		"list, by state":          {list(job.ListQuery{Filter: job.Filter{State: job.StateCompleted}}), []string{indexState}},
		"list, in conflict":       {list(job.ListQuery{Filter: job.Filter{Conflicts: true}}), []string{indexConflict}},
		"list, of a state, deep":  {list(job.ListQuery{Filter: job.Filter{State: job.StateDead}, After: job.Place{Seen: 9, JobID: "x"}}), []string{indexState}},
		"count":                   {count(""), []string{indexConflict, indexSeen, indexState}},
		"count, by prefix":        {count("done-7"), []string{indexName}},
		"claim overdue":           {overdue(""), []string{expectedDueIndex}},
		"claim overdue, a prefix": {overdue("shop:"), []string{expectedGroupIndex}},
		"count overdue":           {func(ctx context.Context) error { _, err := s.CountOverdue(ctx); return err }, []string{expectedOverdueIndex}},
	} {
		mu.Lock()
		sent = nil
		mu.Unlock()
		if err := read.do(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mu.Lock()
		commands := sent
		mu.Unlock()
		used := map[string]bool{}
		for _, command := range commands {
			if coll := textOf(command.Index(0).Value()); coll == s.pausedJobs.Name() {
				continue // which is read from time to time
			}
			indexes := planned(t, s, command)
			if len(indexes) != 1 {
				t.Errorf("%s: %v goes by %v", what, command, indexes)
			}
			for _, name := range indexes {
				used[name] = true
			}
		}
		if got := slices.Sorted(maps.Keys(used)); !slices.Equal(got, read.indexes) {
			t.Errorf("%s goes by %v, want %v", what, got, read.indexes)
		}
	}
	// What changes work names its state, and its id alone is to find it.
	r, f := s.read(t.Context(), "due", false)
	if f != nil {
		t.Fatal(f)
	}
	for _, filter := range []bson.D{r.unchanged(), heldWith("due", "token")} {
		find, err := bson.Marshal(bson.D{{Key: "find", Value: s.coll.Name()}, {Key: "filter", Value: filter}})
		testenv.Must(t, err)
		if indexes := planned(t, s, find); !slices.Contains(indexes, indexName) || slices.Contains(indexes, indexState) {
			t.Errorf("%v goes by %v", filter, indexes)
		}
	}
}

// planned are the names of the indexes that the database reads for a command.
func planned(t *testing.T, s *Store, command bson.Raw) (indexes []string) {
	t.Helper()
	var ask bson.D
	elements, err := command.Elements()
	testenv.Must(t, err)
	for _, e := range elements {
		if !slices.Contains([]string{"$db", "lsid", "$clusterTime", "$readPreference", "txnNumber"}, e.Key()) {
			ask = append(ask, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	var plan bson.D
	err = s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "explain", Value: ask}, {Key: "verbosity", Value: "queryPlanner"}}).Decode(&plan)
	testenv.Must(t, err)
	seen := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case bson.D:
			stage := ""
			for _, e := range v {
				if text, ok := e.Value.(string); ok && (e.Key == "Node Type" || e.Key == "stage") {
					stage = text
				}
			}
			if stage == "COLLSCAN" || stage == "Seq Scan" {
				seen[stage] = true
			}
			for _, e := range v {
				if text, ok := e.Value.(string); ok && (e.Key == "Index Name" || e.Key == "indexName" && stage == "IXSCAN") {
					seen[text] = true
				}
				if e.Key != "rejectedPlans" {
					walk(e.Value)
				}
			}
		case bson.A:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(plan)
	return slices.Sorted(maps.Keys(seen))
}

// TestIndexesOfOthers: an index that has the name of one of ours and leaves documents out is not read by: lapsed leases would never be
// found. One that holds more serves, as that of an earlier version.
func TestIndexesOfOthers(t *testing.T) {
	due, exists := inWork(workDue), bson.D{{Key: "$exists", Value: true}}
	index := func(name string, key bson.D, partial bson.D) bson.D {
		return bson.D{{Key: "v", Value: 2}, {Key: "key", Value: key}, {Key: "name", Value: name}, {Key: "partialFilterExpression", Value: partial}}
	}
	state := bson.D{{Key: inWork(workState), Value: 1.0}, {Key: fieldFirstSeen, Value: int64(-1)}, {Key: fieldJobID, Value: -1}}
	for what, c := range map[string]struct {
		index bson.D
		want  bool
	}{
		"ours":                       {index(dueIndexName, bson.D{{Key: due, Value: 1.0}}, bson.D{{Key: due, Value: exists}}), true},
		"of an earlier version":      {index(indexState, state, bson.D{{Key: inWork(workState), Value: exists}}), true},
		"on all":                     {index(dueIndexName, bson.D{{Key: due, Value: 1}}, nil), true},
		"of another name":            {index("mine", bson.D{{Key: due, Value: -1}}, nil), true},
		"on some":                    {index(dueIndexName, bson.D{{Key: due, Value: 1}}, bson.D{{Key: inWork(workState), Value: "queued"}}), false},
		"on fewer":                   {index(dueIndexName, bson.D{{Key: due, Value: 1}}, bson.D{{Key: due, Value: exists}, {Key: "shop", Value: exists}}), false},
		"the other way round":        {index(dueIndexName, bson.D{{Key: due, Value: -1}}, bson.D{{Key: due, Value: exists}}), false},
		"on another key":             {index(dueIndexName, bson.D{{Key: fieldEvent, Value: 1}}, nil), false},
		"on more than the key":       {index(dueIndexName, bson.D{{Key: due, Value: 1}, {Key: fieldEvent, Value: 1}}, nil), false},
		"a text index under a name":  {index(dueIndexName, bson.D{{Key: due, Value: "text"}}, nil), false},
		"the unique one, looked at":  {uniqueIndex(), true},
		"that on the ids of MongoDB": {bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}, true},
	} {
		raw, err := bson.Marshal(c.index)
		testenv.Must(t, err)
		if got := servesAs(raw, append(workIndexes(), listIndexes()...)); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}

	s := openReady(t, Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Logger: testenv.Logger(t)})
	replace := func(spec bson.D) {
		testenv.Must(t, s.coll.Indexes().DropOne(t.Context(), dueIndexName))
		testenv.Must(t, s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: s.coll.Name()}, {Key: "indexes", Value: bson.A{spec}}}).Err())
	}
	work := func(want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); (s.CheckWork(t.Context()) == nil) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("work: %v", s.CheckWork(t.Context()))
			}
			s.LookNow()
		}
	}
	work(true)
	replace(index(dueIndexName, bson.D{{Key: due, Value: 1}}, bson.D{{Key: inWork(workState), Value: "queued"}})[1:])
	work(false)
	if err := s.CheckWork(t.Context()); !strings.Contains(err.Error(), dueIndexName) {
		t.Errorf("it is not said which index: %v", err)
	}
	testenv.Must(t, s.coll.Indexes().DropOne(t.Context(), dueIndexName))
	work(true)
}
