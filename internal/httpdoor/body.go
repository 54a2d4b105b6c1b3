package httpdoor

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// maxDepth is how deep a request may be nested. Those of the API have 4 levels.
	maxDepth = 16
	// maxValues is how many values a request may have. A batch of 256 with all fields set has about 4000. Each becomes an
	// object that is much larger than its text.
	maxValues = 16 << 10
)

// room bounds what is held of bodies, or of answers.
type room struct {
	most int64
	held atomic.Int64
}

// take holds n more, if that leaves spare.
func (r *room) take(n, spare int64) bool {
	if r.held.Add(n) <= r.most-spare {
		return true
	}
	r.held.Add(-n)
	return false
}

func (r *room) full() bool { return r.held.Load() >= r.most }

// body is the body of a request, which is there as a whole. It counts in the room until a message was made of it.
type body struct {
	data []byte
	room *room
	// fault is why no message could be made of it, where that is known.
	fault *fault
}

// grow makes room for more, if there is some.
func (b *body) grow(size int) bool {
	spare := int64(0)
	if size > smallBody {
		spare = b.room.most / 4
	}
	if !b.room.take(int64(size-cap(b.data)), spare) {
		return false
	}
	data := make([]byte, len(b.data), size)
	copy(data, b.data)
	b.data = data
	return true
}

// drop forgets the body, and gives its room back.
func (b *body) drop() {
	b.room.held.Add(-int64(cap(b.data)))
	b.data = nil
}

// Read has nothing: the decoder takes data.
func (b *body) Read([]byte) (int, error) { return 0, io.EOF }

// Close is for net/http.
func (b *body) Close() error { return nil }

// enter checks the form of a request that has a method, and reads its body.
func (d *Door) enter(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		call := requestOf(r.Context())
		if pattern, ok := runtime.HTTPPattern(r.Context()); ok {
			call.asked.Pattern = pattern.String()
		}
		if bad := checkForm(r); bad != nil {
			d.refuse(w, r, *bad)
			return
		}
		call.stranger = d.stranger(r)
		b := &body{room: &d.bodies}
		if r.Method == http.MethodPost && call.stranger == nil {
			bad := b.read(w, r)
			defer b.drop()
			if bad == nil {
				bad = checkShape(b.data)
			}
			if bad != nil {
				d.refuse(w, r, *bad)
				return
			}
		}
		r.Body = b
		next(quiet{w, call}, r, params)
	}
}

// quiet does not tell the gateway of peers that have gone, each of which it would log as an error.
type quiet struct {
	http.ResponseWriter
	call *request
}

// Write never fails. What it writes is held until the peer has read it.
func (q quiet) Write(b []byte) (int, error) {
	q.call.hold(len(b))
	_, _ = q.ResponseWriter.Write(b)
	return len(b), nil
}

// Unwrap is for http.ResponseController.
func (q quiet) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// checkForm looks at everything but the body.
func checkForm(r *http.Request) *refusal {
	if r.Method != http.MethodPost {
		fields := new(joboncev1.GetJobRequest).ProtoReflect().Descriptor().Fields() // The one method that is not a POST.
		for name, values := range r.URL.Query() {
			switch {
			case fields.ByTextName(name) == nil && fields.ByJSONName(name) == nil:
				return invalid(http.StatusBadRequest, clip(name), fmt.Sprintf("there is no parameter %q", clip(name)))
			case slices.ContainsFunc(values, func(value string) bool { return !utf8.ValidString(value) }):
				return invalid(http.StatusBadRequest, name, name+" is not valid UTF-8")
			}
		}
		if r.ContentLength > 0 || len(r.TransferEncoding) > 0 { // In HTTP/2, one of unknown length may be none.
			return invalid(http.StatusBadRequest, "", "a GET has all of its fields in the query, and no body")
		}
		return nil
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	switch encoding := contentEncoding(r); {
	case r.URL.RawQuery != "":
		return invalid(http.StatusBadRequest, "", "a POST has all of its fields in the body, none in the query")
	case err != nil || kind != "application/json" || charset != "" && charset != "utf-8" && charset != "utf8":
		return invalid(http.StatusUnsupportedMediaType, "", "the body must be JSON, with Content-Type: application/json")
	case encoding != "" && encoding != "gzip":
		return invalid(http.StatusUnsupportedMediaType, "", fmt.Sprintf("the body's encoding is %q; gzip is the only one there is", clip(encoding)))
	}
	return nil
}

// contentEncoding is how the body is compressed; empty: it is not.
func contentEncoding(r *http.Request) string {
	encoding := strings.ToLower(strings.Join(r.Header["Content-Encoding"], ","))
	if encoding == "identity" {
		return ""
	}
	return encoding
}

// read reads the body, within the room that there is, and the time that the request has for it.
func (b *body) read(w http.ResponseWriter, r *http.Request) *refusal {
	tooLarge := &refusal{status: http.StatusRequestEntityTooLarge, reason: reasonTooLarge, message: fmt.Sprintf("the body is larger than %d bytes", maxBody)}
	if r.ContentLength > maxBody {
		return tooLarge
	}
	src, size := io.Reader(r.Body), r.ContentLength+1
	if contentEncoding(r) == "gzip" {
		unzip, err := gzip.NewReader(r.Body)
		if err != nil {
			return unread(err)
		}
		src, size = unzip, 0
	}
	size = min(max(size, 4<<10), 64<<10)
	for {
		if len(b.data) == cap(b.data) {
			if !b.grow(max(int(size), 2*cap(b.data))) {
				return &refusal{status: http.StatusTooManyRequests, reason: reasonOverloaded,
					message: "too many large requests are under way; nothing was written"}
			}
		}
		n, err := src.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case len(b.data) > maxBody:
			return tooLarge
		case errors.Is(err, io.EOF):
			// Without this a wait that outlasts it would be cut.
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
			return nil
		case err != nil:
			return unread(err)
		}
	}
}

// unread is the refusal of a body that cannot be read.
func unread(err error) *refusal {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &refusal{status: http.StatusRequestTimeout, reason: reasonOverloaded, message: "the body did not arrive in time; nothing was written"}
	}
	return invalid(http.StatusBadRequest, "", "the body cannot be read to its end, or is not what Content-Encoding says")
}

// checkShape refuses what would become much larger than it is, before it is decoded. What is wrong with it otherwise is for the
// decoder to say.
func checkShape(json []byte) *refusal {
	if len(json) == 0 {
		return invalid(http.StatusBadRequest, "", "the body is empty; it must be a JSON object")
	}
	depth, values, quoted := 0, 1, false
	for i := 0; i < len(json); i++ {
		switch c := json[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
			if c == '\\' {
				i++
			}
		case c == '{' || c == '[':
			depth++
			values++
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
		switch {
		case depth > maxDepth:
			return invalid(http.StatusBadRequest, "", fmt.Sprintf("the request is nested more than %d levels deep", maxDepth))
		case values > maxValues:
			return invalid(http.StatusBadRequest, "", fmt.Sprintf("the request has more than %d values", maxValues))
		}
	}
	return nil
}

// marshaler is JSON as protocol buffers have it, with the names of the protos and with fields that are zero.
type marshaler struct{ runtime.JSONPb }

func newMarshaler() *marshaler {
	return &marshaler{runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}}}
}

// NewDecoder decodes a [body] as a whole: nothing may follow the object.
func (m *marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		b, ok := r.(*body)
		if !ok || b.data == nil {
			return io.EOF // A stranger's.
		}
		defer b.drop()
		err := protojson.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(b.data, v.(proto.Message))
		if err == nil {
			return nil
		}
		if len(b.data) <= smallBody { // To look costs as much again as the body.
			b.fault = findFault(b.data, v.(proto.Message).ProtoReflect().New())
		}
		// Its prefix ends in one of two kinds of space, so that nobody compares the text.
		text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
		return errors.New(clip(strings.TrimPrefix(text, "proto: ")))
	})
}

// clip cuts what a caller has sent to what an error can hold.
func clip(s string) string {
	const limit = 256
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
