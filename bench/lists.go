package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// fileWithoutLists makes a new embedded store without the indexes that lists alone need. A service does not ask for them when it
// starts.
func (l *lab) fileWithoutLists(ctx context.Context, version programs, data string) error {
	shell, err := exec.LookPath("sqlite3")
	if err != nil {
		return absent("sqlite3 is not installed, so nothing is measured without the indexes of lists")
	}
	p, _, err := startServe(ctx, l.dir, version.jobonce, nil, "--data-dir", data)
	if err != nil {
		return err
	}
	p.stop()
	return command(ctx, ".", shell, filepath.Join(data, "jobonce.db"), "DROP INDEX jobs_state; DROP INDEX jobs_conflict")
}

// withoutLists makes a new collection in which the indexes that lists alone need hold nothing. A service goes by their names.
func (d *database) withoutLists(ctx context.Context, collection string) error {
	var empty []mongo.IndexModel
	for _, name := range []string{"jobs_seen", "jobs_state", "jobs_conflict"} {
		never := bson.D{{Key: name, Value: bson.D{{Key: "$exists", Value: true}}}}
		empty = append(empty, mongo.IndexModel{Keys: bson.D{{Key: name, Value: 1}}, Options: options.Index().SetName(name).SetPartialFilterExpression(never)})
	}
	_, err := d.client.Database(d.name).Collection(collection).Indexes().CreateMany(ctx, empty)
	return err
}

// hasNoLists fails if the collection has an index that lists need after all.
func (d *database) hasNoLists(ctx context.Context, collection string) error {
	indexes, err := d.client.Database(d.name).Collection(collection).Indexes().ListSpecifications(ctx)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		if _, err := index.KeysDocument.LookupErr("first_seen"); err == nil {
			return fmt.Errorf("the service made the index %s", index.Name)
		}
	}
	return nil
}
