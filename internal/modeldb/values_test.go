package modeldb_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// missing stands for a field that is not there.
type missing struct{}

// values are of all types that others may have written into a field, with those that are equal over types, or nearly.
var values = []any{missing{}, nil, int32(0), int32(1), int64(1), 1.0, 1.5, int64(1<<53 + 1), "", "a", "é", bson.D{}, bson.D{{Key: "x", Value: int32(1)}},
	bson.D{{Key: "x", Value: 1.0}}, bson.D{{Key: "y", Value: nil}}, bson.A{}, bson.A{int32(1), "a"}, bson.A{nil}, bson.Binary{}, bson.Binary{Data: []byte{2, 1}},
	bson.Binary{Data: []byte{3}}, false, true, bson.DateTime(0), bson.DateTime(1)}

// TestEveryPair has the model and a real database compare and change values of every type with operands of every type, by each operator
// that the store uses.
func TestEveryPair(t *testing.T) {
	g := newComparison(t)
	each := func(f func(id string, v any) bson.D) (statements bson.A) {
		for i, v := range values {
			if s := f(fmt.Sprint(i), v); s != nil {
				statements = append(statements, s)
			}
		}
		return statements
	}
	is := func(id string) bson.E { return bson.E{Key: "q", Value: bson.D{{Key: "_id", Value: id}}} }
	update := func(statements bson.A) {
		g.compare(bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: statements}, {Key: "ordered", Value: false}})
	}
	fill := func() {
		g.compare(bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: each(func(id string, _ any) bson.D { return bson.D{is(id), {Key: "limit", Value: 1}} })}})
		update(each(func(id string, v any) bson.D {
			set := bson.D{{Key: "v", Value: v}}
			if v == (missing{}) {
				set = bson.D{{Key: "w", Value: 1}}
			}
			return bson.D{is(id), {Key: "u", Value: bson.D{{Key: "$set", Value: set}}}, {Key: "upsert", Value: true}}
		}))
	}
	change := func(u any, unless func(v any) bool) {
		fill()
		update(each(func(id string, v any) bson.D {
			if g.documentDB && unless != nil && unless(v) {
				return nil
			}
			return bson.D{is(id), {Key: "u", Value: u}}
		}))
	}
	find := func(filter bson.D, more ...bson.E) {
		g.compare(append(bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}}, more...))
	}
	of := func(key string, v any) bson.D { return bson.D{{Key: key, Value: v}} }
	fill()
	for _, o := range values[1:] {
		for _, operator := range []string{"$eq", "$gt", "$gte", "$lt", "$lte"} {
			find(of("v", of(operator, o)))
			find(of("v", of("$not", of(operator, o))))
		}
		if _, is := o.(bson.D); !is || !g.documentDB { // which compares documents in lists byte for byte
			find(of("v", of("$in", bson.A{o, "é"})))
		}
		find(of("$nor", bson.A{of("v", o)}))
		find(bson.D{}, bson.E{Key: "projection", Value: bson.D{{Key: "eq", Value: of("$eq", bson.A{"$v", o})}, {Key: "gt", Value: of("$gt", bson.A{"$v", o})},
			{Key: "if", Value: of("$cond", bson.A{"$v", 1, 2})}, {Key: "null", Value: of("$ifNull", bson.A{"$v", o})}, {Key: "max", Value: of("$max", bson.A{"$v", o})}}})
	}
	for _, name := range []string{"string", "array", "date", "null", "int", "double", "object"} {
		find(of("v", of("$type", name)))
	}
	for _, there := range []bool{true, false} {
		find(of("v", of("$exists", there)))
	}
	find(bson.D{}, bson.E{Key: "projection", Value: bson.D{{Key: "type", Value: of("$type", "$v")}, {Key: "size", Value: of("$bsonSize", "$$ROOT")}}})
	withoutArrays := of("v", of("$not", of("$type", "array")))
	for _, projection := range []bson.D{of("v.x", 1), of("v.x", 0), of("v", 1), of("v", 0)} {
		find(withoutArrays, bson.E{Key: "projection", Value: projection})
	}
	for _, direction := range []int{1, -1} {
		find(withoutArrays, bson.E{Key: "sort", Value: bson.D{{Key: "v", Value: direction}, {Key: "_id", Value: 1}}})
	}
	for i, o := range values[1:] {
		change(of("$set", of("v", o)), func(v any) bool { // DocumentDB leaves {x: 1.0} as it is where {x: 1} is to be; MongoDB compares bytes (set_node.cpp)
			_, d := v.(bson.D)
			_, by := o.(bson.D)
			return d && by
		})
		change(of("$max", of("v", o)), nil)
		if isNumber(o) {
			change(of("$inc", of("v", o)), isBool)
		}
		change(bson.A{of("$set", bson.D{{Key: "v", Value: of("$max", bson.A{"$v", o})}, {Key: "w", Value: of("$ifNull", bson.A{"$v", o})}})}, nil)
		fill()
		update(bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprint("new ", i)}, {Key: "v", Value: o}}}, {Key: "u", Value: of("$set", of("w", 1))}, {Key: "upsert", Value: true}},
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprint("newer ", i)}, {Key: "v", Value: of("$eq", o)}}}, {Key: "u", Value: of("$set", of("w", 1))}, {Key: "upsert", Value: true}}})
	}
	change(bson.A{of("$set", of("v", of("$add", bson.A{"$v", 1})))}, nil)
}

// isBool tells whether a value is one that DocumentDB's $inc takes for a number. MongoDB's does not (manual: $inc).
func isBool(v any) bool { _, is := v.(bool); return is }
