package modeldb

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// document is a BSON document. Documents that are stored are never changed: an update makes another one.
type document []element

type element struct {
	key   string
	value any
}

// The values that a document may have: document, array, string, int32, int64, float64, bool, null, date, binary and
// bson.ObjectID. A nil stands for what is not there.
type (
	array []any
	null  struct{}
	date  int64 // milliseconds since 1970
	// binary is comparable, as all scalars are.
	binary struct {
		subtype byte
		data    string
	}
)

// unmodelled is what a command may ask of MongoDB and not of this model.
type unmodelled struct{ what string }

func (e unmodelled) Error() string { return "the model has no " + e.what }

// refuse ends the execution of a command that asks for what the model does not have.
func refuse(format string, args ...any) { panic(unmodelled{fmt.Sprintf(format, args...)}) }

// parse reads a document.
func parse(raw []byte) document {
	d := make(document, 0, 4)
	elements(raw, func(key string, v bsoncore.Value) { d = append(d, element{key, valueOf(v)}) })
	return d
}

// elements calls f with each element of a document or an array. The driver makes no others than well-formed ones: they are
// not checked beforehand, which would cost more than reading them.
func elements(raw []byte, f func(key string, v bsoncore.Value)) {
	if len(raw) < 5 {
		refuse("way to read a document of %d bytes", len(raw))
	}
	for rest := raw[4 : len(raw)-1]; len(rest) > 0; {
		e, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			refuse("way to read a document: %x", raw)
		}
		f(e.Key(), e.Value())
		rest = after
	}
}

func valueOf(v bsoncore.Value) any {
	switch v.Type {
	case bsoncore.TypeEmbeddedDocument:
		return parse(v.Document())
	case bsoncore.TypeArray:
		a := array{}
		elements(v.Array(), func(_ string, v bsoncore.Value) { a = append(a, valueOf(v)) })
		return a
	case bsoncore.TypeString:
		return v.StringValue()
	case bsoncore.TypeInt32:
		return v.Int32()
	case bsoncore.TypeInt64:
		return v.Int64()
	case bsoncore.TypeDouble:
		return v.Double()
	case bsoncore.TypeBoolean:
		return v.Boolean()
	case bsoncore.TypeNull:
		return null{}
	case bsoncore.TypeDateTime:
		return date(v.DateTime())
	case bsoncore.TypeObjectID:
		return bson.ObjectID(v.ObjectID())
	case bsoncore.TypeBinary:
		subtype, data := v.Binary()
		return binary{subtype, string(data)}
	case bsoncore.TypeTimestamp:
		t, i := v.Timestamp()
		return bson.Timestamp{T: t, I: i}
	}
	refuse("values of the type %v", v.Type)
	return nil
}

// encode writes the document.
func (d document) encode() []byte { return d.append(make([]byte, 0, 256)) }

func (d document) append(b []byte) []byte {
	at, b := bsoncore.AppendDocumentStart(b)
	for _, e := range d {
		b = appendValue(b, e.key, e.value)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return b
}

func appendValue(b []byte, key string, v any) []byte {
	switch v := v.(type) {
	case document:
		return v.append(bsoncore.AppendHeader(b, bsoncore.TypeEmbeddedDocument, key))
	case array:
		at, b := bsoncore.AppendArrayElementStart(b, key)
		for i, item := range v {
			b = appendValue(b, strconv.Itoa(i), item)
		}
		b, _ = bsoncore.AppendArrayEnd(b, at)
		return b
	case string:
		return bsoncore.AppendStringElement(b, key, v)
	case int32:
		return bsoncore.AppendInt32Element(b, key, v)
	case int:
		return bsoncore.AppendInt32Element(b, key, int32(v))
	case int64:
		return bsoncore.AppendInt64Element(b, key, v)
	case float64:
		return bsoncore.AppendDoubleElement(b, key, v)
	case bool:
		return bsoncore.AppendBooleanElement(b, key, v)
	case null:
		return bsoncore.AppendNullElement(b, key)
	case date:
		return bsoncore.AppendDateTimeElement(b, key, int64(v))
	case bson.ObjectID:
		return bsoncore.AppendObjectIDElement(b, key, v)
	case binary:
		return bsoncore.AppendBinaryElement(b, key, v.subtype, []byte(v.data))
	case bson.Timestamp:
		return bsoncore.AppendTimestampElement(b, key, v.T, v.I)
	}
	refuse("values of the type %T", v)
	return nil
}

// get is the value of a field; nil when there is none.
func (d document) get(key string) any {
	for _, e := range d {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// at is the value at a dotted path; nil when there is none. Paths through arrays are not modelled.
func (d document) at(path string) any {
	key, rest, nested := strings.Cut(path, ".")
	v := d.get(key)
	if !nested {
		return v
	}
	switch v := v.(type) {
	case document:
		return v.at(rest)
	case array:
		refuse("paths through arrays")
	}
	return nil
}

// with is the document with a value at a path; false when something on the way is no document.
func (d document) with(path string, v any) (document, bool) {
	key, rest, nested := strings.Cut(path, ".")
	i := slices.IndexFunc(d, func(e element) bool { return e.key == key })
	if nested {
		inner := document(nil)
		if i >= 0 {
			var ok bool
			if inner, ok = d[i].value.(document); !ok {
				return d, false
			}
		}
		changed, ok := inner.with(rest, v)
		if !ok {
			return d, false
		}
		v = changed
	}
	d = slices.Clone(d)
	if i >= 0 {
		d[i].value = v
		return d, true
	}
	return append(d, element{key, v}), true
}

// without is the document without what is at a path.
func (d document) without(path string) document {
	key, rest, nested := strings.Cut(path, ".")
	i := slices.IndexFunc(d, func(e element) bool { return e.key == key })
	if i < 0 {
		return d
	}
	d = slices.Clone(d)
	if !nested {
		return slices.Delete(d, i, i+1)
	}
	if inner, ok := d[i].value.(document); ok {
		d[i].value = inner.without(rest)
	}
	return d
}

// rank is where a type stands in MongoDB's order of types.
func rank(v any) int {
	switch v.(type) {
	case nil:
		return 0
	case null:
		return 1
	case int, int32, int64, float64:
		return 2
	case string:
		return 3
	case document:
		return 4
	case array:
		return 5
	case binary:
		return 6
	case bson.ObjectID:
		return 7
	case bool:
		return 8
	case date:
		return 9
	case bson.Timestamp:
		return 10
	}
	refuse("order for the type %T", v)
	return 0
}

// compare orders values as MongoDB does.
func compare(a, b any) int {
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	switch a := a.(type) {
	case string:
		return cmp.Compare(a, b.(string))
	case date:
		return cmp.Compare(a, b.(date))
	case bool:
		switch {
		case a == b.(bool):
			return 0
		case a:
			return 1
		}
		return -1
	case bson.ObjectID:
		o := b.(bson.ObjectID)
		return slices.Compare(a[:], o[:])
	case binary:
		o := b.(binary)
		return cmp.Or(cmp.Compare(len(a.data), len(o.data)), cmp.Compare(a.subtype, o.subtype), cmp.Compare(a.data, o.data))
	case document:
		return slices.CompareFunc(a, b.(document), func(x, y element) int {
			return cmp.Or(cmp.Compare(rank(x.value), rank(y.value)), cmp.Compare(x.key, y.key), compare(x.value, y.value))
		})
	case array:
		return slices.CompareFunc(a, b.(array), compare)
	case bson.Timestamp:
		return a.Compare(b.(bson.Timestamp))
	}
	if x, y, whole := integers(a, b); whole {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(number(a), number(b))
}

// identical tells whether two values are the same in all: a number is not identical to an equal one of another type.
func identical(a, b any) bool {
	switch a := a.(type) {
	case document:
		b, is := b.(document)
		return is && slices.EqualFunc(a, b, func(x, y element) bool { return x.key == y.key && identical(x.value, y.value) })
	case array:
		b, is := b.(array)
		return is && slices.EqualFunc(a, b, identical)
	}
	return a == b
}

// integer is a number without its fraction.
func integer(v any) (n int64, ok bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return 0, false
}

func integers(a, b any) (x, y int64, whole bool) {
	x, one := integer(a)
	y, two := integer(b)
	return x, y, one && two
}

func number(v any) float64 {
	if f, ok := v.(float64); ok {
		return f
	}
	n, _ := integer(v)
	return float64(n)
}

// truthy is what MongoDB takes for true where an option or an expression is to be.
func truthy(v any) bool {
	switch v := v.(type) {
	case nil, null:
		return false
	case bool:
		return v
	case int32, int64, float64, int:
		return number(v) != 0
	}
	return true
}

// typeNames are those of [typeName] by which filters may ask.
var typeNames = []string{"null", "int", "long", "double", "string", "object", "array", "binData", "objectId", "bool", "date", "timestamp"}

// typeName is MongoDB's name of a value's type.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "missing"
	case null:
		return "null"
	case int32, int:
		return "int"
	case int64:
		return "long"
	case float64:
		return "double"
	case string:
		return "string"
	case document:
		return "object"
	case array:
		return "array"
	case binary:
		return "binData"
	case bson.ObjectID:
		return "objectId"
	case bool:
		return "bool"
	case date:
		return "date"
	case bson.Timestamp:
		return "timestamp"
	}
	refuse("name for the type %T", v)
	return ""
}
