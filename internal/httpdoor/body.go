package httpdoor

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

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

func (r *room) take(n int64) bool {
	if r.held.Add(n) <= r.most {
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
}

// grow makes room for more, if there is some.
func (b *body) grow(size int) bool {
	if !b.room.take(int64(size - cap(b.data))) {
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
		if bad := checkForm(r); bad != nil {
			d.refuse(w, r, *bad)
			return
		}
		stranger := d.stranger(r)
		b := &body{room: &d.bodies}
		if r.Method == http.MethodPost && stranger == nil {
			bad := b.read(w, r, d.bodyTime)
			defer b.drop()
			if bad == nil {
				bad = checkShape(b.data)
			}
			if bad != nil {
				d.refuse(w, r, *bad)
				return
			}
		}
		call := &request{secured: r.TLS, stranger: stranger}
		defer func() { d.answers.held.Add(-call.answer) }()
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, call))
		r.Body = b
		next(quiet{w}, r, params)
	}
}

// quiet does not tell the gateway of peers that have gone, each of which it would log as an error.
type quiet struct{ http.ResponseWriter }

// Write never fails.
func (q quiet) Write(b []byte) (int, error) {
	_, _ = q.ResponseWriter.Write(b)
	return len(b), nil
}

// Unwrap is for http.ResponseController.
func (q quiet) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// checkForm looks at everything but the body.
func checkForm(r *http.Request) *refusal {
	query := r.URL.Query()
	if r.Method != http.MethodPost {
		fields := new(joboncev1.GetJobRequest).ProtoReflect().Descriptor().Fields() // The one method that is not a POST.
		for name := range query {
			if fields.ByTextName(name) == nil && fields.ByJSONName(name) == nil {
				return invalid(http.StatusBadRequest, clip(name), fmt.Sprintf("there is no parameter %q", clip(name)))
			}
		}
		return nil
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	switch encoding := r.Header.Get("Content-Encoding"); {
	case r.URL.RawQuery != "":
		return invalid(http.StatusBadRequest, "", "a POST has all of its fields in the body, none in the query")
	case err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8"):
		return invalid(http.StatusUnsupportedMediaType, "", "the body must be JSON, with Content-Type: application/json")
	case encoding != "" && encoding != "gzip" && encoding != "identity":
		return invalid(http.StatusUnsupportedMediaType, "", fmt.Sprintf("the body's encoding is %q; gzip is the only one there is", clip(encoding)))
	}
	return nil
}

// read reads the body, within the time and the room that there are.
func (b *body) read(w http.ResponseWriter, r *http.Request, within time.Duration) *refusal {
	tooLarge := &refusal{http.StatusRequestEntityTooLarge, joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE, "",
		fmt.Sprintf("the body is larger than %d bytes", maxBody)}
	if r.ContentLength > maxBody {
		return tooLarge
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(within)) // Where it cannot be set, WriteTimeout bounds it.
	src, size := io.Reader(r.Body), r.ContentLength+1
	if r.Header.Get("Content-Encoding") == "gzip" {
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
				return &refusal{http.StatusTooManyRequests, joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "",
					"too many large requests are under way; nothing was written"}
			}
		}
		n, err := src.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case len(b.data) > maxBody:
			return tooLarge
		case errors.Is(err, io.EOF):
			// Without this a wait that outlasts it would be cut.
			_ = control.SetReadDeadline(time.Time{})
			return nil
		case err != nil:
			return unread(err)
		}
	}
}

// unread is the refusal of a body that cannot be read.
func unread(err error) *refusal {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &refusal{http.StatusRequestTimeout, joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "",
			"the body did not arrive in time; nothing was written"}
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
