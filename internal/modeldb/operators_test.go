package modeldb_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// office is a database and two stores on it, the second of which is another instance.
type office struct {
	t             *testing.T
	db            *modeldb.Server
	clock         *testenv.Clock
	store, others *mongostore.Store
}

func openOffice(t *testing.T, kind modeldb.Deployment) *office {
	t.Helper()
	o := &office{t: t, db: modeldb.New(kind), clock: testenv.NewClock()}
	for i, s := range []**mongostore.Store{&o.store, &o.others} {
		*s = open(t, mongostore.Options{URI: o.db.URI(), Dialer: o.db.Dialer(i), Now: o.clock.Now, PausesEvery: time.Hour, Logger: testenv.Logger(t)})
	}
	t.Cleanup(func() {
		for _, what := range o.db.Strange() {
			t.Error(what)
		}
	})
	return o
}

func (o *office) record(s *mongostore.Store, ids ...string) {
	o.t.Helper()
	for _, id := range ids {
		d, err := job.Input{JobID: id, Body: job.Body{Kind: job.BodyText, Data: "text"}}.Delivery(1 << 20)
		testenv.Must(o.t, err)
		testenv.Must(o.t, s.Record(o.t.Context(), []job.Delivery{d})[0].Err)
	}
}

func (o *office) expect(s *mongostore.Store, id string, giveUp time.Duration) {
	o.t.Helper()
	overdue := time.Duration(0)
	req, err := job.NewExpectRequest(id, "https://provider.example/", &overdue, &giveUp)
	testenv.Must(o.t, err)
	_, recorded, err := s.Expect(o.t.Context(), req)
	if err != nil || recorded {
		o.t.Fatalf("expected %s: recorded %t, %v", id, recorded, err)
	}
}

func (o *office) deletion(kind job.DeleteKind, id string) job.Deletion {
	o.t.Helper()
	r, err := o.others.Get(o.t.Context(), id, false)
	testenv.Must(o.t, err)
	return job.Deletion{Expected: job.ExpectedOf(&r), Kind: kind}
}

func (o *office) there(id string) bool {
	_, err := o.others.Get(o.t.Context(), id, false)
	return err == nil
}

// during does something while each command of the first store waits for meet, which is told of them one by one, and answers them.
func (o *office) during(do func(), meet func(c *modeldb.Call)) {
	o.db.Hold(true)
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	for met := map[*modeldb.Call]bool{}; ; {
		for again := true; again; { // meeting one may have let another come unnoticed
			again = false
			for _, c := range o.db.Calls() {
				again = again || !met[c]
				met[c] = true
				meet(c)
			}
		}
		select {
		case <-o.db.Arrived():
		case <-done:
			o.db.Hold(false)
			return
		}
	}
}

// answer answers a command, with a fault on the way. One whose connection is cut is executed all the same.
func (o *office) answer(c *modeldb.Call, f modeldb.Fault) {
	o.db.Answer(c, f, func(bson.Raw) {})
	if f.Kind == modeldb.Cut && c.Writes() {
		o.db.Answer(c, modeldb.Fault{}, nil)
	}
}

// ofJobs tells whether a command is of the collection of the jobs.
func ofJobs(c *modeldb.Call) bool {
	return c.Body.Lookup(c.Name).StringValue() == mongostore.DefaultCollection
}

// TestDeletedTogether: whatever becomes of a bulk of deletions, each is told as deleted that this call has made, once, and what
// others have deleted is not.
func TestDeletedTogether(t *testing.T) {
	for _, kind := range []modeldb.Deployment{modeldb.Standalone, modeldb.ReplicaSet} {
		for name, fault := range map[string]modeldb.Fault{
			"all is well": {}, "the connection ends": {Kind: modeldb.Cut}, "stopped after one": {Kind: modeldb.Stopped, Item: 1},
			"one of them failed": {Kind: modeldb.ItemFailed, Item: 1}, "refused": {Kind: modeldb.Refused},
			"somebody else is faster with one": {}, "one is delivered again": {},
		} {
			for what, kindOf := range map[string]job.DeleteKind{"jobs": job.DeleteJob, "payloads": job.DropPayload} {
				t.Run(strings.Join([]string{kind.String(), name, what}, ", "), func(t *testing.T) {
					o := openOffice(t, kind)
					ids := []string{"a", "b", "c"}
					o.record(o.store, ids...)
					o.clock.Advance(48 * time.Hour)
					var ds []job.Deletion
					for _, id := range ids {
						d := o.deletion(kindOf, id)
						d.ActiveBefore, d.Deliveries = o.clock.Now().Add(-time.Hour), 1
						ds = append(ds, d)
					}
					var outcomes []job.DeleteOutcome
					var once sync.Once
					o.during(func() { outcomes = o.store.Delete(context.Background(), ds) }, func(c *modeldb.Call) {
						f := modeldb.Fault{}
						if c.Client == 0 && c.Writes() && ofJobs(c) && len(c.Items()) == len(ids) {
							once.Do(func() {
								f = fault
								meanwhile := map[string]func(){
									"somebody else is faster with one": func() { o.others.Delete(context.Background(), ds[:1]) },
									"one is delivered again":           func() { o.record(o.others, "a") },
								}[name]
								if meanwhile != nil {
									o.beside(meanwhile)
								}
							})
						}
						o.answer(c, f)
					})
					deleted, want := 0, len(ids)
					for i, got := range outcomes {
						if got.Deleted {
							deleted++
						}
						again := i == 0 && name == "one is delivered again"
						if (got.Err != nil) != again || kindOf == job.DeleteJob && o.there(ids[i]) != again {
							t.Errorf("%s: %+v", ids[i], got)
						}
					}
					if name == "one is delivered again" || name == "somebody else is faster with one" {
						want--
					}
					if deleted != want {
						t.Errorf("%d were deleted, and were told so: %+v", want, outcomes)
					}
				})
			}
		}
	}
}

// beside lets the other instance do something while the first one's commands wait.
func (o *office) beside(do func()) {
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	for {
		for _, c := range o.db.Calls() {
			if c.Client == 1 {
				o.answer(c, modeldb.Fault{})
			}
		}
		select {
		case <-o.db.Arrived():
		case <-done:
			return
		}
	}
}

// TestRecordedAnewInTheSameMillisecond: a deletion of which nobody knows whether it was made does not touch the job that was recorded
// since, though that is the same in all but who recorded it.
func TestRecordedAnewInTheSameMillisecond(t *testing.T) {
	for _, late := range []bool{false, true} {
		o := openOffice(t, modeldb.Standalone)
		o.record(o.store, "j")
		d := o.deletion(job.DeleteJob, "j")
		var outcome job.DeleteOutcome
		var first *modeldb.Call
		again := false
		o.during(func() { outcome = o.store.Delete(context.Background(), []job.Deletion{d})[0] }, func(c *modeldb.Call) {
			switch {
			case c == first: // it is executed last
			case c.Name == "delete" && ofJobs(c) && first == nil:
				first = c
				o.db.Answer(c, modeldb.Fault{Kind: modeldb.Cut}, func(bson.Raw) {})
				if !late {
					o.db.Answer(c, modeldb.Fault{}, nil)
					o.beside(func() { o.record(o.others, "j") })
				}
			default:
				o.answer(c, modeldb.Fault{})
				if late && c.Name == "delete" && ofJobs(c) {
					again = true
					o.beside(func() { o.record(o.others, "j") })
					o.db.Answer(first, modeldb.Fault{}, nil)
				}
			}
		})
		if !outcome.Deleted || outcome.Err != nil || !o.there("j") || first == nil || late != again {
			t.Errorf("executed late: %t: %+v, the job recorded since is there: %t", late, outcome, o.there("j"))
		}
	}
}

// TestGivenUpIsTold: who has given an expectation up tells of it also when the answer to that was lost: nobody else will.
func TestGivenUpIsTold(t *testing.T) {
	o := openOffice(t, modeldb.Standalone)
	for _, id := range []string{"given up", "to be polled"} {
		o.expect(o.store, id, map[string]time.Duration{"given up": time.Hour, "to be polled": 1000 * time.Hour}[id])
	}
	o.clock.Advance(2 * time.Hour)
	var got job.Overdue
	var err error
	o.during(func() {
		got, err = o.store.ClaimOverdue(context.Background(), job.OverdueRequest{Max: 10, Lease: time.Minute})
	}, func(c *modeldb.Call) {
		if c.Writes() {
			o.answer(c, modeldb.Fault{Kind: modeldb.Cut})
			return
		}
		o.answer(c, modeldb.Fault{})
	})
	if err != nil || len(got.GivenUp) != 1 || got.GivenUp[0].JobID != "given up" || len(got.Jobs) != 1 || got.Jobs[0].JobID != "to be polled" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestPausesOfADeposedPrimary: what an operator is told of a pause is true at that moment, though the member that is asked was
// deposed and does not know it.
func TestPausesOfADeposedPrimary(t *testing.T) {
	for name, c := range map[string]struct{ before, meanwhile, then string }{
		"paused, though it was resumed": {"pause", "resume", "pause"},
		"resumed, though it was paused": {"", "pause", "resume"},
		"listed, though it was paused":  {"", "pause", "list"},
		"listed, though it was resumed": {"pause", "resume", "list"},
	} {
		t.Run(name, func(t *testing.T) {
			o := openOffice(t, modeldb.ReplicaSet)
			do := func(s *mongostore.Store, what string) (was bool) {
				var err error
				switch what {
				case "pause":
					_, err = s.Pause(t.Context(), "shop:", "")
				case "resume":
					was, err = s.Unpause(t.Context(), "shop:")
				case "list": // as the store itself reads them
					var pauses []job.Pause
					pauses, err = s.Pauses(t.Context())
					was = len(pauses) > 0
				}
				testenv.Must(t, err)
				return was
			}
			do(o.others, c.before)
			o.db.Depose(0, true)
			do(o.others, c.meanwhile)
			was := do(o.store, c.then)
			pauses, err := o.others.Pauses(t.Context())
			testenv.Must(t, err)
			is := c.then
			if is == "list" {
				is = c.meanwhile
			}
			if (len(pauses) == 1) != (is == "pause") || c.then == "resume" && !was || c.then == "list" && was != (is == "pause") {
				t.Errorf("after %s there is %+v; was it paused: %t", c.then, pauses, was)
			}
		})
	}
}

// TestPausedWorkIsPassedOver: a claim looks at what is paused in front of it once, and again when the pauses have changed.
func TestPausedWorkIsPassedOver(t *testing.T) {
	o := openOffice(t, modeldb.Standalone)
	record := func(id string) {
		d, err := job.Input{JobID: id, Mode: job.ModeQueued}.Delivery(1)
		testenv.Must(t, err)
		testenv.Must(t, o.others.Record(t.Context(), []job.Delivery{d})[0].Err)
		o.clock.Advance(time.Hour)
	}
	claim := func(whole bool, want ...string) {
		t.Helper()
		var got []job.Claimed
		var err error
		looks := 0
		o.during(func() {
			got, err = o.store.Claim(context.Background(), job.ClaimRequest{RequestID: job.NewToken(), Max: 10, MaxBytes: 1 << 20, Lease: time.Minute})
		}, func(c *modeldb.Call) {
			if due, err := c.Body.LookupErr("filter", "work.due", "$lte"); c.Name == "find" && err == nil && due.Type != 0 {
				_, err := c.Body.LookupErr("filter", "work.due", "$gte")
				if looks++; looks == 1 && (err != nil) != whole {
					t.Errorf("it looks at all that is due: %t, want %t", err != nil, whole)
				}
			}
			o.answer(c, modeldb.Fault{})
		})
		testenv.Must(t, err)
		var ids []string
		for _, c := range got {
			ids = append(ids, c.Record.JobID)
		}
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("claimed %v, want %v", ids, want)
		}
	}
	pause := func(s *mongostore.Store, prefix string) {
		_, err := s.Pause(t.Context(), prefix, "")
		testenv.Must(t, err)
	}
	record("a:1")
	record("b:1")
	pause(o.store, "a:")
	claim(true, "b:1")
	record("b:2")
	record("a:2")
	claim(false, "b:1", "b:2") // the lease of b:1 has lapsed
	claim(false)
	pause(o.store, "c:")
	claim(true)
	_, err := o.store.Unpause(t.Context(), "a:")
	testenv.Must(t, err)
	claim(true, "a:1", "a:2")
}
