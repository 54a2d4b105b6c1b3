package mongostore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

func unique(name string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "job_id", Value: 1.0}}},
		{Key: "name", Value: name}, {Key: "unique", Value: true}}, more...)
}

// openFake opens a store on a scripted server.
func openFake(t *testing.T, f *fakeServer) (*mongostore.Store, *logs) {
	return openLogged(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true&serverSelectionTimeoutMS=2000"})
}

// isUnique tells whether a createIndexes is that of the unique index.
func isUnique(command bson.Raw) bool {
	spec := command.Lookup("indexes", "0").Document()
	unique, _ := spec.Lookup("unique").BooleanOK()
	return unique
}

// hold makes createIndexes of the indexes that match wait, until the test calls release or ends. held hears of each.
func (f *fakeServer) hold(t *testing.T, match func(bson.Raw) bool) (held <-chan bson.Raw, release func()) {
	waiting, free := make(chan bson.Raw, 100), make(chan struct{})
	release = sync.OnceFunc(func() { close(free) })
	t.Cleanup(release)
	f.answerWith("createIndexes", func(command bson.Raw) bson.D {
		if match(command) {
			waiting <- command
			<-free
		}
		return f.createIndexes(command)
	})
	return waiting, release
}

// next is the next command that is held.
func next(t *testing.T, held <-chan bson.Raw) bson.Raw {
	t.Helper()
	select {
	case command := <-held:
		return command
	case <-time.After(30 * time.Second):
		t.Fatal("nobody sends createIndexes")
		return nil
	}
}

// refuseHints makes the server refuse every hint.
func (f *fakeServer) refuseHints(code int32) {
	f.answer(probe, bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(0)}, {Key: "writeErrors", Value: bson.A{bson.D{
		{Key: "index", Value: int32(0)}, {Key: "code", Value: code}, {Key: "errmsg", Value: "planner returned error: bad hint"}}}}})
}

func (f *fakeServer) takeHints() {
	f.answer(probe, bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(0)}, {Key: "nModified", Value: int32(0)}})
}

func wantUnready(t *testing.T, s *mongostore.Store, reason string) {
	t.Helper()
	err := s.Check(t.Context())
	wantUnavailable(t, err)
	if !strings.Contains(err.Error(), reason) {
		t.Errorf("Check does not say %q: %v", reason, err)
	}
	wantUnavailable(t, s.Record(t.Context(), []job.Delivery{delivery(t, job.Input{JobID: "a"})})[0].Err)
}

// TestIndexUnderConstruction: listIndexes names an index that another process is making, and duplicates get in until it is
// finished. createIndexes waits for it.
func TestIndexUnderConstruction(t *testing.T) {
	f := startFake(t, nil)
	f.setIndexes(unique("once_per_job", bson.E{Key: "hidden", Value: false}))
	held, release := f.hold(t, isUnique)
	s, l := openFake(t, f)
	command := next(t, held)
	spec := command.Lookup("indexes", "0").Document()
	if hidden, ok := spec.Lookup("hidden").BooleanOK(); spec.Lookup("name").StringValue() != "once_per_job" || !ok || hidden {
		t.Errorf("not asked for as it was found: %s", spec)
	}
	l.await(t, "is being made")
	wantUnready(t, s, "is being made")
	// The looks go on meanwhile: what changes is noticed.
	f.setIndexes(unique("once_per_job", bson.E{Key: "sparse", Value: true}))
	l.await(t, "it is sparse")
	wantUnready(t, s, "it is sparse")
	f.setIndexes(unique("once_per_job"))
	l.await(t, "is being made")
	wantUnready(t, s, "is being made")
	release()
	awaitReady(t, s)
}

// TestCreateIndexesRefused: what the look has found decides.
func TestCreateIndexesRefused(t *testing.T) {
	options, specs := failure(85, "IndexOptionsConflict", "exists with other options"), failure(86, "IndexKeySpecsConflict", "same name")
	denied := failure(13, "Unauthorized", "not authorized on app")
	other := bson.D{{Key: "key", Value: bson.D{{Key: "other", Value: 1}}}, {Key: "name", Value: "job_id_1"}}
	named := func(name string, fields ...string) bson.D {
		var key bson.D
		for _, field := range fields {
			key = append(key, bson.E{Key: field, Value: 1})
		}
		return bson.D{{Key: "key", Value: key}, {Key: "name", Value: name}}
	}
	work := []bson.D{named("work.due_1", "work.due"), named("work.claim_id_1", "work.claim_id"), named("work.group_1_work.due_1", "work.group", "work.due")}
	for name, c := range map[string]struct {
		indexes []bson.D
		refusal bson.D
		hints   int32 // the code that refuses them
		reason  string
	}{
		"85 for one that is there":             {indexes: []bson.D{unique("x")}, refusal: options},
		"86 for one that is there":             {indexes: []bson.D{unique("job_id_1")}, refusal: specs},
		"85 for none":                          {refusal: options, reason: "exists with other options"},
		"86 for none, the name taken":          {indexes: []bson.D{other}, refusal: specs, reason: "another index has its name"},
		"13 for one that is there":             {indexes: []bson.D{unique("x")}, refusal: denied},
		"13 for none":                          {refusal: denied, reason: "role in docs/mongodb.md"},
		"13 for one that takes no hint":        {indexes: []bson.D{unique("x")}, refusal: denied, hints: 2, reason: "cannot be used"},
		"13 for one that is not found by hint": {indexes: []bson.D{unique("x")}, refusal: denied, hints: 27, reason: "cannot be used"},
		"13 for a hidden one":                  {indexes: []bson.D{unique("x", bson.E{Key: "hidden", Value: true})}, refusal: denied, hints: 2},
		"13, and no hints at all":              {indexes: []bson.D{unique("x")}, refusal: denied, hints: 9},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, nil)
			f.setIndexes(append(c.indexes, work...)...)
			f.answer("createIndexes", c.refusal)
			if c.hints != 0 {
				f.refuseHints(c.hints)
			}
			s, l := openFake(t, f)
			if c.reason != "" {
				l.await(t, c.reason)
				wantUnready(t, s, c.reason)
				f.setIndexes(append(work, unique("later"))...)
				f.takeHints()
			}
			awaitReady(t, s)
			testenv.OK(t, s.CheckWork(t.Context()))
			said, want := l.whole(), 0
			if c.refusal[1].Value == int32(13) {
				want = 1
			}
			if n := strings.Count(said, "a build of the unique index that is under way may not be seen"); n != want {
				t.Errorf("warned %d times, want %d:\n%s", n, want, said)
			}
		})
	}
}

// TestCommitQuorum: on a replica set a member that is down must not hold the index up, and a standalone knows no quorum.
func TestCommitQuorum(t *testing.T) {
	for kind, hello := range map[string]bson.D{
		"standalone":      {},
		"replica set":     {{Key: "setName", Value: "rs0"}},
		"sharded cluster": {{Key: "msg", Value: "isdbgrid"}},
	} {
		t.Run(kind, func(t *testing.T) {
			f := startFake(t, nil)
			f.answer("hello", hello)
			s, _ := openFake(t, f)
			awaitReady(t, s)
			commands := f.commands("createIndexes")
			if len(commands) != 10 || !isUnique(commands[0]) {
				t.Errorf("%s: %d createIndexes", kind, len(commands))
			}
			for _, c := range commands {
				if quorum, ok := c.Lookup("commitQuorum").StringValueOK(); ok != (kind != "standalone") || ok && quorum != "majority" {
					t.Errorf("%s: %s", kind, c)
				}
			}
		})
	}
}

func TestHint(t *testing.T) {
	for name, c := range map[string]struct {
		index   bson.D
		refusal int32
		want    string
	}{
		"none before":              {nil, 0, "job_id_1"},
		"one of another name":      {unique("once_per_job"), 0, "once_per_job"},
		"refused as a bad hint":    {unique("job_id_1"), 2, ""},
		"refused as unknown":       {unique("job_id_1"), 9, ""},
		"refused, and none before": {nil, 27, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, nil)
			if c.index != nil {
				f.setIndexes(c.index)
			}
			if c.refusal != 0 {
				f.refuseHints(c.refusal)
			}
			s, l := openFake(t, f)
			awaitReady(t, s)
			for range 2 {
				s.LookNow()
			}
			testenv.OK(t, s.IndexSuspect(t.Context()))
			if got := s.HintName(); got != c.want {
				t.Errorf("hint %q, want %q", got, c.want)
			}
			said := l.whole()
			if n := strings.Count(said, "takes no hint"); n != min(1, int(c.refusal)) {
				t.Errorf("said %d times that it takes no hint:\n%s", n, said)
			}
		})
	}
}

// TestLostWhileServing: what keeps a delivery from being first twice goes away under a store that serves.
func TestLostWhileServing(t *testing.T) {
	here := func(uuid byte) bson.D {
		return cursorOf(bson.D{{Key: "name", Value: "sume_jobs"}, {Key: "type", Value: "collection"},
			{Key: "info", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: []byte{uuid}}}}}})
	}
	for name, c := range map[string]struct {
		lose   func(f *fakeServer)
		reason string
	}{
		"the index":                {func(f *fakeServer) { f.setIndexes() }, "the unique index on job_id was dropped"},
		"the index, for another":   {func(f *fakeServer) { f.setIndexes(unique("another")) }, "the unique index on job_id was dropped"},
		"its uniqueness":           {func(f *fakeServer) { f.setIndexes(unique("job_id_1", bson.E{Key: "sparse", Value: true})) }, "it is sparse"},
		"the index, being rebuilt": {func(f *fakeServer) { f.refuseHints(2) }, "is being made"},
		"the collection": {func(f *fakeServer) { f.answer("listCollections", cursorOf()); f.setIndexes() },
			"the jobs that it held are forgotten"},
		"the collection, for another": {func(f *fakeServer) { f.answer("listCollections", here(2)) }, "the jobs that it held are forgotten"},
	} {
		for _, noticed := range []string{"by the minute's look", "by a write"} {
			t.Run(name+" "+noticed, func(t *testing.T) {
				f := startFake(t, nil)
				f.answer("listCollections", here(1))
				s, l := openFake(t, f)
				awaitReady(t, s)
				_, release := f.hold(t, isUnique)
				c.lose(f)
				if noticed == "by a write" {
					wantUnavailable(t, s.IndexSuspect(t.Context()))
				} else {
					s.LookNow()
				}
				line := l.await(t, "may have been")
				for _, want := range []string{"level=ERROR", "FIRST twice", c.reason, "last_good_look=20"} {
					if !strings.Contains(line, want) {
						t.Errorf("the log does not say %q: %s", want, line)
					}
				}
				wantUnready(t, s, "")
				if s.HintName() == "" {
					t.Error("what is under way may go on without a hint")
				}
				f.takeHints()
				f.setIndexes(unique("job_id_1"))
				release()
				l.await(t, "store ready")
				awaitReady(t, s)
				if again := l.rest(); strings.Contains(again, "level=ERROR") {
					t.Errorf("said twice:\n%s", again)
				}
			})
		}
	}
}

// TestIndexSuspect: what a write hears whose hint was refused.
func TestIndexSuspect(t *testing.T) {
	f := startFake(t, nil)
	s, l := openFake(t, f)
	awaitReady(t, s)
	if err := s.IndexSuspect(t.Context()); err != nil || s.HintName() == "" {
		t.Errorf("the index is good, and takes hints: %v, hint %q", err, s.HintName())
	}

	// One look at a time, and those that wait share the next.
	looking, goOn := make(chan struct{}, 100), make(chan struct{})
	f.answerWith("listCollections", func(bson.Raw) bson.D {
		looking <- struct{}{}
		<-goOn
		return cursorOf()
	})
	var calls sync.WaitGroup
	suspect := func() {
		calls.Go(func() {
			testenv.OK(t, s.IndexSuspect(t.Context()))
		})
	}
	suspect()
	<-looking
	for range 20 {
		suspect()
	}
	for s.Doubting() < 20 {
		time.Sleep(time.Millisecond) // until they wait; there is nothing to be told by
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.IndexSuspect(ctx); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("a caller that has left: %v", err)
	}
	close(goOn)
	calls.Wait()
	if more := len(looking); more < 1 || more > 3 {
		t.Errorf("%d looks for 20 calls at once", more)
	}

	// A look that fails says nothing of the index.
	f.answer("listIndexes", failure(50, "MaxTimeMSExpired", "too slow"))
	wantUnavailable(t, s.IndexSuspect(t.Context()))
	testenv.OK(t, s.Check(t.Context()))
	l.await(t, "cannot look after the store")
	testenv.OK(t, s.Close())
	wantUnavailable(t, s.IndexSuspect(t.Context()))
}

// TestWorkIndexesGateWork: while the indexes for work are made, deliveries are taken and work is not.
func TestWorkIndexesGateWork(t *testing.T) {
	f := startFake(t, nil)
	held, release := f.hold(t, func(command bson.Raw) bool { return !isUnique(command) })
	s, l := openFake(t, f)
	next(t, held)
	l.await(t, "work cannot be claimed")
	awaitReady(t, s)
	wantUnavailable(t, s.CheckWork(t.Context()))
	release()
	awaitWork(t, s)

	// One that is dropped is made again.
	f.setIndexes(unique("job_id_1"))
	f.answer("createIndexes", failure(13, "Unauthorized", "not authorized on app"))
	s.LookNow()
	l.await(t, "role in docs/mongodb.md")
	testenv.OK(t, s.Check(t.Context()))
	wantUnavailable(t, s.CheckWork(t.Context()))
	f.answerWith("createIndexes", f.createIndexes)
	awaitWork(t, s)
}

func awaitWork(t *testing.T, s *mongostore.Store) {
	t.Helper()
	deadline := time.After(time.Minute)
	for s.CheckWork(t.Context()) != nil {
		select {
		case <-deadline:
			t.Fatal(s.CheckWork(t.Context()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestDropped drops the index, and then the collection, of a real database under two stores that serve it.
func TestDropped(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	jobs := collection(t, uri, database)
	one, logOne := openLogged(t, mongostore.Options{URI: uri, Database: database})
	two, logTwo := openLogged(t, mongostore.Options{URI: uri, Database: database})
	awaitReady(t, one)
	awaitReady(t, two)
	recordOne(t, one, job.Input{JobID: "a"}, job.First, 1)

	testenv.Must(t, jobs.Indexes().DropOne(t.Context(), "job_id_1"))
	wantUnavailable(t, one.IndexSuspect(t.Context()))
	logOne.await(t, "the unique index on job_id was dropped")
	logOne.await(t, "store ready")
	recordOne(t, one, job.Input{JobID: "a"}, job.Duplicate, 2)

	testenv.Must(t, jobs.Drop(t.Context()))
	one.LookNow()
	logOne.await(t, "the jobs that it held are forgotten")
	logOne.await(t, "store ready")
	recordOne(t, one, job.Input{JobID: "a"}, job.First, 1)
	// The other finds everything in its place again, and yet not what it knew.
	two.LookNow()
	logTwo.await(t, "the jobs that it held are forgotten")
	logTwo.await(t, "store ready")
	if names := uniqueIndexes(t, jobs); len(names) != 1 {
		t.Errorf("indexes on job_id: %q", names)
	}
}

// TestUpsertHinted: every upsert names the index, and what comes of one whose hint is refused.
func TestUpsertHinted(t *testing.T) {
	for name, c := range map[string]struct {
		hintless bool              // the server never takes a hint
		lose     func(*fakeServer) // what happens to the index once the store serves
		said     string            // what is said then; upserts are refused
	}{
		"taken":             {},
		"no hints at all":   {hintless: true},
		"no hints any more": {lose: func(f *fakeServer) { f.refuseHints(2) }, said: "cannot be used any more"},
		"the index is lost": {lose: func(f *fakeServer) { f.setIndexes() }, said: "the unique index on job_id was dropped"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, nil)
			if c.hintless {
				f.refuseHints(2)
			}
			s, l := openFake(t, f)
			awaitReady(t, s)
			lost := c.lose != nil
			_, release := f.hold(t, func(command bson.Raw) bool { return isUnique(command) && lost && name == "the index is lost" })
			if lost {
				c.lose(f)
			}
			f.answerWith("update", func(command bson.Raw) bson.D { return answerUpserts(command, lost) })
			looks, before := len(f.commands("listIndexes")), len(f.commands("update"))
			var deliveries []job.Delivery
			for _, id := range []string{"a", "b", "c"} {
				deliveries = append(deliveries, delivery(t, job.Input{JobID: id}))
			}
			for _, o := range s.Record(t.Context(), deliveries) {
				if lost {
					wantUnavailable(t, o.Err)
				} else if o.Err != nil || o.Verdict.Disposition != job.First {
					t.Errorf("%+v", o)
				}
			}
			if n := len(f.commands("listIndexes")) - looks; n != 0 && !lost { // a lost one is looked for again
				t.Errorf("%d looks for three jobs", n)
			}
			commands := f.commands("update")[before:]
			for _, command := range commands {
				if hint, _ := command.Lookup("updates", "0", "hint").StringValueOK(); (hint == "job_id_1") == c.hintless {
					t.Errorf("an upsert was sent with the hint %q", hint)
				}
			}
			if lost {
				l.await(t, c.said)
				wantUnready(t, s, "")
			}
			release()
		})
	}
}

// TestCopyHinted: what is copied names the index, too.
func TestCopyHinted(t *testing.T) {
	for name, lose := range map[string]func(*fakeServer){
		"taken": nil, "no hints any more": func(f *fakeServer) { f.refuseHints(2) }, "the index is lost": func(f *fakeServer) { f.setIndexes() },
	} {
		f := startFake(t, nil)
		s, _ := openFake(t, f)
		awaitReady(t, s)
		if lose != nil {
			lose(f)
		}
		f.answerWith("update", func(command bson.Raw) bson.D { return answerUpserts(command, lose != nil) })
		copied, err := s.Copy(t.Context(), []job.Record{{JobID: "a"}, {JobID: "b"}})
		if lose != nil {
			wantUnavailable(t, err)
		} else if err != nil || copied.Written != 2 {
			t.Errorf("%s: %+v, %v", name, copied, err)
		}
		if hint, _ := f.commands("update")[0].Lookup("updates", "0", "hint").StringValueOK(); hint != "job_id_1" {
			t.Errorf("%s: the hint is %q", name, hint)
		}
	}
}

// answerUpserts takes upserts, or refuses them for their hints.
func answerUpserts(command bson.Raw, refuse bool) bson.D {
	return upsertReply(command, 2, func(item bson.Raw) bool {
		_, err := item.LookupErr("hint")
		return err == nil && refuse
	})
}
