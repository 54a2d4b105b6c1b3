package modeldb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestAgainstDatabase has the model and a real database do the same random commands, without faults, and compares what they
// answer: a mongod where there is one, else the test database. Fields of a document may be in another order.
func TestAgainstDatabase(t *testing.T) {
	seed := testenv.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	db := modeldb.New(modeldb.Standalone)
	model, err := mongo.Connect(options.Client().ApplyURI(db.URI()).SetDialer(db.Dialer(0)))
	if err != nil {
		t.Fatal(err)
	}
	real, err := mongo.Connect(options.Client().ApplyURI(testenv.MongoURI(t)))
	if err != nil {
		t.Fatal(err)
	}
	name := testenv.Database(t)
	sides := []*mongo.Collection{model.Database(name).Collection("jobs"), real.Database(name).Collection("jobs")}
	for _, c := range sides {
		if _, err := c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
			t.Fatal(err)
		}
	}
	commands := 300
	if testenv.Long() {
		commands *= 20
	}
	for range commands {
		what, do := command(rng)
		var answers [2]string
		for i, c := range sides {
			answers[i] = do(t, c)
		}
		if answers[0] != answers[1] && !isKnown(answers[0], answers[1]) {
			t.Fatalf("%s:\nthe model answers %s\nthe database     %s", what, answers[0], answers[1])
		}
	}
	for _, what := range db.Strange() {
		t.Error(what)
	}
	for _, c := range []*mongo.Client{model, real} {
		if err := c.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// known are the differences between the model and the test database, which is DocumentDB. MongoDB does what the model does.
var known = []struct {
	reason string
	is     func(model, database string) bool
}{
	{"$count gives a document with 0 where there is nothing to count; MongoDB gives none (manual: $count)", func(model, database string) bool {
		return model == "[]" && database == "[{n: int32(0)}]"
	}},
}

func isKnown(model, database string) bool {
	for _, k := range known {
		if k.is(model, database) {
			return true
		}
	}
	return false
}

// command is a random command, and what it answers on a collection.
func command(rng *rand.Rand) (what string, do func(*testing.T, *mongo.Collection) string) {
	switch rng.IntN(11) {
	case 0:
		var models []mongo.WriteModel
		for _, id := range rng.Perm(4)[:1+rng.IntN(2)] {
			f := bson.D{{Key: "job_id", Value: fmt.Sprint("job-", id)}, condition(rng)}
			what += fmt.Sprintf("delete %v; ", f)
			models = append(models, mongo.NewDeleteOneModel().SetFilter(f))
		}
		return what, func(t *testing.T, c *mongo.Collection) string {
			r, err := c.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(false))
			if err != nil {
				return err.Error()
			}
			return fmt.Sprintf("deleted %d", r.DeletedCount)
		}
	case 1, 2, 3, 4:
		var models []mongo.WriteModel
		for _, id := range rng.Perm(4)[:1+rng.IntN(3)] {
			m := mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "job_id", Value: fmt.Sprint("job-", id)}}).SetUpdate(change(rng)).SetUpsert(true)
			if rng.IntN(2) == 0 {
				f := append(bson.D{{Key: "job_id", Value: fmt.Sprint("job-", id)}}, condition(rng))
				m = mongo.NewUpdateOneModel().SetFilter(f).SetUpdate(change(rng))
			}
			what += fmt.Sprintf("%+v; ", *m)
			models = append(models, m)
		}
		return what, func(t *testing.T, c *mongo.Collection) string {
			r, err := c.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(false))
			var bulk mongo.BulkWriteException
			if err != nil && !errors.As(err, &bulk) {
				return err.Error()
			}
			var codes, made []int
			for _, e := range bulk.WriteErrors {
				codes = append(codes, e.Index, e.Code)
			}
			for i := range r.UpsertedIDs {
				made = append(made, int(i))
			}
			slices.Sort(made)
			return fmt.Sprintf("matched %d, made %v, errors %v", r.MatchedCount, made, codes)
		}
	case 5, 6:
		stages := mongo.Pipeline{{{Key: "$match", Value: bson.D{condition(rng), condition(rng)}}}, {{Key: "$count", Value: "n"}}}
		return fmt.Sprint(stages), func(t *testing.T, c *mongo.Collection) string {
			cursor, err := c.Aggregate(t.Context(), stages)
			return found(t, cursor, err)
		}
	case 7:
		stages := mongo.Pipeline{
			{{Key: "$match", Value: bson.D{condition(rng)}}}, {{Key: "$sort", Value: bson.D{{Key: "job_id", Value: 1 - 2*rng.IntN(2)}}}}, {{Key: "$limit", Value: 1 + rng.IntN(4)}},
			{{Key: "$group", Value: bson.D{
				{Key: "_id", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$work.state", "none"}}}}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
				{Key: "many", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$gt", Value: bson.A{"$n", 1}}}, 1, 0}}}}}}}}},
			{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}},
			{{Key: "$project", Value: bson.D{{Key: "_id", Value: 0}, {Key: "state", Value: "$_id"}, {Key: "n", Value: 1}, {Key: "many", Value: 1}}}}}
		return fmt.Sprint(stages), func(t *testing.T, c *mongo.Collection) string {
			cursor, err := c.Aggregate(t.Context(), stages)
			return found(t, cursor, err)
		}
	case 8:
		size := bson.D{{Key: "$switch", Value: bson.D{
			{Key: "branches", Value: bson.A{bson.D{{Key: "case", Value: bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$text"}}, "string"}}}},
				{Key: "then", Value: bson.D{{Key: "$strLenBytes", Value: "$text"}}}}}},
			{Key: "default", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}}}
		filter := bson.D{condition(rng)}
		opts := options.Find().SetProjection(bson.D{{Key: "size", Value: size}}).SetSort(bson.D{{Key: "job_id", Value: 1}}).SetBatchSize(1).SetHint("job_id_1")
		return fmt.Sprint("sizes of ", filter), func(t *testing.T, c *mongo.Collection) string { // with getMore
			cursor, err := c.Find(t.Context(), filter, opts)
			return found(t, cursor, err)
		}
	}
	filter := bson.D{condition(rng)}
	if rng.IntN(2) == 0 {
		filter = bson.D{{Key: []string{"$or", "$nor", "$and"}[rng.IntN(3)], Value: bson.A{bson.D{condition(rng)}, bson.D{condition(rng)}}}}
	}
	opts := options.Find().SetLimit(rng.Int64N(4)).SetProjection([]bson.D{nil, {{Key: "work", Value: 1}},
		{{Key: "n", Value: 0}, {Key: "work.token", Value: 0}}, {{Key: "job_id", Value: 1}, {Key: "size", Value: bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$text"}}, "string"}}}, bson.D{{Key: "$strLenBytes", Value: "$text"}}, -1}}}}}}[rng.IntN(4)]).
		SetSort(bson.D{{Key: "work.due", Value: 1 - 2*rng.IntN(2)}, {Key: "job_id", Value: 1}})
	return fmt.Sprint(filter), func(t *testing.T, c *mongo.Collection) string {
		cursor, err := c.Find(t.Context(), filter, opts)
		return found(t, cursor, err)
	}
}

// change is a random update, of operators or a pipeline.
func change(rng *rand.Rand) any {
	due := time.UnixMilli(1000 * rng.Int64N(4)).UTC()
	return []any{
		bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "text", Value: "é"}, {Key: "work", Value: bson.D{{Key: "state", Value: "queued"}, {Key: "due", Value: due}}}}},
			{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}, {Key: "$max", Value: bson.D{{Key: "last", Value: due}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "work.state", Value: "leased"}, {Key: "work.token", Value: fmt.Sprint(rng.IntN(3))}, {Key: "work.due", Value: due}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "work.state", Value: "completed"}}}, {Key: "$unset", Value: bson.D{{Key: "work.due", Value: ""}, {Key: "work.lease", Value: ""}}},
			{Key: "$inc", Value: bson.D{{Key: "work.attempts", Value: int32(-1)}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "text", Value: int32(1)}}}}, // a text
		mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "work.due", Value: bson.D{{Key: "$max", Value: bson.A{bson.D{{Key: "$add", Value: bson.A{"$work.due", 1}}}, due}}}},
			{Key: "work.granted", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$work.granted", int64(5)}}}}}}}},
	}[rng.IntN(5)]
}

// condition is a random condition on one field.
func condition(rng *rand.Rand) bson.E {
	due := time.UnixMilli(1000 * rng.Int64N(4)).UTC()
	return []bson.E{
		{Key: "work.state", Value: []string{"queued", "leased", "completed"}[rng.IntN(3)]},
		{Key: "work.due", Value: bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: due}}},
		{Key: "work.due", Value: bson.D{{Key: "$gt", Value: due}}},
		{Key: "work.token", Value: bson.D{{Key: "$exists", Value: rng.IntN(2) == 0}}},
		{Key: "work.token", Value: bson.D{{Key: "$eq", Value: fmt.Sprint(rng.IntN(3))}}},
		{Key: "n", Value: bson.D{{Key: "$in", Value: bson.A{1, int64(2), 3.0, nil}}}},
		{Key: "text", Value: bson.D{{Key: "$type", Value: "string"}, {Key: "$not", Value: bson.D{{Key: "$type", Value: "array"}}}}},
	}[rng.IntN(7)]
}

// found is what a cursor gives, without the ids.
func found(t *testing.T, cursor *mongo.Cursor, err error) string {
	if err != nil {
		return err.Error()
	}
	var docs []bson.D
	if err := cursor.All(t.Context(), &docs); err != nil {
		return err.Error()
	}
	texts := make([]string, len(docs))
	for i, d := range docs {
		texts[i] = text(d)
	}
	return fmt.Sprint(texts)
}

// text is a value with its types, the fields in the order of their names and without the id.
func text(v any) string {
	d, ok := v.(bson.D)
	if !ok {
		return fmt.Sprintf("%T(%v)", v, v)
	}
	var fields []string
	for _, e := range d {
		if e.Key != "_id" {
			fields = append(fields, e.Key+": "+text(e.Value))
		}
	}
	slices.Sort(fields)
	return "{" + strings.Join(fields, ", ") + "}"
}
