package mongostore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// openReady opens a store, and waits until it is ready.
func openReady(t *testing.T, opts Options) *Store {
	t.Helper()
	s, err := Open(opts)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	select {
	case <-s.Ready():
	case <-time.After(time.Minute):
		t.Fatal(s.Check(t.Context()))
	}
	return s
}

// grouped is a store in which no work lacks its group.
func grouped(t *testing.T) *Store {
	s := openReady(t, Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Logger: testenv.Logger(t)})
	deadline := time.After(time.Minute)
	for s.CheckWork(t.Context()) != nil || s.group(t.Context()) || !s.grouped.Load() {
		select {
		case <-deadline:
			t.Fatal(s.CheckWork(t.Context()))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return s
}

// insertDue inserts n jobs that have been due for an hour, as an older version has recorded them: without a group.
func insertDue(t *testing.T, s *Store, n int, id func(i int) any, more ...bson.E) {
	t.Helper()
	const bulk = 5000
	for from := 0; from < n; from += bulk {
		var docs []any
		for i := from; i < min(n, from+bulk); i++ {
			due := job.Work{State: job.StateQueued, Mode: job.ModeQueued, Due: s.now().Add(-time.Hour)}
			var work bson.D
			testenv.Must(t, bson.Unmarshal(workDocument(&due, true), &work))
			docs = append(docs, bson.D{{Key: fieldJobID, Value: id(i)}, {Key: fieldDeliveries, Value: 1}, {Key: fieldWork, Value: append(work, more...)}})
		}
		_, err := s.coll.InsertMany(t.Context(), docs)
		testenv.Must(t, err)
	}
}

func claimUnder(t *testing.T, s *Store, prefix string, n int) (ids []string) {
	t.Helper()
	got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: job.NewToken(), Prefix: prefix, Max: n, Lease: time.Minute, MaxBytes: 1 << 20})
	testenv.Must(t, err)
	for _, c := range got {
		ids = append(ids, c.Record.JobID)
	}
	slices.Sort(ids)
	return ids
}

// groupOf is the group that stands in the job's document; <none> when none does.
func groupOf(t *testing.T, s *Store, id any) string {
	t.Helper()
	doc, err := s.coll.FindOne(t.Context(), bson.D{{Key: fieldJobID, Value: id}}).Raw()
	testenv.Must(t, err)
	if group, ok := doc.Lookup(fieldWork, workGroup).StringValueOK(); ok {
		return group
	}
	return "<none>"
}

// TestGroupStandsWithDue: work has its group for as long as it waits or is under way.
func TestGroupStandsWithDue(t *testing.T) {
	s := grouped(t)
	want := func(when, group string) {
		t.Helper()
		if got := groupOf(t, s, "shop:eu:1"); got != group {
			t.Errorf("%s: the group is %q, want %q", when, got, group)
		}
	}
	for _, id := range []string{"shop:eu:1", "no colon", "untracked:1"} {
		in := job.Input{JobID: id, Mode: job.ModeQueued}
		if id == "untracked:1" {
			in.Mode = job.ModeUntracked
		}
		d, err := in.Delivery(0)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	want("queued", "shop")
	if a, b := groupOf(t, s, "no colon"), groupOf(t, s, "untracked:1"); a != "" || b != "<none>" {
		t.Errorf("without a colon the group is %q, untracked %q", a, b)
	}
	claim := func() string {
		got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: job.NewToken(), Prefix: "shop:eu:", Max: 1, Lease: time.Minute, MaxBytes: 1})
		if err != nil || len(got) != 1 {
			t.Fatalf("claimed %v, %v", got, err)
		}
		return got[0].Lease.Token
	}
	token := claim()
	want("claimed", "shop")
	testenv.Must(t, job.GiveBack(t.Context(), s, "shop:eu:1", token, job.Release{}))
	want("released", "shop")
	testenv.Must(t, job.Complete(t.Context(), s, "shop:eu:1", claim(), ""))
	want("completed", "<none>")
	r, err := s.Get(t.Context(), "shop:eu:1", false)
	testenv.Must(t, err)
	_, _, err = s.Requeue(t.Context(), job.Requeue{Expected: job.ExpectedOf(&r), Force: true})
	testenv.Must(t, err)
	want("requeued", "shop")
}

// TestOlderWorkGetsItsGroup: claims with a prefix find work that an older version has recorded, and it gets its group, a part at
// a time, but for what is finished meanwhile.
func TestOlderWorkGetsItsGroup(t *testing.T) {
	s := grouped(t)
	insertDue(t, s, 2*upkeepPart, func(i int) any { return fmt.Sprint("shop:", i) })
	insertDue(t, s, 1, func(int) any { return "no colon" })
	insertDue(t, s, 1, func(int) any { return int64(7) })
	insertDue(t, s, 1, func(int) any { return "bank:1" })
	s.grouped.Store(false)
	if got := claimUnder(t, s, "bank:", 5); !slices.Equal(got, []string{"bank:1"}) {
		t.Errorf("claimed %q of what has no group yet", got)
	}
	parts := 1
	for s.group(t.Context()) {
		parts++
	}
	if parts > 3 || !s.grouped.Load() { // fewer where the store's own upkeep did some
		t.Errorf("done in %d parts, want 3; over: %t", parts, s.grouped.Load())
	}
	for id, want := range map[any]string{"shop:0": "shop", fmt.Sprint("shop:", 2*upkeepPart-1): "shop", "no colon": "", int64(7): "<none>", "bank:1": "bank"} {
		if got := groupOf(t, s, id); got != want {
			t.Errorf("%v has the group %q, want %q", id, got, want)
		}
	}
	if got := claimUnder(t, s, "shop:", 5); len(got) != 5 {
		t.Errorf("claimed %q", got)
	}
	// An older version that still runs records more: the next look finds it.
	insertDue(t, s, 1, func(int) any { return "late:1" })
	if s.group(t.Context()) || groupOf(t, s, "late:1") != "late" {
		t.Errorf("the late one has the group %q", groupOf(t, s, "late:1"))
	}
}

// TestClaimUnderAPrefixLooksAtItsGroup shows the plan of a claim among much older work of other groups: 20 thousand jobs, a
// million in a long run. Their part of the index is not read.
func TestClaimUnderAPrefixLooksAtItsGroup(t *testing.T) {
	others := 20_000
	if testenv.Long() {
		others = 1_000_000
	}
	s := grouped(t)
	insertDue(t, s, others, func(i int) any { return fmt.Sprint([]string{"bank:", "shopping:"}[i%2], i) }, bson.E{Key: workGroup, Value: "bank"})
	insertDue(t, s, 20, func(i int) any { return fmt.Sprint([]string{"shop:", "shop:eu:"}[i%2], i) }, bson.E{Key: workGroup, Value: "shop"})
	for _, prefix := range []string{"shop:", "shop:eu:"} {
		r := &job.ClaimRequest{Prefix: prefix, Max: 5}
		find := bson.D{{Key: "find", Value: s.coll.Name()}, {Key: "filter", Value: append(ofGroup(job.Group(prefix)), dueFilter(time.Time{}, s.now(), s.now(), r)...)},
			{Key: "sort", Value: bson.D{{Key: inWork(workDue), Value: 1}}}, {Key: "limit", Value: examinedEach * r.Max}, {Key: "hint", Value: groupIndexName}}
		var plan bson.D
		err := s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "explain", Value: find}, {Key: "verbosity", Value: "executionStats"}}).Decode(&plan)
		testenv.Must(t, err)
		text := fmt.Sprint(plan)
		if !strings.Contains(text, groupIndexName) || strings.Contains(text, "COLLSCAN") || strings.Contains(text, "Seq Scan") || strings.Contains(text, indexName+" ") {
			t.Errorf("the plan under %q does not go through the index alone:\n%s", prefix, text)
		}
		// MongoDB counts; DocumentDB shows what part of the index it reads.
		raw, err := bson.Marshal(plan)
		testenv.Must(t, err)
		if n, counted := bson.Raw(raw).Lookup("executionStats", "totalKeysExamined").AsInt64OK(); counted && n > int64(examinedEach*r.Max) {
			t.Errorf("a claim of %d under %q looks at %d keys", r.Max, prefix, n)
		} else if !counted && !strings.Contains(text, `\"work.group\": [\"shop\", \"shop\"]`) {
			t.Errorf("the plan under %q reads other groups:\n%s", prefix, text)
		}
	}
	if got := claimUnder(t, s, "shop:eu:", 3); len(got) != 3 {
		t.Errorf("claimed %q", got)
	}
	if got := claimUnder(t, s, "nobody:", 3); len(got) != 0 {
		t.Errorf("claimed %q", got)
	}
}

// TestGroupIndexOfAnotherName: an index on the same key that somebody has made by another name does.
func TestGroupIndexOfAnotherName(t *testing.T) {
	s := grouped(t)
	testenv.Must(t, s.coll.Indexes().DropOne(t.Context(), groupIndexName))
	_, err := s.coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: inWork(workGroup), Value: 1}, {Key: inWork(workDue), Value: 1}},
		Options: options.Index().SetName("mine").SetPartialFilterExpression(bson.D{{Key: inWork(workDue), Value: bson.D{{Key: "$exists", Value: true}}}})})
	testenv.Must(t, err)
	insertDue(t, s, 3, func(i int) any { return fmt.Sprint("shop:", i) }, bson.E{Key: workGroup, Value: "shop"})
	if got := claimUnder(t, s, "shop:", 3); len(got) != 3 {
		t.Errorf("claimed %q", got)
	}
}
