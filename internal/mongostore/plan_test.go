package mongostore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestClaimsUseTheIndexes shows the query plans of a claim among many finished jobs: 20 thousand of them, a million in a
// long run. They lack the fields, so the indexes do not hold them and the claim does not look at them.
func TestClaimsUseTheIndexes(t *testing.T) {
	finished := 20_000
	if testenv.Long() {
		finished = 1_000_000
	}
	s, err := Open(Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	select {
	case <-s.Ready():
	case <-time.After(time.Minute):
		t.Fatal(s.Check(t.Context()))
	}
	const bulk = 5000
	for n := 0; n < finished; n += bulk {
		docs := make([]any, bulk)
		for i := range docs {
			done := job.Work{State: job.StateCompleted, Mode: job.ModeQueued, Generation: 1, Attempts: 1}
			docs[i] = bson.D{{Key: fieldJobID, Value: fmt.Sprint("done-", n+i)}, {Key: fieldDeliveries, Value: 1},
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
	for field, find := range map[string]bson.D{
		workDue: {{Key: "find", Value: s.coll.Name()}, {Key: "filter", Value: dueFilter(time.Time{}, s.now().Add(time.Minute), s.now(), &job.ClaimRequest{})},
			{Key: "sort", Value: bson.D{{Key: inWork(workDue), Value: 1}}}, {Key: "limit", Value: 10}},
		workClaimID: {{Key: "find", Value: s.coll.Name()}, {Key: "filter", Value: heldBy(&job.ClaimRequest{RequestID: "c"}, s.now())}},
	} {
		var plan bson.Raw
		err := s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "explain", Value: find}}).Decode(&plan)
		testenv.Must(t, err)
		if text := plan.String(); !strings.Contains(text, inWork(field)+"_1") || strings.Contains(text, "COLLSCAN") {
			t.Errorf("the plan does not go through the index on %s:\n%s", inWork(field), text)
		}
	}
	got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "c", Max: 10, Lease: time.Minute, MaxBytes: 1 << 20})
	if err != nil || len(got) != 1 || got[0].Record.JobID != "due" {
		t.Errorf("claimed %+v, %v", got, err)
	}
}
