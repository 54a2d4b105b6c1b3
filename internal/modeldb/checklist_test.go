package modeldb_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// What a replica set does that a single server does not, each with where MongoDB says so. The tests ask the model by the
// real driver.

// desk is a driver and the database that it is connected to, in a bubble. Commands wait until they are answered.
type desk struct {
	t    *testing.T
	db   *modeldb.Server
	coll *mongo.Collection
}

func onDesk(t *testing.T, do func(d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := modeldb.New(modeldb.ReplicaSet)
		client, err := mongo.Connect(options.Client().ApplyURI(db.URI()).SetDialer(db.Dialer(0)).SetWriteConcern(writeconcern.Majority()))
		if err != nil {
			t.Fatal(err)
		}
		d := &desk{t, db, client.Database("app").Collection("jobs")}
		d.must(d.coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}},
			Options: options.Index().SetUnique(true).SetName("job_id_1")}))
		db.Hold(true)
		do(d)
		db.Hold(false)
		if err := client.Disconnect(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		for _, what := range db.Strange() {
			t.Error(what)
		}
	})
}

func (d *desk) must(_ any, err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// answering lets an operation run while its commands meet the faults, one after the other; those after that are answered. It
// returns the numbers of the commands, by which repetitions are known.
func (d *desk) answering(operation func(), faults ...modeldb.Fault) (numbers []int64) {
	d.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		operation()
	}()
	for {
		select {
		case <-d.db.Arrived():
		case <-done:
			return numbers
		case <-time.After(time.Minute):
			d.t.Fatal("the driver waits for nothing")
		}
		for _, c := range d.db.Calls() {
			if c.Gone {
				continue
			}
			n, _ := c.Body.Lookup("txnNumber").AsInt64OK()
			numbers = append(numbers, n)
			fault := modeldb.Fault{}
			if len(faults) > 0 {
				fault, faults = faults[0], faults[1:]
			}
			d.db.Answer(c, fault, func(bson.Raw) {})
		}
	}
}

func upsert(ids ...string) (models []mongo.WriteModel) {
	for _, id := range ids {
		models = append(models, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "job_id", Value: id}}).
			SetUpdate(bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}).SetUpsert(true))
	}
	return models
}

// count is a document's counter as the primary has it; -1 when there is none.
func (d *desk) count(id string) int64 {
	for _, doc := range d.db.Documents("app.jobs") {
		if s, _ := doc.Lookup("job_id").StringValueOK(); s == id {
			return doc.Lookup("n").AsInt64()
		}
	}
	return -1
}

// TestServerLabelsErrors: the server adds RetryableWriteError to what a repetition may heal, and without it the driver
// repeats nothing (specifications: retryable-writes.md, "Determining Retryable Errors"; src/mongo/db/error_labels.cpp).
func TestServerLabelsErrors(t *testing.T) {
	for fault, repeated := range map[modeldb.Kind]bool{
		modeldb.NotPrimary: true, modeldb.SteppedDown: true, modeldb.ConcernRetryable: true, modeldb.Cut: true,
		modeldb.Refused: false, modeldb.ConcernFailed: false, modeldb.Stopped: false,
	} {
		onDesk(t, func(d *desk) {
			var err error
			numbers := d.answering(func() { _, err = d.coll.BulkWrite(d.t.Context(), upsert("a")) }, modeldb.Fault{Kind: fault})
			if repeated && (len(numbers) != 2 || numbers[0] != numbers[1] || err != nil) || !repeated && (len(numbers) != 1 || err == nil) {
				t.Errorf("%v: commands numbered %v, %v", modeldb.Fault{Kind: fault}, numbers, err)
			}
		})
	}
}

// TestNotPrimary: a member that is not the primary does nothing, and one that steps down has done it (src/mongo/base/error_codes.yml:
// NotWritablePrimary is checked before the command runs, PrimarySteppedDown interrupts it).
func TestNotPrimary(t *testing.T) {
	for fault, want := range map[modeldb.Kind]int64{modeldb.NotPrimary: -1, modeldb.SteppedDown: 1} {
		onDesk(t, func(d *desk) {
			go func() { _, _ = d.coll.BulkWrite(d.t.Context(), upsert("a")) }()
			synctest.Wait()
			d.db.Answer(d.db.Calls()[0], modeldb.Fault{Kind: fault}, func(bson.Raw) {})
			if d.count("a") != want {
				t.Errorf("%v: counter %d, want %d", modeldb.Fault{Kind: fault}, d.count("a"), want)
			}
			d.db.Hold(false)
			time.Sleep(time.Second)
			synctest.Wait()
		})
	}
}

// TestRepetitionsAreKnown: what a session did is remembered for each statement of its latest command, and goes when the data
// go (src/mongo/db/session/README.md, "Retryable writes"; manual: "Retryable Writes").
func TestRepetitionsAreKnown(t *testing.T) {
	onDesk(t, func(d *desk) {
		var result *mongo.BulkWriteResult
		var err error
		d.answering(func() {
			result, err = d.coll.BulkWrite(d.t.Context(), upsert("a", "b"), options.BulkWrite().SetOrdered(false))
		},
			modeldb.Fault{Kind: modeldb.SteppedDown})
		if err != nil || len(result.UpsertedIDs) != 2 || d.count("a") != 1 || d.count("b") != 1 {
			t.Errorf("repeated: %+v, %v, counters %d and %d", result, err, d.count("a"), d.count("b"))
		}
	})
	onDesk(t, func(d *desk) {
		var result *mongo.BulkWriteResult
		go func() { result, _ = d.coll.BulkWrite(d.t.Context(), upsert("a")) }()
		synctest.Wait()
		d.db.Answer(d.db.Calls()[0], modeldb.Fault{Kind: modeldb.SteppedDown}, func(bson.Raw) {})
		if d.db.Elect(false); d.count("a") != -1 {
			t.Error("the write is not undone")
		}
		time.Sleep(time.Second)
		d.db.Answer(d.db.Calls()[0], modeldb.Fault{}, func(bson.Raw) {})
		synctest.Wait()
		if d.count("a") != 1 || len(result.UpsertedIDs) != 1 {
			t.Errorf("repeated after it was undone: %+v, counter %d", result, d.count("a"))
		}
	})
}

// TestRepetitionsByStatement: of a bulk in whose midst the member stepped down, the driver's repetition does what was not done (as
// above; the server labels the error).
func TestRepetitionsByStatement(t *testing.T) {
	for kept, want := range map[bool]int64{true: 1, false: -1} {
		onDesk(t, func(d *desk) {
			var result *mongo.BulkWriteResult
			var err error
			go func() { result, err = d.coll.BulkWrite(d.t.Context(), upsert("a", "b")) }()
			synctest.Wait()
			d.db.Answer(d.db.Calls()[0], modeldb.Fault{Kind: modeldb.SteppedDown, Item: 1}, func(bson.Raw) {})
			if d.db.Elect(kept); d.count("a") != want || d.count("b") != -1 {
				t.Errorf("stepped down, kept %t: counters %d and %d", kept, d.count("a"), d.count("b"))
			}
			time.Sleep(time.Second)
			d.db.Answer(d.db.Calls()[0], modeldb.Fault{}, func(bson.Raw) {})
			synctest.Wait()
			if err != nil || len(result.UpsertedIDs) != 2 || d.count("a") != 1 || d.count("b") != 1 {
				t.Errorf("repeated, kept %t: %+v, %v, counters %d and %d", kept, result, err, d.count("a"), d.count("b"))
			}
		})
	}
}

// TestInterruptedBulk: an interruption between two items fails the whole command, though items were applied
// (src/mongo/db/ops/write_ops_exec.cpp: an interruption is thrown out of the loop over the items).
func TestInterruptedBulk(t *testing.T) {
	onDesk(t, func(d *desk) {
		var err error
		d.answering(func() {
			_, err = d.coll.BulkWrite(d.t.Context(), upsert("a", "b"), options.BulkWrite().SetOrdered(false))
		},
			modeldb.Fault{Kind: modeldb.Stopped, Item: 1})
		var command mongo.CommandError
		if !errors.As(err, &command) || d.count("a") != 1 || d.count("b") != -1 {
			t.Errorf("%v, counters %d and %d", err, d.count("a"), d.count("b"))
		}
	})
}

// TestWriteConcernError: it comes beside ok: 1 and what was done, made or matched (manual: "Write Concern", wtimeout; the upserted document may
// be undone by an election all the same).
func TestWriteConcernError(t *testing.T) {
	onDesk(t, func(d *desk) {
		var result *mongo.BulkWriteResult
		var err error
		d.answering(func() { result, err = d.coll.BulkWrite(d.t.Context(), upsert("a")) }, modeldb.Fault{Kind: modeldb.ConcernFailed})
		var bulk mongo.BulkWriteException
		if !errors.As(err, &bulk) || bulk.WriteConcernError == nil || len(result.UpsertedIDs) != 1 || d.count("a") != 1 || !d.db.Pending() {
			t.Errorf("%+v, %v", result, err)
		}
		d.answering(func() { result, err = d.coll.BulkWrite(d.t.Context(), upsert("a")) }, modeldb.Fault{Kind: modeldb.ConcernFailed})
		if !errors.As(err, &bulk) || bulk.WriteConcernError == nil || result.MatchedCount != 1 || len(result.UpsertedIDs) != 0 {
			t.Errorf("the second time: %+v, %v", result, err)
		}
		if d.db.Elect(false); d.count("a") != -1 {
			t.Error("an election does not undo it")
		}
	})
}

// TestDeposedPrimary: a primary that was deposed and does not know it acknowledges a write that changes nothing, and reads
// old data at majority; it does not answer what waits for later data, what changes something, or what is linearizable
// (manual: "Read Concern linearizable", "Causal Consistency and Read and Write Concerns"; src/mongo/db/repl/README.md).
func TestDeposedPrimary(t *testing.T) {
	one := bson.D{{Key: "job_id", Value: "a"}}
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 7}}}}
	onDesk(t, func(d *desk) {
		d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a"))) })
		d.db.Depose(0, true)
		var updated *mongo.UpdateResult
		d.answering(func() {
			var err error
			updated, err = d.coll.UpdateOne(d.t.Context(), bson.D{{Key: "job_id", Value: "none"}}, set)
			d.must(updated, err)
		})
		if updated.MatchedCount != 0 || !d.db.Behind(0) {
			t.Error("a write that matches nothing is not acknowledged")
		}
		majority := d.coll.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
		d.answering(func() { d.must(majority.FindOne(d.t.Context(), one).Raw()) })
		if !d.db.Behind(0) {
			t.Error("a majority read is not answered")
		}
	})
	for name, ask := range map[string]func(*desk) error{
		"a change": func(d *desk) error { _, err := d.coll.UpdateOne(d.t.Context(), one, set); return err },
		"a linearizable read": func(d *desk) error {
			return d.coll.Clone(options.Collection().SetReadConcern(readconcern.Linearizable())).FindOne(d.t.Context(), one).Err()
		},
	} {
		onDesk(t, func(d *desk) {
			d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a"))) })
			d.db.Depose(0, true)
			var err error
			numbers := d.answering(func() { err = ask(d) })
			if len(numbers) != 2 || err != nil || d.db.Behind(0) {
				t.Errorf("%s: %d commands, %v", name, len(numbers), err)
			}
		})
	}
	onDesk(t, func(d *desk) {
		d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a"))) })
		session, err := d.coll.Database().Client().StartSession()
		d.must(session, err)
		defer session.EndSession(context.WithoutCancel(d.t.Context()))
		ctx := mongo.NewSessionContext(d.t.Context(), session)
		d.answering(func() { d.must(d.coll.UpdateOne(ctx, one, set)) })
		d.must(nil, session.AdvanceOperationTime(&bson.Timestamp{T: session.OperationTime().T, I: session.OperationTime().I + 1000}))
		d.db.Depose(0, true)
		majority := d.coll.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
		if numbers := d.answering(func() { d.must(majority.FindOne(ctx, one).Raw()) }); len(numbers) != 2 || d.db.Behind(0) {
			t.Errorf("a read after a later time took %d commands", len(numbers))
		}
	})
}

// TestDeposedWithSuffix: a primary that was deposed while only it had its latest write shows that to local reads, and what most members
// had to majority reads, but does not answer what follows the write in its session. It acknowledges no write, since also one that
// changes nothing waits until most members have what came before it (manual: "Causal Consistency and Read and Write Concerns";
// src/mongo/db/repl/repl_client_info.h, setLastOpToSystemLastOpTime).
func TestDeposedWithSuffix(t *testing.T) {
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 7}}}}
	is, not := bson.D{{Key: "n", Value: 7}}, bson.D{{Key: "n", Value: 8}}
	find := func(level *readconcern.ReadConcern) func(*desk, context.Context) error {
		return func(d *desk, ctx context.Context) error {
			return d.coll.Clone(options.Collection().SetReadConcern(level)).FindOne(ctx, is).Err()
		}
	}
	for name, c := range map[string]struct {
		ask              func(*desk, context.Context) error
		follows, deposed bool
		found            bool
	}{
		"a local read":                 {ask: find(readconcern.Local()), deposed: true, found: true},
		"a majority read":              {ask: find(readconcern.Majority()), deposed: true},
		"a local read that follows":    {ask: find(readconcern.Local()), follows: true, deposed: true, found: true},
		"a majority read that follows": {ask: find(readconcern.Majority()), follows: true, found: true},
		"a write that matches nothing": {found: true, ask: func(d *desk, ctx context.Context) error {
			_, err := d.coll.UpdateOne(ctx, not, set)
			return err
		}},
	} {
		onDesk(t, func(d *desk) {
			session, err := d.coll.Database().Client().StartSession()
			d.must(session, err)
			defer session.EndSession(context.WithoutCancel(d.t.Context()))
			ctx := mongo.NewSessionContext(d.t.Context(), session)
			d.answering(func() { d.must(d.coll.BulkWrite(ctx, upsert("a"))) })
			d.answering(func() { _, _ = d.coll.UpdateOne(ctx, bson.D{{Key: "job_id", Value: "a"}}, set) }, modeldb.Fault{Kind: modeldb.ConcernFailed})
			if d.db.Depose(0, true); !c.follows {
				ctx = d.t.Context()
			}
			d.answering(func() { err = c.ask(d, ctx) })
			if d.db.Behind(0) != c.deposed || c.found != (err == nil) {
				t.Errorf("%s: %v, from the deposed primary: %t", name, err, d.db.Behind(0))
			}
		})
	}
}

// TestMatchedTogether: n counts what matched over all items, and nothing says how many each one did (manual: the update
// command's output).
func TestMatchedTogether(t *testing.T) {
	onDesk(t, func(d *desk) {
		d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a"))) })
		models := upsert("a", "b")
		models[1].(*mongo.UpdateOneModel).SetUpsert(false)
		var result *mongo.BulkWriteResult
		d.answering(func() {
			var err error
			result, err = d.coll.BulkWrite(d.t.Context(), models, options.BulkWrite().SetOrdered(false))
			d.must(result, err)
		})
		if result.MatchedCount != 1 {
			t.Errorf("matched %d", result.MatchedCount)
		}
	})
}

// TestTimesNeverGoBack: operationTime, $clusterTime and electionId grow, over elections that undo writes too
// (specifications: causal-consistency.md and server-discovery-and-monitoring.md; src/mongo/db/repl/README.md).
func TestTimesNeverGoBack(t *testing.T) {
	onDesk(t, func(d *desk) {
		d.db.Hold(false)
		var operations, clusters []bson.Timestamp
		var elections []bson.ObjectID
		look := func() {
			var reply struct {
				Operation bson.Timestamp `bson:"operationTime"`
				Cluster   struct {
					ClusterTime bson.Timestamp `bson:"clusterTime"`
				} `bson:"$clusterTime"`
				Election bson.ObjectID `bson:"electionId"`
			}
			d.must(nil, d.coll.Database().RunCommand(d.t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&reply))
			operations, clusters, elections = append(operations, reply.Operation), append(clusters, reply.Cluster.ClusterTime), append(elections, reply.Election)
		}
		look()
		for _, keep := range []bool{true, false} {
			d.db.Hold(true)
			d.answering(func() { _, _ = d.coll.BulkWrite(d.t.Context(), upsert("a")) }, modeldb.Fault{Kind: modeldb.ConcernFailed})
			d.db.Hold(false)
			look()
			d.db.Elect(keep)
			look()
		}
		ascending := func(a, b bson.Timestamp) int { return a.Compare(b) }
		if !slices.IsSortedFunc(operations, ascending) || !slices.IsSortedFunc(clusters, ascending) {
			t.Errorf("times %v, %v", operations, clusters)
		}
		if !slices.IsSortedFunc(elections, func(a, b bson.ObjectID) int { return slices.Compare(a[:], b[:]) }) || elections[0] == elections[len(elections)-1] {
			t.Errorf("elections %v", elections)
		}
	})
}

// TestHints: a hint at an index that is not there, or is still being made, is an error of the item, and nothing is written; a read
// fails (src/mongo/db/query/query_planner.cpp: "hint provided does not correspond to an existing index").
func TestHints(t *testing.T) {
	for _, c := range []struct {
		hint     string
		building bool
		code     int
	}{{"job_id_1", false, 0}, {"other", false, 2}, {"job_id_1", true, 2}} {
		onDesk(t, func(d *desk) {
			d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("z"))) })
			d.db.Building("app.jobs", "job_id_1", c.building)
			models := upsert("a")
			models[0].(*mongo.UpdateOneModel).SetHint(c.hint)
			var err error
			d.answering(func() { _, err = d.coll.BulkWrite(d.t.Context(), models) })
			var bulk mongo.BulkWriteException
			code := 0
			if errors.As(err, &bulk) && len(bulk.WriteErrors) == 1 {
				code = bulk.WriteErrors[0].Code
			}
			if code != c.code || (d.count("a") == 1) != (c.code == 0) {
				t.Errorf("%+v: %v", c, err)
			}
			for what, read := range map[string]func() error{
				"find": func() error { return d.coll.FindOne(d.t.Context(), bson.D{}, options.FindOne().SetHint(c.hint)).Err() },
				"aggregate": func() error {
					_, err := d.coll.Aggregate(d.t.Context(), mongo.Pipeline{}, options.Aggregate().SetHint(c.hint))
					return err
				},
			} {
				d.answering(func() { err = read() })
				var command mongo.CommandError
				if errors.As(err, &command); int(command.Code) != c.code {
					t.Errorf("%s, %+v: %v", what, c, err)
				}
			}
		})
	}
}

// TestPartialHint: a read with a hint at a partial index gets what is in that index, whatever else there is (src/mongo/db/query/query_planner.cpp:
// where the hinted index does not have all that is asked for, "we scan the entire index").
func TestPartialHint(t *testing.T) {
	onDesk(t, func(d *desk) {
		d.must(d.coll.Indexes().CreateOne(d.t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "m", Value: 1}},
			Options: options.Index().SetName("m_1").SetPartialFilterExpression(bson.D{{Key: "m", Value: bson.D{{Key: "$exists", Value: true}}}})}))
		d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a", "b"))) })
		d.answering(func() {
			d.must(d.coll.UpdateOne(d.t.Context(), bson.D{{Key: "job_id", Value: "a"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "m", Value: 1}}}}))
		})
		for hint, want := range map[string]int{"m_1": 1, "job_id_1": 2} {
			var docs []bson.D
			d.answering(func() {
				cursor, err := d.coll.Find(d.t.Context(), bson.D{}, options.Find().SetHint(hint))
				d.must(cursor, err)
				d.must(nil, cursor.All(d.t.Context(), &docs))
			})
			if len(docs) != want {
				t.Errorf("by %s: %v", hint, docs)
			}
		}
	})
}

// TestUniqueWhileBuilding: an index that is still being made refuses no duplicate. When it is finished, it fails over those that are
// there then, and is gone; one that was mended meanwhile does not matter (manual: "Index Builds on Populated
// Collections"; src/mongo/db/index_builds/README.md, "Internal Table For Duplicate Key Violations").
func TestUniqueWhileBuilding(t *testing.T) {
	for _, mended := range []bool{false, true} {
		onDesk(t, func(d *desk) {
			d.answering(func() { d.must(d.coll.BulkWrite(d.t.Context(), upsert("a", "b"))) })
			rename := func(from, to string) (err error) {
				d.answering(func() {
					_, err = d.coll.UpdateOne(d.t.Context(), bson.D{{Key: "job_id", Value: from}}, bson.D{{Key: "$set", Value: bson.D{{Key: "job_id", Value: to}}}})
				})
				return err
			}
			if err := rename("b", "a"); !mongo.IsDuplicateKeyError(err) {
				t.Fatalf("a finished index takes a duplicate: %v", err)
			}
			d.db.Building("app.jobs", "job_id_1", true)
			d.must(nil, rename("b", "a"))
			if mended {
				d.must(nil, rename("a", "b"))
			}
			_, err := d.coll.Indexes().CreateOne(d.t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}},
				Options: options.Index().SetUnique(true).SetName("job_id_1")})
			if there, building := d.db.Index("app.jobs", "job_id_1"); mongo.IsDuplicateKeyError(err) == mended || there != mended || building {
				t.Errorf("mended %t: %v; the index is there: %t", mended, err, there)
			}
			if err := rename("b", "a"); mended && !mongo.IsDuplicateKeyError(err) {
				t.Errorf("the index does not hold once it is finished: %v", err)
			}
		})
	}
}

// TestRefusals: what the model does not have is refused, and told of.
func TestRefusals(t *testing.T) {
	for name, command := range map[string]bson.D{
		"command":   {{Key: "distinct", Value: "jobs"}},
		"option":    {{Key: "find", Value: "jobs"}, {Key: "collation", Value: bson.D{}}},
		"filter":    {{Key: "find", Value: "jobs"}, {Key: "filter", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$mod", Value: bson.A{2, 0}}}}}}},
		"statement": {{Key: "update", Value: "jobs"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{}}}}, {Key: "multi", Value: true}}}}},
		"operator":  {{Key: "update", Value: "jobs"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$push", Value: bson.D{{Key: "n", Value: 1}}}}}}}}},
		"concern":   {{Key: "update", Value: "jobs"}, {Key: "updates", Value: bson.A{}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: 1}}}},
		"member":    {{Key: "find", Value: "jobs"}, {Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondary"}}}},
		"twice":     {{Key: "find", Value: "jobs"}, {Key: "limit", Value: 1}, {Key: "limit", Value: 1}},
		"stage":     {{Key: "aggregate", Value: "jobs"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$sample", Value: bson.D{}}}}}, {Key: "cursor", Value: bson.D{}}},
	} {
		db := modeldb.New(modeldb.Standalone)
		client, err := mongo.Connect(options.Client().ApplyURI(db.URI()).SetDialer(db.Dialer(0)))
		if err != nil {
			t.Fatal(err)
		}
		coll := client.Database("app").Collection("jobs")
		if _, err := coll.BulkWrite(t.Context(), upsert("a")); err != nil {
			t.Fatal(err)
		}
		var failed mongo.CommandError
		if err := client.Database("app").RunCommand(t.Context(), command).Err(); !errors.As(err, &failed) || failed.Code != 238 || len(db.Strange()) != 1 {
			t.Errorf("%s: %v, %q", name, err, db.Strange())
		}
		if err := client.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
