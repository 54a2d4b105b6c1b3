//go:build !older

package main

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/payload"
)

// decodeRaw writes BSON in one pass over the text.
func decodeRaw(body string) (event, error) {
	w := rawWriter{b: make([]byte, 0, len(body)+len(body)/4)}
	if _, err := payload.Walk(body, "payload", 99, &w); err != nil {
		return event{}, err
	}
	// The walk writes an element, which a document of its own must not be: its type and key come before it.
	document := bson.Raw(w.b[len("\x03payload\x00"):])
	text := func(key string) string { s, _ := document.Lookup(key).StringValueOK(); return s }
	return event{jobID: text("job_id"), event: text("event"), status: text("status"), payload: document}, nil
}

// rawWriter is a payload.Sink that appends BSON.
type rawWriter struct {
	b    []byte
	open []int32
}

func (w *rawWriter) begin(index int32, b []byte) { w.b, w.open = b, append(w.open, index) }

func (w *rawWriter) end() {
	last := len(w.open) - 1
	// It fails only for an index that is not in b.
	w.b, _ = bsoncore.AppendDocumentEnd(w.b, w.open[last])
	w.open = w.open[:last]
}

func (w *rawWriter) BeginObject(key string) { w.begin(bsoncore.AppendDocumentElementStart(w.b, key)) }
func (w *rawWriter) BeginArray(key string)  { w.begin(bsoncore.AppendArrayElementStart(w.b, key)) }
func (w *rawWriter) EndObject()             { w.end() }
func (w *rawWriter) EndArray()              { w.end() }
func (w *rawWriter) Null(key string)        { w.b = bsoncore.AppendNullElement(w.b, key) }
func (w *rawWriter) Bool(key string, v bool) {
	w.b = bsoncore.AppendBooleanElement(w.b, key, v)
}
func (w *rawWriter) String(key, v string) { w.b = bsoncore.AppendStringElement(w.b, key, v) }
func (w *rawWriter) Int64(key string, v int64) {
	w.b = bsoncore.AppendInt64Element(w.b, key, v)
}
func (w *rawWriter) Double(key string, v float64) {
	w.b = bsoncore.AppendDoubleElement(w.b, key, v)
}
