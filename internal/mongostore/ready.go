package mongostore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// remeasure is how often the indexes are looked at again.
	remeasure = time.Minute
	// prepareTimeout bounds one look. Building an index has its own time.
	prepareTimeout = 15 * time.Second
	indexTimeout   = time.Hour

	codeInternalError = 1
)

// deployment is what a database says of itself.
type deployment struct {
	kind string // one of the constants below
	// sessions is true where reads can be ordered after writes.
	sessions bool
}

// The kinds of deployment, for people too.
const (
	standalone = "standalone"
	replicaSet = "replica set"
	sharded    = "sharded cluster"
)

// schemaError is a state of the collection that a person has to change.
type schemaError struct{ problem string }

func (e *schemaError) Error() string { return e.problem }

// maintain prepares the store until it succeeds, and looks again every minute after that.
func (s *Store) maintain(ctx context.Context) {
	defer close(s.stopped)
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for {
		err := s.prepare(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report(err)
		wait := remeasure
		if err == nil {
			pause.Reset()
		} else {
			wait = pause.NextBackOff()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// report takes note of how preparing went and logs what changed. A database that cannot be reached makes a prepared
// store no less prepared: its calls find out by themselves, and Check does.
func (s *Store) report(err error) {
	before := s.unready.Load()
	var schema *schemaError
	switch {
	case err == nil && before != nil:
		s.unready.Store(nil)
		t := s.deployment.Load()
		s.log.Info("store ready", "store", s.String(), "topology", t.kind, "clock_offset", s.ClockOffset())
		if t.kind == standalone {
			s.log.Warn("the database is a standalone server: it loses what it has when its disk is lost, and has no " +
				"retryable writes, so every interrupted write is settled by repeating it with its request id; " +
				"use a replica set in production")
		}
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
	case err != nil && (before != nil || errors.As(err, &schema)):
		err = s.explain(err)
		s.unready.Store(&err)
		if before == nil || (*before).Error() != err.Error() {
			s.log.Error("store not ready", "store", s.String(), "error", err)
		}
	case err != nil:
		s.log.Warn("cannot look after the store", "store", s.String(), "error", s.explain(err))
	}
}

// prepare looks at everything that must be right before the store may serve.
func (s *Store) prepare(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := s.hello(look); err != nil {
		return err
	}
	if err := s.checkCollection(look); err != nil {
		return err
	}
	return s.ensureIndexes(ctx)
}

// checkCollection refuses a collection that the upsert cannot be trusted on. One that does not exist is fine.
func (s *Store) checkCollection(ctx context.Context) error {
	specs, err := s.coll.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: s.coll.Name()}})
	if err != nil {
		return err
	}
	for _, spec := range specs {
		if spec.Name == s.coll.Name() {
			if err := judgeCollection(spec.Name, spec.Type, spec.Options); err != nil {
				return err
			}
		}
	}
	return nil
}

func judgeCollection(name, kind string, opts bson.Raw) error {
	if kind != "" && kind != "collection" {
		return &schemaError{fmt.Sprintf("%s is a %s; name a plain collection with --mongodb-collection", name, kind)}
	}
	if capped, _ := opts.Lookup("capped").BooleanOK(); capped {
		return &schemaError{name + " is a capped collection, which drops its oldest jobs; name a plain collection with --mongodb-collection"}
	}
	if c, ok := opts.Lookup("collation").DocumentOK(); ok {
		if locale, _ := c.Lookup("locale").StringValueOK(); locale != "" && locale != "simple" {
			return &schemaError{fmt.Sprintf("%s has the default collation %q, under which different ids can be equal; "+
				"copy its documents into a collection without a collation and name that with --mongodb-collection", name, locale)}
		}
	}
	return nil
}

// ensureIndexes makes the indexes that are missing, and refuses those that do not do what ours do.
func (s *Store) ensureIndexes(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	cursor, err := s.coll.Indexes().List(look)
	if err != nil {
		return err
	}
	var found []bson.Raw
	if err := cursor.All(look, &found); err != nil {
		return err
	}
	ok, err := judgeIndexes(found)
	if err != nil {
		return err
	}
	if !ok {
		if err := s.createIndex(ctx); err != nil {
			return err
		}
	}
	return s.createWorkIndexes(ctx, found)
}

// createWorkIndexes makes those that are missing by name.
func (s *Store) createWorkIndexes(ctx context.Context, found []bson.Raw) error {
	have := map[string]bool{}
	for _, index := range found {
		name, _ := index.Lookup("name").StringValueOK()
		have[name] = true
	}
	for _, model := range workIndexes() {
		name := model.Keys.(bson.D)[0].Key + "_1"
		if have[name] {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, indexTimeout)
		defer cancel()
		if _, err := s.coll.Indexes().CreateOne(ctx, model); err != nil {
			return fmt.Errorf("make the index %s: %w", name, err)
		}
	}
	return nil
}

// createIndex makes the unique index with the name that the seed's own createIndex gives it, so that either may come
// first.
func (s *Store) createIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	s.log.Info("making the unique index", "store", s.String(), "index", indexName)
	_, err := s.coll.Indexes().CreateOne(ctx, uniqueIndex())
	var command mongo.CommandError
	// DocumentDB has no error of its own for duplicates.
	vague := errors.As(err, &command) && command.Code == codeInternalError
	if !vague && !mongo.IsDuplicateKeyError(err) {
		return err
	}
	which, ferr := s.findDuplicate(ctx)
	if vague && (ferr != nil || which == "") {
		return err
	}
	switch {
	case ferr != nil:
		which = "run the aggregation in docs/mongodb.md to find them"
	case which == "":
		which = "they seem to be gone by now"
	}
	return &schemaError{fmt.Sprintf("the unique index on job_id cannot be made over duplicates: %s; keep one document "+
		"of each job and delete the others, then JobOnce goes on by itself", which)}
}

// findDuplicate names one job_id that several documents have; empty when there is none.
func (s *Store) findDuplicate(ctx context.Context) (string, error) {
	cursor, err := s.coll.Aggregate(ctx, duplicatesPipeline())
	if err != nil {
		return "", err
	}
	var found []struct {
		ID any `bson:"_id"`
		N  int `bson:"n"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", nil
	}
	if found[0].ID == nil {
		return fmt.Sprintf("%d documents have no job_id", found[0].N), nil
	}
	return fmt.Sprintf("%d documents have the job_id %q", found[0].N, fmt.Sprint(found[0].ID)), nil
}

// indexName is what createIndex({job_id: 1}) names it by itself.
const indexName = "job_id_1"

func uniqueIndex() mongo.IndexModel {
	return mongo.IndexModel{
		Keys:    bson.D{{Key: fieldJobID, Value: 1}},
		Options: options.Index().SetName(indexName).SetUnique(true),
	}
}

// workIndexes are what claims need. Each is partial, so that finished and untracked jobs, which lack the field, cost
// nothing.
func workIndexes() []mongo.IndexModel {
	var models []mongo.IndexModel
	for _, field := range []string{inWork(workDue), inWork(workClaimID)} {
		models = append(models, mongo.IndexModel{
			Keys: bson.D{{Key: field, Value: 1}},
			Options: options.Index().SetName(field + "_1").
				SetPartialFilterExpression(bson.D{{Key: field, Value: bson.D{{Key: "$exists", Value: true}}}}),
		})
	}
	return models
}

// duplicatesPipeline finds one job_id that stands in several documents. docs/mongodb.md has it for people.
func duplicatesPipeline() mongo.Pipeline {
	return mongo.Pipeline{
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$" + fieldJobID}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
		{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: 1}}}}}},
		{{Key: "$limit", Value: 1}},
	}
}

// judgeIndexes tells whether the collection has the unique index on job_id, whatever its name. An index on exactly that
// key which does not hold for every document, or compares otherwise than byte for byte, is refused: the upsert would be
// let through where it must not be.
func judgeIndexes(indexes []bson.Raw) (found bool, err error) {
	for _, index := range indexes {
		if !keyIsJobID(index) {
			continue
		}
		name, _ := index.Lookup("name").StringValueOK()
		var faults []string
		if unique, _ := index.Lookup("unique").BooleanOK(); !unique {
			faults = append(faults, "it is not unique")
		}
		if sparse, _ := index.Lookup("sparse").BooleanOK(); sparse {
			faults = append(faults, "it is sparse")
		}
		if _, ok := index.Lookup("partialFilterExpression").DocumentOK(); ok {
			faults = append(faults, "it is partial")
		}
		if index.Lookup("expireAfterSeconds").IsNumber() {
			faults = append(faults, "it expires documents")
		}
		if c, ok := index.Lookup("collation").DocumentOK(); ok {
			if locale, _ := c.Lookup("locale").StringValueOK(); locale != "simple" {
				faults = append(faults, "it has the collation "+locale)
			}
		}
		if len(faults) > 0 {
			return false, &schemaError{fmt.Sprintf("the index %q on job_id must be unique and nothing else, but %s; drop it "+
				"(db.COLLECTION.dropIndex(%q)), and JobOnce makes the right one", name, strings.Join(faults, " and "), name)}
		}
		found = true
	}
	return found, nil
}

// keyIsJobID tells whether the index's key is {job_id: 1}. The number may be of any type.
func keyIsJobID(index bson.Raw) bool {
	key, ok := index.Lookup("key").DocumentOK()
	if !ok {
		return false
	}
	elements, err := key.Elements()
	if err != nil || len(elements) != 1 || elements[0].Key() != fieldJobID {
		return false
	}
	n, ok := elements[0].Value().AsInt64OK()
	return ok && n == 1
}

// Until the look at the indexes keeps the name of the unique one.
func (s *Store) hintName() string { return "" }
func (s *Store) hintRefused()     {}
func (s *Store) workReady() error { return nil }
func (s *Store) indexSuspect(context.Context) error {
	return nil
}
