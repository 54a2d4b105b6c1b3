package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/payload"
)

// event is a webhook's body, ready for the upsert.
type event struct {
	jobID, event, status string
	payload              any
}

// decoder reads a body. Both keep the members' order and int64 numbers, as map[string]any would not.
type decoder func(body string) (event, error)

// fasterDecoder measures the decoders on a body and returns the faster one, so that callers who go without JobOnce are
// not made slower than they need be.
func fasterDecoder(body string) (decoder, string, error) {
	const rounds = 200
	candidates := []struct {
		name   string
		decode decoder
		took   time.Duration
	}{{name: "one pass to BSON", decode: decodeRaw}, {name: "tokens to bson.D", decode: decodeTokens}}
	for i := range candidates {
		c := &candidates[i]
		start := time.Now()
		for range rounds {
			if _, err := c.decode(body); err != nil {
				return nil, "", fmt.Errorf("%s: %w", c.name, err)
			}
		}
		c.took = time.Since(start) / rounds
	}
	best, other := candidates[0], candidates[1]
	if other.took < best.took {
		best, other = other, best
	}
	return best.decode, fmt.Sprintf("direct callers decode with: %s, which is faster than: %s", best.name, other.name), nil
}

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

// decodeTokens builds a bson.D from the standard library's tokens.
func decodeTokens(body string) (event, error) {
	dec := json.NewDecoder(strings.NewReader(body))
	dec.UseNumber()
	value, err := readValue(dec)
	if err != nil {
		return event{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return event{}, errors.New("more than one JSON value")
	}
	document, ok := value.(bson.D)
	if !ok {
		return event{}, errors.New("not a JSON object")
	}
	e := event{payload: document}
	for _, member := range document {
		text, _ := member.Value.(string)
		switch member.Key {
		case "job_id":
			e.jobID = text
		case "event":
			e.event = text
		case "status":
			e.status = text
		}
	}
	return e, nil
}

func readValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(dec)
		}
		return readArray(dec)
	case json.Number:
		if n, err := t.Int64(); err == nil {
			return n, nil
		}
		return t.Float64()
	default:
		return t, nil
	}
}

func readObject(dec *json.Decoder) (any, error) {
	document := bson.D{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		value, err := readValue(dec)
		if err != nil {
			return nil, err
		}
		document = append(document, bson.E{Key: key.(string), Value: value}) // a member's key is always a string
	}
	_, err := dec.Token()
	return document, err
}

func readArray(dec *json.Decoder) (any, error) {
	list := bson.A{}
	for dec.More() {
		value, err := readValue(dec)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := dec.Token()
	return list, err
}
