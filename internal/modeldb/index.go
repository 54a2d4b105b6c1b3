package modeldb

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	codeIndexNotFound         = 27
	codeIndexOptionsConflict  = 85
	codeIndexKeySpecsConflict = 86
)

// idIndex is the index that every collection has.
func idIndex() index {
	key := document{{"_id", int32(1)}}
	return index{name: "_id_", spec: document{{"v", int32(2)}, {"key", key}, {"name", "_id_"}}, key: key}
}

// indexOptions are what an index may be made with here.
var indexOptions = []string{"key", "name", "unique", "partialFilterExpression", "v", "background"}

// withIndex is the collection with an index. One that is there already, the same in all, is not made again.
func (c *collection) withIndex(spec document) (*collection, *writeError) {
	for _, e := range spec {
		if !slices.Contains(indexOptions, e.key) {
			refuse("index option %s", e.key)
		}
	}
	made := index{name: asText(spec.get("name")), spec: spec.without("background"), unique: truthy(spec.get("unique")), key: asDocument(spec.get("key"))}
	if made.spec.get("v") == nil {
		made.spec = append(document{{"v", int32(2)}}, made.spec...)
	}
	for _, i := range c.indexes {
		same := compare(i.key, made.key) == 0
		alike := i.unique == made.unique && compare(filterOf(i.spec), filterOf(made.spec)) == 0
		switch {
		case same && alike && i.name == made.name:
			return c, nil
		case i.name == made.name:
			return nil, &writeError{code: codeIndexKeySpecsConflict, message: "An existing index has the same name as the requested index"}
		case same && alike:
			return nil, &writeError{code: codeIndexOptionsConflict, message: "Index already exists with a different name: " + i.name}
		case same && !i.unique == !made.unique && len(filterOf(i.spec)) == 0:
			return nil, &writeError{code: codeIndexOptionsConflict, message: "Index already exists with other options: " + i.name}
		}
	}
	out := &collection{number: c.number, docs: c.docs, indexes: append(slices.Clone(c.indexes), made)}
	if made.unique {
		for i, d := range c.docs {
			if err := out.checkUnique(d, i); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func filterOf(spec document) document {
	d, _ := spec.get("partialFilterExpression").(document)
	return d
}

// checkUnique refuses a document that stands at a place (-1: nowhere yet) when another one has its key in a unique index.
func (c *collection) checkUnique(d document, place int) *writeError {
	for _, i := range c.indexes {
		if !i.unique {
			continue
		}
		if len(filterOf(i.spec)) > 0 {
			refuse("unique indexes that are partial")
		}
		for at, other := range c.docs {
			if at != place && !slices.ContainsFunc(i.key, func(k element) bool { return !sameKey(d.at(k.key), other.at(k.key)) }) {
				return &writeError{codeDuplicateKey, "E11000 duplicate key error index: " + i.name, i.key}
			}
		}
	}
	return nil
}

// sameKey tells whether two documents have the same key in an index, where what is not there is null.
func sameKey(a, b any) bool {
	if _, is := a.(array); is {
		refuse("arrays in a unique index")
	}
	return compare(cmpOr(a, null{}), cmpOr(b, null{})) == 0
}

// checkHint refuses a hint at an index that is not there, or not finished.
func (x *execution) checkHint(c *collection, hint any) *writeError {
	if hint == nil {
		return nil
	}
	name, ok := hint.(string)
	if !ok {
		refuse("hint %v", hint)
	}
	if name == "_id_" || c != nil && !x.building[x.ns()+" "+name] && slices.ContainsFunc(c.indexes, func(i index) bool { return i.name == name }) {
		return nil
	}
	return &writeError{code: codeBadValue, message: "error processing query: hint provided does not correspond to an existing index"}
}

func (x *execution) createIndexes() document {
	c := x.collection()
	made := len(c.indexes) == 0
	if made {
		c.indexes = append(c.indexes, idIndex())
	}
	before := len(c.indexes)
	for _, spec := range asArray(x.command.get("indexes")) {
		var err *writeError
		if c, err = c.withIndex(asDocument(spec)); err != nil {
			return failure(err)
		}
		delete(x.building, x.ns()+" "+asText(asDocument(spec).get("name"))) // it waits for one that is being made
	}
	if len(c.indexes) != before || made {
		x.node.append(x.node.latest().withCollection(x.ns(), c))
		x.node.commit()
	}
	return document{{"ok", 1.0}, {"numIndexesBefore", int32(before)}, {"numIndexesAfter", int32(len(c.indexes))}}
}

func (x *execution) listIndexes() document {
	c := x.node.latest().collections[x.ns()]
	if c == nil {
		return failure(&writeError{code: 26, message: "ns does not exist: " + x.ns()})
	}
	var specs []document
	for _, i := range c.indexes {
		specs = append(specs, i.spec)
	}
	return x.cursor(specs)
}

func (x *execution) listCollections() document {
	filter, _ := x.command.get("filter").(document)
	db := asText(x.command.get("$db")) + "."
	var found []document
	for ns, c := range x.node.latest().collections {
		name, ours := strings.CutPrefix(ns, db)
		uuid := bson.Binary{Subtype: 4, Data: []byte{0: 1, 7: byte(c.number), 15: 0}}
		d := document{{"name", name}, {"type", "collection"}, {"options", document{}},
			{"info", document{{"readOnly", false}, {"uuid", binary{uuid.Subtype, string(uuid.Data)}}}}}
		if ours && matches(d, filter) {
			found = append(found, d)
		}
	}
	return x.cursor(found)
}
