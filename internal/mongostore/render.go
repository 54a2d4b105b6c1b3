package mongostore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// maxRenderDepth bounds the recursion of render; databases take no document that nests so deeply.
const maxRenderDepth = 1000

// render gives a payload that another writer stored as text: a string as it is, anything else as JSON. What came from
// JSON reads as JavaScript would write it, whole numbers without a fraction above all: its drivers store those past 32
// bits as doubles. What JSON has no type for is written as MongoDB's relaxed Extended JSON.
func render(v bson.RawValue) (job.Body, error) {
	switch v.Type {
	case bson.TypeString:
		return job.Body{Kind: job.BodyText, Data: textOf(v)}, nil
	case bson.TypeNull, bson.TypeUndefined:
		return job.Body{}, nil
	}
	text, err := appendJSON(nil, v, maxRenderDepth)
	if err != nil {
		return job.Body{}, fmt.Errorf("render payload: %w", err)
	}
	return job.Body{Kind: job.BodyText, Data: string(text)}, nil
}

func appendJSON(b []byte, v bson.RawValue, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, errors.New("nested too deeply")
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return appendElements(b, v, depth)
	case bson.TypeString:
		return appendText(b, textOf(v))
	case bson.TypeInt32, bson.TypeInt64:
		return fmt.Append(b, intOf(v)), nil
	case bson.TypeDouble:
		f, _ := v.DoubleOK()
		if text, err := json.Marshal(f); err == nil {
			return append(b, text...), nil
		} // else NaN or an infinity
	}
	// Only documents can be rendered, so the value goes into one and is taken out again.
	wrapped, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, false, false)
	if err != nil {
		return nil, err
	}
	text, found := bytes.CutPrefix(bytes.TrimSpace(wrapped), []byte(`{"v":`))
	text, closed := bytes.CutSuffix(text, []byte("}"))
	if !found || !closed || !json.Valid(text) {
		return nil, fmt.Errorf("the BSON type %v does not become JSON", v.Type)
	}
	return append(b, bytes.ToValidUTF8(text, []byte("\uFFFD"))...), nil
}

// appendElements appends a document or an array.
func appendElements(b []byte, v bson.RawValue, depth int) ([]byte, error) {
	begin, end := byte('{'), byte('}')
	if v.Type == bson.TypeArray {
		begin, end = '[', ']'
	}
	elements, err := bson.Raw(v.Value).Elements()
	if err != nil {
		return nil, err
	}
	b = append(b, begin)
	for i, e := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		if v.Type == bson.TypeEmbeddedDocument {
			if b, err = appendText(b, e.Key()); err != nil {
				return nil, err
			}
			b = append(b, ':')
		}
		if b, err = appendJSON(b, e.Value(), depth-1); err != nil {
			return nil, err
		}
	}
	return append(b, end), nil
}

// appendText appends a JSON string, with nothing escaped that needs no escape.
func appendText(b []byte, s string) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return nil, err
	}
	return append(b, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...), nil
}
