package mongostore

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/retention"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestMillionJobs measures what operators do among a million jobs, for docs/operations.md: 98 in 100 are finished, one in a
// thousand is dead. What it holds is how many documents are looked at, not the time.
func TestMillionJobs(t *testing.T) {
	if !testenv.Long() {
		t.Skip("only in a long run")
	}
	const jobs = 1_000_000
	clock := testenv.NewClock()
	s := openReady(t, Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Now: clock.Now, Logger: slog.New(slog.DiscardHandler)})
	began := job.Millis(clock.Now())
	start := time.Now()
	fillMillion(t, s, jobs, began)
	analyse(t)
	t.Logf("written after %v", time.Since(start).Round(time.Second))
	clock.Advance(24 * time.Hour)
	measure := func(what string, most int, f func() (examined int, err error)) {
		t.Helper()
		start := time.Now()
		examined, err := f()
		t.Logf("%-32s %10v %8d examined", what, time.Since(start).Round(100*time.Microsecond), examined)
		if err != nil || examined > most {
			t.Errorf("%s: %d examined, %v; want %d at most", what, examined, err, most)
		}
	}
	list := func(what string, most int, q job.ListQuery) {
		t.Helper()
		q.Size = job.DefaultPageSize
		measure(what, most, func() (int, error) {
			page, err := s.List(t.Context(), q)
			return page.Examined, err
		})
		looked, told := examinedBy(t, s, &q)
		if told {
			t.Logf("%-32s %+v", "", looked)
		}
		if limit := int64(job.NewPager(&q).Limit()); looked.TotalDocsExamined > limit || looked.TotalKeysExamined > limit+1 {
			t.Errorf("%s: %+v, want %d at most", what, looked, limit)
		}
	}
	const page = job.DefaultPageSize
	deep := job.Place{Seen: began.UnixMilli() + jobs/10, JobID: "x"}
	list("newest first", page, job.ListQuery{})
	list("newest first, deep", page, job.ListQuery{After: deep})
	for _, state := range []job.WorkState{job.StateQueued, job.StateCompleted, job.StateDead} {
		list("newest "+state.String(), page, job.ListQuery{Filter: job.Filter{State: state}})
	}
	list("newest untracked", 2*page, job.ListQuery{Filter: job.Filter{State: job.StateUntracked}})
	list("dead, deep", page, job.ListQuery{Filter: job.Filter{State: job.StateDead}, After: deep})
	list("in conflict", page, job.ListQuery{Filter: job.Filter{Conflicts: true}})
	list("by time", page, job.ListQuery{Filter: job.Filter{SeenBefore: began.Add(jobs / 2 * time.Millisecond)}})
	list("by id and prefix", page, job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "shop:"}})
	list("one that finds nothing", page*job.ExaminedPerJob, job.ListQuery{Filter: job.Filter{Prefix: "none:"}})
	measure("count", 0, func() (int, error) { _, err := s.Count(t.Context(), ""); return 0, err })
	keeper := retention.New(retention.Config{Policy: retention.Policy{Payload: 24*time.Hour - time.Second}, Now: clock.Now, Logger: slog.New(slog.DiscardHandler)}, s)
	pass := func() (int, error) { r, err := keeper.Pass(t.Context()); t.Logf("%+v", r); return r.Examined, err }
	measure("retention, 989 payloads", 1600, pass)
	measure("retention, nothing to do", 10, pass)
}

// examined is how many keys of an index, and documents, a find looked at.
type examined struct{ TotalKeysExamined, TotalDocsExamined int64 }

// examinedBy explains the query for a page; told tells whether the database says what that took. The test database
// does not.
func examinedBy(t *testing.T, s *Store, q *job.ListQuery) (e examined, told bool) {
	t.Helper()
	filter, sort, index := listFilter(q)
	find := bson.D{{Key: "find", Value: s.coll.Name()}, {Key: "filter", Value: filter}, {Key: "sort", Value: sort}, {Key: "limit", Value: job.NewPager(q).Limit()},
		{Key: "hint", Value: index}}
	var plan struct{ ExecutionStats *examined }
	err := s.coll.Database().RunCommand(t.Context(), bson.D{{Key: "explain", Value: find}, {Key: "verbosity", Value: "executionStats"}}).Decode(&plan)
	testenv.Must(t, err)
	if plan.ExecutionStats == nil {
		return e, false
	}
	return *plan.ExecutionStats, true
}

// analyse has testdb's PostgreSQL look at what it holds: it plans badly for a collection that was empty a moment ago. MongoDB needs
// no such thing.
func analyse(t *testing.T) {
	t.Helper()
	dir := os.Getenv("JOBONCE_TEST_DB_DIR")
	if dir == "" {
		return
	}
	root, err := os.ReadFile(filepath.Join(dir, "root"))
	testenv.Must(t, err)
	port, err := os.ReadFile(filepath.Join(dir, "port"))
	testenv.Must(t, err)
	socket := filepath.Join(strings.TrimSpace(string(root)), "var/lib/postgresql", "db-"+strings.TrimSpace(string(port)))
	out, err := exec.Command("psql", "-h", socket, "-p", "5432", "-U", "postgres", "-c", "ANALYZE").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// fillMillion writes jobs that were first seen one a millisecond from a time on: half of them untracked, one in a hundred queued, one
// in a thousand dead, one in five thousand in conflict, and the others completed.
func fillMillion(t *testing.T, s *Store, jobs int, from time.Time) {
	t.Helper()
	const bulk = 2000
	var writers errgroup.Group
	writers.SetLimit(2)
	for begin := 0; begin < jobs; begin += bulk {
		writers.Go(func() error {
			docs := make([]any, bulk)
			for n := range docs {
				i := begin + n
				seen := from.Add(time.Duration(i) * time.Millisecond)
				in := job.Input{JobID: fmt.Sprintf("%s:%08x", []string{"shop", "bank"}[i%2], uint32(i)*2654435761), Event: "job.completed", Status: "OK",
					RequestID: "r", Source: "webhook", Mode: job.ModeQueued, Body: job.Body{Kind: job.BodyText, Data: fmt.Sprintf(`{"number":%d,"text":"%0270d"}`, i, i)}}
				if i%2 == 1 {
					in.Mode = job.ModeUntracked
				}
				d, err := in.Delivery(job.MaxBodyBytes)
				if err != nil {
					return err
				}
				r := d.NewRecord(seen)
				r.Deliveries, r.LastSeen = 1, seen
				switch {
				case i%2 == 1 || i%100 == 2:
				case i%1000 == 0:
					r.Work.State, r.Work.Due = job.StateDead, time.Time{}
				default:
					r.Work.State, r.Work.Due = job.StateCompleted, time.Time{}
				}
				if i%5000 == 0 {
					r.Conflicts, r.LastConflict = 1, &job.Conflict{Kind: job.ConflictEvent, Event: "e", Status: "s", Time: seen}
				}
				update, _ := copyOf(&r, s.embedding())
				stored, err := update.Lookup("$setOnInsert").Document().Elements()
				if err != nil {
					return err
				}
				doc := bson.D{{Key: fieldJobID, Value: r.JobID}}
				for _, e := range stored {
					doc = append(doc, bson.E{Key: e.Key(), Value: e.Value()})
				}
				docs[n] = doc
			}
			_, err := s.coll.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	testenv.Must(t, writers.Wait())
}
