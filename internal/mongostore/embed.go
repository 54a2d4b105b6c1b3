package mongostore

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/payload"
)

// appendEmbedded appends the body as a document. When BSON cannot hold it, or not within the bounds, b comes back as it
// was.
//
// The form is the one that may give the body back.
func appendEmbedded(b []byte, body string) ([]byte, payload.Form, bool) {
	w := bsonWriter{b: b}
	form, err := payload.Walk(body, fieldPayload, maxDepth, &w)
	if err != nil || w.err != nil {
		return b, 0, false
	}
	if len(w.b)-len(b)+len(body)+ownFields > maxDocument {
		return b, 0, false
	}
	return w.b, form, true
}

// A text is left out only where it is about as long as its document: at most twice as long, and at least half as long, but for
// sizeSlack bytes. [bodySize] takes one for the other, while 99 levels of indentation make a text 50 times as long, and small
// numbers a document six times.
const sizeSlack = 256

// givesBack tells whether the document that b holds from start on, as the element payload, gives the body back: by trying
// it. What is rendered goes behind b, where there is room.
func givesBack(b []byte, start int, form payload.Form, body string) bool {
	doc := b[start+len("\x03"+fieldPayload+"\x00"):]
	if len(body) > 2*len(doc)+sizeSlack || len(doc) > 2*len(body)+sizeSlack {
		return false
	}
	text, ok := payload.Render(b, doc, form, false, len(body))
	return ok && string(text[len(b):]) == body
}

// bsonWriter is a payload.Sink that appends BSON.
type bsonWriter struct {
	b     []byte
	open  []int32
	err   error
	stack [16]int32 // room for open in the common case
}

var errTooLarge = errors.New("document too large")

func (w *bsonWriter) begin(index int32, b []byte) {
	if w.open == nil {
		w.open = w.stack[:0]
	}
	w.b, w.open = b, append(w.open, index)
}

func (w *bsonWriter) end() {
	last := len(w.open) - 1
	w.b = end(w.b, w.open[last])
	w.open = w.open[:last]
}

// room stops the document from growing past what can be stored: small JSON can be large BSON.
func (w *bsonWriter) room() bool {
	if len(w.b) > maxDocument {
		w.err = errTooLarge
	}
	return w.err == nil
}

func (w *bsonWriter) BeginObject(key string) { w.begin(bsoncore.AppendDocumentElementStart(w.b, key)) }
func (w *bsonWriter) BeginArray(key string)  { w.begin(bsoncore.AppendArrayElementStart(w.b, key)) }
func (w *bsonWriter) EndObject()             { w.end() }
func (w *bsonWriter) EndArray()              { w.end() }

func (w *bsonWriter) String(key, value string) {
	if w.room() {
		w.b = bsoncore.AppendStringElement(w.b, key, value)
	}
}

func (w *bsonWriter) Int64(key string, value int64) {
	if w.room() {
		w.b = bsoncore.AppendInt64Element(w.b, key, value)
	}
}

func (w *bsonWriter) Double(key string, value float64) {
	if w.room() {
		w.b = bsoncore.AppendDoubleElement(w.b, key, value)
	}
}

func (w *bsonWriter) Bool(key string, value bool) {
	if w.room() {
		w.b = bsoncore.AppendBooleanElement(w.b, key, value)
	}
}

func (w *bsonWriter) Null(key string) {
	if w.room() {
		w.b = bsoncore.AppendNullElement(w.b, key)
	}
}
