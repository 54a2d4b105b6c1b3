package modeldb_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// sent keeps one example of each kind of command that a store sends, by [shape].
type sent struct {
	mu       sync.Mutex
	examples map[string]bson.D
}

// connectionCommands are about the connection, not about what the database holds. getMore goes on with what another command began.
var connectionCommands = []string{"hello", "isMaster", "ping", "endSessions", "killCursors", "getMore"}

// sessionFields say whose command it is and when it was sent, and nothing of what it does.
var sessionFields = []string{"lsid", "$clusterTime", "txnNumber", "$db", "$readPreference", "maxTimeMS", "ordered", "commitQuorum"}

// note takes a command apart into its statements, and keeps those of new shapes.
func (s *sent) note(t *testing.T, raw bson.Raw) {
	var command bson.D
	testenv.Must(t, bson.Unmarshal(raw, &command))
	if slices.Contains(connectionCommands, command[0].Key) {
		return
	}
	kept := bson.D{}
	statements, list := bson.A{nil}, -1
	for _, e := range command {
		concern, _ := e.Value.(bson.D)
		switch e.Key {
		case "updates", "deletes", "indexes":
			statements, list = e.Value.(bson.A), len(kept)
		case "readConcern":
			if concern = slices.DeleteFunc(concern, func(e bson.E) bool { return e.Key == "afterClusterTime" }); len(concern) == 0 {
				continue
			}
			e.Value = concern
		}
		if !slices.Contains(sessionFields, e.Key) {
			kept = append(kept, e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, statement := range statements {
		one := slices.Clone(kept)
		if list >= 0 {
			one[list].Value = bson.A{statement}
		}
		s.examples[shape("", one)] = one
	}
}

// literal are the fields whose values are part of a command's shape.
var literal = []string{"find", "aggregate", "update", "delete", "createIndexes", "listIndexes", "listCollections", "sort", "$sort", "projection",
	"$project", "hint", "key", "name", "level", "w", "$type", "$exists", "upsert", "singleBatch"}

// shape is a command without the values in it: two that have the same ask the same of the database.
func shape(key string, v any) string {
	switch v := v.(type) {
	case bson.D:
		if key == "payload" { // a customer's
			return "{…}"
		}
		var fields []string
		for _, e := range v {
			inner := e.Key
			if slices.Contains(literal, key) {
				inner = key
			}
			fields = append(fields, e.Key+": "+shape(inner, e.Value))
		}
		return "{" + strings.Join(fields, ", ") + "}"
	case bson.A:
		var items []string
		for _, item := range v {
			if s := shape(key, item); !slices.Contains(items, s) {
				items = append(items, s)
			}
		}
		return "[" + strings.Join(items, ", ") + "]"
	case string:
		if strings.HasPrefix(v, "$") && key != "job_id" {
			return v
		}
	}
	if slices.Contains(literal, key) {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%T", v)
}

// dialer notes what goes through its connections.
type dialer struct {
	modeldb.Dialer
	t    *testing.T
	sent *sent
}

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	return noted{conn, d}, err
}

type noted struct {
	net.Conn
	dialer
}

func (c noted) Write(b []byte) (int, error) {
	m, err := wire.Read(bytes.NewReader(b))
	if err != nil {
		c.t.Errorf("a driver writes something else than one message: %v", err)
		return 0, err
	}
	if command, err := m.Document(); err == nil {
		c.sent.note(c.t, command)
	}
	return c.Conn.Write(b)
}

// sentByStore are the commands that the store sends: while it passes the suite of all stores, and in what that does not do. It does so
// once for all tests.
func sentByStore(t *testing.T) map[string]bson.D {
	once.Do(func() {
		s := sentInSuite(t)
		t.Run("besides", func(t *testing.T) { besides(t, s) }) // the stores are closed after it
		byStore = s.examples
	})
	if byStore == nil {
		t.Fatal("the store did not pass the suite")
	}
	return byStore
}

var (
	once    sync.Once
	byStore map[string]bson.D
)

// besides has a store do what the suite of all stores does not: copy, mend what others have left, go on without an index, and look for
// duplicates.
func besides(t *testing.T, s *sent) {
	o := openOffice(t, modeldb.Standalone)
	plain, err := mongo.Connect(options.Client().ApplyURI(o.db.URI()).SetDialer(o.db.Dialer(2)))
	testenv.Must(t, err)
	defer func() { testenv.Must(t, plain.Disconnect(context.WithoutCancel(t.Context()))) }()
	const ns = mongostore.DefaultDatabase + "." + mongostore.DefaultCollection
	jobs := plain.Database(mongostore.DefaultDatabase).Collection(mongostore.DefaultCollection)
	left := func(id string, due time.Time) {
		_, err := jobs.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "first_seen", Value: o.clock.Now()},
			{Key: "work", Value: bson.D{{Key: "state", Value: "queued"}, {Key: "mode", Value: "queued"}, {Key: "due", Value: due}, {Key: "granted", Value: int64(1000)}}}}}},
			options.UpdateOne().SetUpsert(true))
		testenv.Must(t, err)
	}
	left("old:1", o.clock.Now())
	left("old:2", o.clock.Now().Add(time.Hour*24*365))
	store := open(t, mongostore.Options{URI: o.db.URI(), Dialer: dialer{o.db.Dialer(3), t, s}, Now: o.clock.Now, Logger: testenv.Logger(t)})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		docs := o.db.Documents(ns)
		_, lacking := docs[0].LookupErr("work", "group")
		if lacking == nil && docs[1].Lookup("work", "due").Time().Before(o.clock.Now().Add(time.Hour)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the upkeep has not mended %v", docs)
		}
	}
	lookEveryWay(t, o, store)
	o.record(store, "a:1", "a:2")
	var records []job.Record
	for _, id := range []string{"a:1", "a:2"} {
		r, err := store.Get(t.Context(), id, true)
		testenv.Must(t, err)
		records = append(records, r)
	}
	for range 2 {
		_, err := store.Copy(t.Context(), records)
		testenv.Must(t, err)
	}
	now := o.clock.Now()
	testenv.Must(t, store.CopyExpectations(t.Context(), []job.Expectation{{JobID: "a:1", StatusURL: "https://provider.example/", Created: now, Overdue: now, GiveUp: now, Due: now}}))
	testenv.Must(t, store.CopyPauses(t.Context(), []job.Pause{{Prefix: "a:", Since: now}}))
	store.Delete(t.Context(), []job.Deletion{o.deletion(job.DeleteJob, "a:1"), o.deletion(job.DeleteJob, "a:2")})
	o.db.DropIndex(ns, "work.due_1")
	_, err = store.Claim(t.Context(), job.ClaimRequest{RequestID: job.NewToken(), Max: 10, MaxBytes: 1 << 20, Lease: time.Minute})
	testenv.Must(t, err)
	o.db.DropIndex(ns, "jobs_seen")
	_, err = store.Count(t.Context(), "")
	testenv.Must(t, err)
	o.db.DropIndex(ns, "job_id_1")
	for range 2 {
		_, err := jobs.BulkWrite(t.Context(), []mongo.WriteModel{mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: bson.NewObjectID()}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "job_id", Value: "twice"}}}}).SetUpsert(true)})
		testenv.Must(t, err)
	}
	third, err := mongostore.Open(mongostore.Options{URI: o.db.URI(), Dialer: dialer{o.db.Dialer(4), t, s}, Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	defer third.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err := third.Check(t.Context()); err != nil && strings.Contains(err.Error(), "twice") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the store finds no duplicates: %v", third.Check(t.Context()))
		}
	}
}

// lookEveryWay has a store record and list jobs, and look for work, by all that a request may name.
func lookEveryWay(t *testing.T, o *office, store *mongostore.Store) {
	for i, mode := range []job.WorkMode{job.ModeUntracked, job.ModeQueued, job.ModeLeased} {
		in := job.Input{JobID: fmt.Sprint("c:", i), Event: "event", Status: "status", Mode: mode, Body: job.Body{Kind: job.BodyText, Data: "text"}}
		if mode == job.ModeLeased {
			in.Lease = new(time.Minute)
		}
		d, err := in.Delivery(1 << 20)
		testenv.Must(t, err)
		testenv.Must(t, store.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	claim := func() {
		for _, events := range [][]string{nil, {"event"}} {
			for _, prefix := range []string{"", "a:"} {
				_, err := store.Claim(t.Context(), job.ClaimRequest{RequestID: job.NewToken(), Max: 1, MaxBytes: 1 << 20, Lease: time.Minute, Events: events, Prefix: prefix})
				testenv.Must(t, err)
			}
		}
	}
	_, err := store.Pause(t.Context(), "c:", "")
	testenv.Must(t, err)
	claim()
	_, err = store.Unpause(t.Context(), "c:")
	testenv.Must(t, err)
	claim()
	for _, state := range []job.WorkState{job.StateUnknown, job.StateDead} {
		for _, order := range []job.Order{job.ByID, job.NewestFirst, job.OldestFirst} {
			for _, from := range []time.Time{{}, o.clock.Now()} {
				for _, before := range []time.Time{{}, o.clock.Now().Add(time.Hour)} {
					for _, conflicts := range []bool{false, true} {
						for _, after := range []job.Place{{}, {Seen: 1, JobID: "c:1"}} {
							q := job.ListQuery{Filter: job.Filter{State: state, SeenFrom: from, SeenBefore: before, Conflicts: conflicts}, Order: order, Size: 1, After: after}
							_, err := store.List(t.Context(), q)
							testenv.Must(t, err)
						}
					}
				}
			}
		}
	}
}
