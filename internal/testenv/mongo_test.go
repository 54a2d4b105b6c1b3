package testenv_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetTimeout(time.Minute))
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, client.Disconnect(context.WithoutCancel(t.Context()))) })
	return client
}

func createUniqueIndex(t *testing.T, jobs *mongo.Collection) {
	t.Helper()
	_, err := jobs.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys:    bson.D{{Key: "job_id", Value: 1}},
		Options: options.Index().SetUnique(true),
	})
	testenv.Must(t, err)
}

func TestDatabase(t *testing.T) {
	client := connect(t, testenv.MongoURI(t))
	var name string
	t.Run("holds a unique index", func(t *testing.T) {
		name = testenv.Database(t)
		if other := testenv.Database(t); other == name {
			t.Errorf("two databases are called %s", name)
		}
		jobs := client.Database(name).Collection("jobs")
		createUniqueIndex(t, jobs)
		job := bson.D{{Key: "job_id", Value: "a"}, {Key: "status", Value: "OK"}}
		if _, err := jobs.InsertOne(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		if _, err := jobs.InsertOne(t.Context(), job); !mongo.IsDuplicateKeyError(err) {
			t.Errorf("inserting a duplicate: %v, want a duplicate key error", err)
		}
		var got struct{ Status string }
		if err := jobs.FindOne(t.Context(), bson.D{{Key: "job_id", Value: "a"}}).Decode(&got); err != nil || got.Status != "OK" {
			t.Errorf("found status %q and %v, want OK", got.Status, err)
		}
	})
	names, err := client.ListDatabaseNames(t.Context(), bson.D{})
	testenv.Must(t, err)
	if slices.Contains(names, name) {
		t.Errorf("%s was not dropped at the end of its test", name)
	}
}

func TestPrivateMongoSurvivesKill(t *testing.T) {
	db := testenv.PrivateMongo(t)
	client := connect(t, db.URI)
	jobs := client.Database("app").Collection("jobs")
	createUniqueIndex(t, jobs)
	if _, err := jobs.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: "kept"}}); err != nil {
		t.Fatal(err)
	}

	db.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := client.Ping(ctx, nil); err == nil {
		t.Error("a killed database answers")
	}
	db.Start(t)
	db.Start(t) // changes nothing

	if n, err := jobs.CountDocuments(t.Context(), bson.D{{Key: "job_id", Value: "kept"}}); err != nil || n != 1 {
		t.Errorf("after the restart: %d documents and %v, want 1", n, err)
	}
	if _, err := jobs.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: "kept"}}); !mongo.IsDuplicateKeyError(err) {
		t.Errorf("inserting a duplicate after the restart: %v, want a duplicate key error", err)
	}
}
