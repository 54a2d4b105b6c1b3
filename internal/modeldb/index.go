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
	return index{name: "_id_", spec: document{{"v", int32(2)}, {"key", key}, {"name", "_id_"}}, unique: true, key: key}
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
	if err := out.checkAll(); err != nil {
		return nil, err
	}
	return out, nil
}

// checkAll refuses documents that have the same key in a unique index.
func (c *collection) checkAll() *writeError {
	for i, d := range c.docs {
		if err := c.checkUnique(d, i, nil); err != nil {
			return err
		}
	}
	return nil
}

// without is the collection without an index.
func (c *collection) without(name string) *collection {
	kept := slices.DeleteFunc(slices.Clone(c.indexes), func(i index) bool { return i.name == name })
	return &collection{number: c.number, docs: c.docs, indexes: kept}
}

func filterOf(spec document) document {
	d, _ := spec.get("partialFilterExpression").(document)
	return d
}

// checkUnique refuses a document that stands at a place (-1: nowhere yet) when another one has its key in a unique index. While an
// index is being made, it refuses nothing (src/mongo/db/index_builds/README.md, "Internal Table For Duplicate Key Violations").
func (c *collection) checkUnique(d document, place int, building func(index string) bool) *writeError {
	for _, i := range append([]index{idIndex()}, c.indexes...) {
		if !i.unique || building != nil && building(i.name) {
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
	if name == "_id_" || c.index(name) != nil && !x.building[x.ns()+" "+name] {
		return nil
	}
	return &writeError{code: codeBadValue, message: "error processing query: hint provided does not correspond to an existing index"}
}

// index is the index of that name; nil when there is none.
func (c *collection) index(name string) *index {
	if c == nil {
		return nil
	}
	at := slices.IndexFunc(c.indexes, func(i index) bool { return i.name == name })
	if at < 0 {
		return nil
	}
	return &c.indexes[at]
}

// seen is what a reading command sees of its collection: by a hint, what is in that index. One that does not have all that is asked for
// is read whole (src/mongo/db/query/query_planner.cpp: "An index was hinted").
func (x *execution) seen() []document {
	docs := x.read()
	hint, _ := x.command.get("hint").(string)
	if i := x.latest().collections[x.ns()].index(hint); i != nil {
		docs = slices.DeleteFunc(docs, func(d document) bool { return !matches(d, filterOf(i.spec)) })
	}
	return docs
}

func (x *execution) createIndexes() document {
	c := x.collection()
	made := len(c.indexes) == 0
	if made {
		c.indexes = append(c.indexes, idIndex())
	}
	before := len(c.indexes)
	for _, s := range asArray(x.command.get("indexes")) {
		spec := asDocument(s)
		name := asText(spec.get("name"))
		var err *writeError
		if c, err = c.withIndex(spec); err == nil && x.building[x.ns()+" "+name] { // it waits for that, which fails over duplicates
			x.building = without(x.building, x.ns()+" "+name)
			if err = c.checkAll(); err != nil {
				x.append(x.latest().withCollection(x.ns(), c.without(name)))
				x.commit()
			}
		}
		if err != nil {
			return failure(err)
		}
	}
	if len(c.indexes) != before || made {
		x.append(x.latest().withCollection(x.ns(), c))
		x.commit()
	}
	return document{{"ok", 1.0}, {"numIndexesBefore", int32(before)}, {"numIndexesAfter", int32(len(c.indexes))}}
}

func (x *execution) listIndexes() document {
	c := x.latest().collections[x.ns()]
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
	for ns, c := range x.latest().collections {
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
