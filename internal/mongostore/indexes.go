package mongostore

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

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
