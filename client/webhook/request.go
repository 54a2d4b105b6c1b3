package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Request is a delivery whose signature was checked. It is for one goroutine.
type Request struct {
	// Method, URL, Header and Query are the HTTP request's. The signature covers them only where the sender signs them.
	Method string
	URL    *url.URL
	Header http.Header
	Query  url.Values
	// Body is the body, byte for byte.
	Body []byte

	ctx    context.Context
	scheme *scheme // by which it is signed
	json   func() (any, error)
	form   func() (url.Values, error)
}

// NewRequest makes a Request of an HTTP request whose body was read.
func NewRequest(r *http.Request, body []byte) *Request {
	req := &Request{ctx: r.Context(), Method: r.Method, URL: r.URL, Header: r.Header, Query: r.URL.Query(), Body: body}
	req.json = sync.OnceValues(func() (any, error) { return DecodeJSON(body) })
	req.form = sync.OnceValues(req.parseForm)
	return req
}

// Context ends when the answer must be given: what takes long is to end with it.
func (r *Request) Context() context.Context { return r.ctx }

// JSON returns the body as [DecodeJSON] does. It is decoded once.
func (r *Request) JSON() (any, error) { return r.json() }

// Form returns the fields of a form-encoded body. An error when its content type is another.
func (r *Request) Form() (url.Values, error) { return r.form() }

func (r *Request) parseForm() (url.Values, error) {
	if !isForm(r.Header) {
		return nil, errors.New("the body is no form: its content type is another")
	}
	form, err := url.ParseQuery(string(r.Body))
	if err != nil {
		return nil, errors.New("the form cannot be read")
	}
	return form, nil
}

func isForm(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/x-www-form-urlencoded"
}

// Text returns the body as text. An error when it is not UTF-8.
func (r *Request) Text() (string, error) {
	if !utf8.Valid(r.Body) {
		return "", errors.New("the body is not UTF-8")
	}
	return string(r.Body), nil
}

// Item is one event of a request.
type Item struct {
	// Request is the request that the item came with.
	Request *Request
	// Index is the item's place in the body, from 0.
	Index int
	// Value is the item as [DecodeJSON] gives it, where Items set it. Nil for an item that is the whole body: see JSON.
	Value any
	// Body is what is stored of the item. Nil: the JSON of Value, or the whole body where that is nil too.
	Body []byte
}

// JSON returns the item's Value, or the whole body decoded.
func (i *Item) JSON() (any, error) {
	if i.Value != nil {
		return i.Value, nil
	}
	return i.Request.JSON()
}

// body is what is stored of the item.
func (i *Item) body() ([]byte, error) {
	switch {
	case i.Body != nil:
		return i.Body, nil
	case i.Value == nil:
		return i.Request.Body, nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(i.Value); err != nil {
		return nil, fmt.Errorf("item %d: %w", i.Index, err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// byteOrderMark may stand before JSON, and is read over.
const byteOrderMark = "\xef\xbb\xbf"

// DecodeJSON decodes one JSON value: objects as map[string]any, arrays as []any, and whole numbers exactly, as int64 or,
// beyond it, as a string of their digits. Other numbers are float64. Of two members of one name the last one counts.
func DecodeJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(data, []byte(byteOrderMark))))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("the body is no JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the body is more than one JSON value")
	}
	return exact(v), nil
}

// exact replaces the numbers within v.
func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			v[name] = exact(member)
		}
	case []any:
		for i, element := range v {
			v[i] = exact(element)
		}
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			f, err := v.Float64()
			if err != nil {
				return string(v)
			}
			return f
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			return string(v)
		}
		return n
	}
	return v
}
