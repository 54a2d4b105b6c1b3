package mongostore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

const event = `{"job_id":"job_1","event":"job.completed","status":"OK","at":1700000000123,"price":0.1,"big":9007199254740991,` +
	`"n":-7,"list":[1,1.5,null,true,"é"],"nested":{"$set":{"a.b":1}},"empty":{}}`

func bodyOf(text string) job.Body { return job.Body{Kind: job.BodyText, Data: text} }

// wantSameJSON compares values, with numbers as they stand.
func wantSameJSON(t *testing.T, got, want string) {
	t.Helper()
	parse := func(text string) (v any) {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return v
	}
	if diff := cmp.Diff(parse(want), parse(got)); diff != "" {
		t.Errorf("not the same JSON (-want +got):\n%s", diff)
	}
}

// TestScriptFirst: JobOnce comes to a collection that a script has filled, whose records are as good as its own.
func TestScriptFirst(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	frontend := startScript(t, uri, database)
	if !frontend.record(t, event) || frontend.record(t, event) {
		t.Fatal("the script alone is not first once")
	}
	s := open(t, mongostore.Options{URI: uri, Database: database})
	if names := uniqueIndexes(t, collection(t, uri, database)); !slices.Equal(names, []string{frontend.index}) {
		t.Errorf("indexes %q, the script's is %q", names, frontend.index)
	}
	o := recordOne(t, s, job.Input{Body: bodyOf(event)}, job.Duplicate, 3)
	if o.Verdict.StartWork || o.Verdict.FirstDelivery || o.Verdict.Conflict != nil {
		t.Errorf("the verdict on the script's job: %+v", o.Verdict)
	}
	// Without a fingerprint nobody can say that the content differs; event and status can be compared.
	other := `{"job_id":"job_1","event":"job.completed","status":"OK","other":true}`
	if o := recordOne(t, s, job.Input{Body: bodyOf(other)}, job.Duplicate, 4); o.Verdict.Conflict != nil {
		t.Errorf("other content: %+v", o.Verdict.Conflict)
	}
	failed := `{"job_id":"job_1","event":"job.failed","status":"ERROR"}`
	o = recordOne(t, s, job.Input{Body: bodyOf(failed)}, job.Duplicate, 5)
	if c := o.Verdict.Conflict; c == nil || c.Kind != job.ConflictEvent || c.Status != "ERROR" {
		t.Errorf("another status: %+v", c)
	}
	r, err := s.Get(t.Context(), "job_1", true)
	testenv.Must(t, err)
	wantSameJSON(t, r.Body.Data, event)
	if r.Event != "job.completed" || r.Status != "OK" || r.FirstSeen.IsZero() || r.Deliveries != 5 || r.Conflicts != 1 ||
		r.Work.State != job.StateUntracked {
		t.Errorf("the script's job reads %+v", r)
	}
	if frontend.record(t, event) {
		t.Error("the script is first a second time")
	}
}

// TestJobOnceFirst: a script is started on JobOnce's collection, finds its index, and reads its records like its own.
func TestJobOnceFirst(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	s := open(t, mongostore.Options{URI: uri, Database: database})
	first := recordOne(t, s, job.Input{Body: bodyOf(event), RequestID: "r"}, job.First, 1)
	frontend := startScript(t, uri, database)
	if names := uniqueIndexes(t, collection(t, uri, database)); !slices.Equal(names, []string{frontend.index}) {
		t.Errorf("indexes %q, the script's is %q", names, frontend.index)
	}
	if frontend.record(t, event) {
		t.Error("the script is first")
	}
	a := frontend.read(t, "job_1")
	d := a.Document
	if d.Event != "job.completed" || d.Status != "OK" || d.Deliveries != 2 || !d.FirstSeen.Equal(first.Record.FirstSeen) {
		t.Errorf("the script reads %+v", d)
	}
	if a.Types.FirstSeen != "date" || a.Types.Deliveries != "number" {
		t.Errorf("the script reads the types %+v", a.Types)
	}
	wantSameJSON(t, string(d.Payload), event)
	recordOne(t, s, job.Input{Body: bodyOf(event), RequestID: "r"}, job.First, 3) // the lost answer
}

// TestRaceWithScript: the script and two instances of JobOnce get the same jobs at the same time.
func TestRaceWithScript(t *testing.T) {
	const wave = 50
	ids := 500
	if testenv.Long() {
		ids = 5000
	}
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	frontend := startScript(t, uri, database)
	var instances []*batch.Store
	for range 2 {
		s := open(t, mongostore.Options{URI: uri, Database: database})
		instances = append(instances, batch.New(s, batch.Config{Lanes: 2, Logger: testenv.Logger(t)}))
	}
	firsts, calls := make([]int, ids), make([]int64, ids)
	byScript := 0
	for start := 0; start < ids; start += wave {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, s := range instances {
			for i := start; i < start+wave; i++ {
				d := delivery(t, job.Input{Body: bodyOf(raceEvent(i))})
				wg.Go(func() {
					o := s.RecordOne(t.Context(), d)
					mu.Lock()
					defer mu.Unlock()
					calls[i]++
					if o.Err != nil {
						t.Errorf("%s: %v", d.JobID, o.Err)
					} else if o.Verdict.StartWork {
						firsts[i]++
					}
				})
			}
		}
		answers := make([]<-chan answer, wave)
		for i := range answers {
			answers[i] = frontend.send(t, map[string]any{"record": json.RawMessage(raceEvent(start + i))})
		}
		for i, c := range answers {
			a := frontend.await(t, c)
			for tries := 1; a.Code != 0; tries++ {
				// A failed call was not applied. Its provider would deliver again.
				if tries == 50 {
					t.Fatalf("seed.mjs fails on %d: %s", start+i, a.Error)
				}
				a = frontend.await(t, frontend.send(t, map[string]any{"record": json.RawMessage(raceEvent(start + i))}))
			}
			mu.Lock()
			calls[start+i]++
			if a.First {
				firsts[start+i]++
				byScript++
			}
			mu.Unlock()
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	for i := range ids {
		r, err := instances[0].Get(t.Context(), fmt.Sprintf("race-%d", i), false)
		if err != nil {
			t.Fatal(errors.Join(err, fmt.Errorf("race-%d", i)))
		}
		if firsts[i] != 1 || r.Deliveries != calls[i] {
			t.Errorf("%s: %d were first, %d deliveries for %d calls", r.JobID, firsts[i], r.Deliveries, calls[i])
		}
		if scripts := r.RequestID == ""; scripts != (r.Fingerprint == "") {
			t.Errorf("%s is of two writers: %+v", r.JobID, r)
		}
	}
	t.Logf("the script was first on %d of %d jobs", byScript, ids)
}

func raceEvent(i int) string {
	return fmt.Sprintf(`{"job_id":"race-%d","event":"job.completed","status":"OK"}`, i)
}

// TestScriptRewrites: a record whose numbers a script's driver has made others is still the body that was received.
func TestScriptRewrites(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	s := open(t, mongostore.Options{URI: uri, Database: database})
	recordOne(t, s, job.Input{Body: bodyOf(event)}, job.First, 1)
	frontend := startScript(t, uri, database)
	if a := frontend.await(t, frontend.send(t, map[string]any{"rewrite": "job_1"})); a.Error != "" {
		t.Fatal(a.Error)
	}
	doc := documentOf(t, collection(t, uri, database), "job_1")
	if at := doc.Lookup("payload", "at").Type; at != bson.TypeDouble || doc.Lookup("payload_text").Type != 0 {
		t.Errorf("nothing was rewritten, or the text was kept: %v", doc)
	}
	wantGet(t, s, "job_1", event, false)
}
