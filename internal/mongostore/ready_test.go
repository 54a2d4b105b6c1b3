package mongostore_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wantUnavailable checks that an error says that nothing was sent.
func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
		t.Fatalf("got %v, want job.ErrUnavailable", err)
	}
}

func awaitReady(t *testing.T, s *mongostore.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatalf("not ready: %v", s.Check(t.Context()))
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatalf("ready, but %v", err)
	}
}

// wantReason waits until the log gives the reason, and checks that Check gives it too and that nothing is served.
func wantReason(t *testing.T, s *mongostore.Store, l *logs, reason string) {
	t.Helper()
	l.await(t, reason)
	err := s.Check(t.Context())
	wantUnavailable(t, err)
	if !strings.Contains(strings.ReplaceAll(err.Error(), `"`, `\"`), reason) { // as the log quotes it
		t.Errorf("Check does not say %q: %v", reason, err)
	}
	wantUnavailable(t, s.Record(t.Context(), []job.Delivery{delivery(t, job.Input{JobID: "a"})})[0].Err)
	_, err = s.Get(t.Context(), "a", false)
	wantUnavailable(t, err)
}

func TestUnreachableThenReachable(t *testing.T) {
	u, err := url.Parse(testenv.MongoURI(t))
	testenv.Must(t, err)
	target, r := u.Host, testenv.StartRelay(t, "")
	u.Host = r.Addr()
	query := u.Query()
	query.Set("serverSelectionTimeoutMS", "500")
	u.RawQuery = query.Encode()
	s, l := openLogged(t, mongostore.Options{URI: u.String(), Database: testenv.Database(t)})
	wantReason(t, s, l, "the server hangs up")

	r.To(target)
	awaitReady(t, s)
	in := job.Input{JobID: "a", RequestID: "r"}
	recordOne(t, s, in, job.First, 1)

	r.To("")
	r.Cut()
	if err := s.Check(t.Context()); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Check without a database: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	o := s.Record(ctx, []job.Delivery{delivery(t, in)})[0]
	if !errors.Is(o.Err, job.ErrUnavailable) && !errors.Is(o.Err, job.ErrOutcomeUnknown) {
		t.Errorf("Record without a database: %v", o.Err)
	}
	if _, err := s.Get(ctx, "a", false); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("Get without a database: %v", err)
	}

	r.To(target)
	deadline := time.Now().Add(time.Minute)
	for s.Check(t.Context()) != nil && time.Now().Before(deadline) {
		// Check itself waits for a server.
	}
	if o := s.Record(t.Context(), []job.Delivery{delivery(t, in)})[0]; o.Err != nil || o.Verdict.Disposition != job.First {
		t.Errorf("the same call after the outage: %+v", o)
	}
}

// TestExistingDuplicates: an index over duplicates is not made, one of them is named, and the store heals when it is gone.
func TestExistingDuplicates(t *testing.T) {
	uri := testenv.MongoURI(t)
	for name, c := range map[string]struct {
		docs   []any
		remove bson.D
		want   string
	}{
		"one id twice": {
			[]any{bson.D{{Key: "job_id", Value: "twin"}, {Key: "n", Value: 1}}, bson.D{{Key: "job_id", Value: "twin"}, {Key: "n", Value: 2}},
				bson.D{{Key: "job_id", Value: "single"}}},
			bson.D{{Key: "n", Value: 2}}, `2 documents have the job_id \"twin\"`,
		},
		"no id twice": {
			[]any{bson.D{{Key: "n", Value: 1}}, bson.D{{Key: "n", Value: 2}}},
			bson.D{{Key: "n", Value: 2}}, "2 documents have no job_id",
		},
	} {
		t.Run(name, func(t *testing.T) {
			database := testenv.Database(t)
			jobs := collection(t, uri, database)
			if _, err := jobs.InsertMany(t.Context(), c.docs); err != nil {
				t.Fatal(err)
			}
			s, l := openLogged(t, mongostore.Options{URI: uri, Database: database})
			wantReason(t, s, l, c.want)
			if err := s.Check(t.Context()); !errors.Is(err, job.ErrUnready) {
				t.Errorf("told as an outage: %v", err)
			}
			if _, err := jobs.DeleteOne(t.Context(), c.remove); err != nil {
				t.Fatal(err)
			}
			awaitReady(t, s)
			recordOne(t, s, job.Input{JobID: "new"}, job.First, 1)
		})
	}
}

func createIndex(t *testing.T, jobs *mongo.Collection, o *options.IndexOptionsBuilder) string {
	t.Helper()
	name, err := jobs.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}}, Options: o})
	testenv.Must(t, err)
	return name
}

func TestWrongIndexThenRight(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	jobs := collection(t, uri, database)
	name := createIndex(t, jobs, options.Index())
	s, l := openLogged(t, mongostore.Options{URI: uri, Database: database})
	wantReason(t, s, l, "it is not unique")
	testenv.Must(t, jobs.Indexes().DropOne(t.Context(), name))
	awaitReady(t, s)
}

// uniqueIndexes lists the indexes on job_id.
func uniqueIndexes(t *testing.T, jobs *mongo.Collection) (names []string) {
	t.Helper()
	specs, err := jobs.Indexes().ListSpecifications(t.Context())
	testenv.Must(t, err)
	for _, s := range specs {
		if keys, _ := s.KeysDocument.Elements(); keys[0].Key() == "job_id" {
			names = append(names, s.Name)
		}
	}
	return names
}

func TestIndexNames(t *testing.T) {
	uri := testenv.MongoURI(t)
	for given, want := range map[string]string{"": "job_id_1", "once_per_job": "once_per_job"} {
		database := testenv.Database(t)
		jobs := collection(t, uri, database)
		if given != "" {
			createIndex(t, jobs, options.Index().SetUnique(true).SetName(given))
		}
		recordOne(t, open(t, mongostore.Options{URI: uri, Database: database}), job.Input{JobID: "a"}, job.First, 1)
		if names := uniqueIndexes(t, jobs); len(names) != 1 || names[0] != want {
			t.Errorf("with an index %q before, there are %q", given, names)
		}
	}
}

// TestRealDatabase: what is said about the database at hand.
func TestRealDatabase(t *testing.T) {
	s, l := openLogged(t, mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t)})
	line := l.await(t, "store ready")
	awaitReady(t, s)
	standalone := strings.Contains(line, "topology=standalone")
	if announced := strings.Contains(l.rest(), "standalone server"); announced != standalone {
		t.Errorf("announced as a standalone: %t", announced)
	}
	if off := s.ClockOffset(); off.Abs() > time.Minute {
		t.Errorf("the database runs on this machine, and its clock is off by %v", off)
	}
}

// TestDemoted: with directConnection a member that is no longer primary answers all that only reads.
func TestDemoted(t *testing.T) {
	const reason = "it is not the primary of its replica set"
	f := startFake(t, nil)
	primary := bson.D{{Key: "setName", Value: "rs0"}, {Key: "isWritablePrimary", Value: true}}
	secondary := bson.D{{Key: "setName", Value: "rs0"}, {Key: "isWritablePrimary", Value: false}, {Key: "secondary", Value: true}}
	f.answer("hello", primary)
	s, _ := openFake(t, f)
	awaitReady(t, s)
	f.answer("hello", secondary)
	err := s.Check(t.Context())
	wantUnavailable(t, err)
	if !strings.Contains(err.Error(), reason) {
		t.Errorf("Check does not say why: %v", err)
	}
	f.answer("hello", primary)
	testenv.OK(t, s.Check(t.Context()))

	f.answer("hello", secondary)
	f.answer("createIndexes", failure(10107, "NotWritablePrimary", "not primary"))
	demoted, l := openFake(t, f)
	l.await(t, reason)
	wantUnready(t, demoted, reason)
}
