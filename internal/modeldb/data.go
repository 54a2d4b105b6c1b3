package modeldb

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// data is all that the database holds at one moment. It is never changed: a write makes another one, so that every moment
// can be read again.
type data struct {
	collections map[string]*collection // by namespace
	// retries is what the sessions did last, so that a repeated command is not executed again. It is data like any other:
	// what is rolled back is forgotten here too.
	retries map[string]retry
	sum     []byte // its digest, once somebody has asked for it
}

// collection holds documents in the order of their making.
type collection struct {
	number  int // of the collection, over all that there ever were
	docs    []document
	indexes []index
	sum     []byte // its digest, once somebody has asked for it
}

// index is an index of a collection. Documents are found without it: it is here for being unique, and for being there.
type index struct {
	name   string
	spec   document
	unique bool
	key    document
}

// retry is the latest numbered command of a session.
type retry struct {
	txn int64
	// done are the results of the statements that changed something, by their numbers.
	done map[int32]result
}

// result is what one statement did.
type result struct {
	matched, modified int
	upserted          any // the _id of the document that was made; nil when none was
}

func newData() *data {
	return &data{collections: map[string]*collection{}, retries: map[string]retry{}}
}

// withCollection is the data with another version of a collection.
func (d *data) withCollection(ns string, c *collection) *data {
	collections := maps.Clone(d.collections)
	collections[ns] = c
	return &data{collections: collections, retries: d.retries}
}

// withResult is the data with what a statement of a session did.
func (d *data) withResult(session string, txn int64, statement int32, r result) *data {
	done := map[int32]result{}
	if was := d.retries[session]; was.txn == txn {
		maps.Copy(done, was.done)
	}
	done[statement] = r
	retries := maps.Clone(d.retries)
	retries[session] = retry{txn, done}
	return &data{collections: d.collections, retries: retries}
}

// withSession is the data in which a session has begun its command of that number.
func (d *data) withSession(session string, txn int64) *data {
	if was, is := d.retries[session]; is && was.txn >= txn {
		return d
	}
	retries := maps.Clone(d.retries)
	retries[session] = retry{txn: txn}
	return &data{collections: d.collections, retries: retries}
}

// write executes one statement.
type write struct {
	ns             string
	filter, update any
	upsert, delete bool
	blind          bool                    // what it is to find is not there yet
	id             func() bson.ObjectID    // of a new document
	building       func(index string) bool // tells whether an index is still being made
}

// apply is the data after a statement.
func (d *data) apply(w write) (*data, result, *writeError) {
	c := d.collections[w.ns]
	if c == nil {
		c = &collection{}
	}
	filter := asDocument(w.filter)
	at := -1
	if !w.blind {
		at = slices.IndexFunc(c.docs, func(d document) bool { return matches(d, filter) })
	}
	if at < 0 && !w.upsert {
		return d, result{}, nil
	}
	if w.delete {
		changed := &collection{number: c.number, docs: slices.Delete(slices.Clone(c.docs), at, at+1), indexes: c.indexes}
		return d.withCollection(w.ns, changed), result{matched: 1, modified: 1}, nil
	}
	var before document
	if at < 0 {
		if before = equalities(filter); before.get("_id") == nil {
			before = append(document{{"_id", w.id()}}, before...)
		}
	} else {
		before = c.docs[at]
	}
	after, err := apply(before, w.update, at < 0)
	if err != nil {
		return d, result{}, err
	}
	if at >= 0 && identical(before, after) {
		return d, result{matched: 1}, nil
	}
	if err := c.checkUnique(after, at, w.building); err != nil {
		return d, result{}, err
	}
	changed := &collection{number: c.number, docs: slices.Clone(c.docs), indexes: c.indexes}
	r := result{matched: 1, modified: 1}
	if at < 0 {
		changed.docs = append(changed.docs, after)
		r = result{matched: 1, upserted: after.get("_id")}
	} else {
		changed.docs[at] = after
	}
	return d.withCollection(w.ns, changed), r, nil
}

// digest stands for all that the data is: equal data have equal digests.
func (d *data) digest() []byte {
	if d.sum != nil {
		return d.sum
	}
	var b bytes.Buffer
	for _, ns := range slices.Sorted(maps.Keys(d.collections)) {
		b.WriteString(ns)
		b.Write(d.collections[ns].digest())
	}
	for _, session := range slices.Sorted(maps.Keys(d.retries)) {
		r := d.retries[session]
		fmt.Fprintf(&b, "%s %d;", session, r.txn)
		for _, s := range slices.Sorted(maps.Keys(r.done)) {
			res := r.done[s]
			fmt.Fprintf(&b, "%d %d %d %t", s, res.matched, res.modified, res.upserted != nil)
		}
	}
	sum := sha256.Sum256(b.Bytes())
	d.sum = sum[:]
	return d.sum
}

func (c *collection) digest() []byte {
	if c.sum != nil {
		return c.sum
	}
	var b []byte
	for _, i := range c.indexes {
		b = append(b, i.name...)
	}
	for _, doc := range c.docs {
		b = doc.without("_id").append(b)
	}
	sum := sha256.Sum256(b)
	c.sum = sum[:]
	return c.sum
}
