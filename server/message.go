package server

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients in other languages turn it on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// smallMessage bounds the messages of health and reflection.
const smallMessage = 1 << 10

// message holds the bytes of a request, as the codec leaves them. The door counts and decodes them, so that it can say what is
// wrong with them.
type message struct {
	limit int
	place *place // nil when it does not count
	buf   mem.Buffer
	bad   error
}

// take keeps the bytes, or notes why not.
func (m *message) take(data mem.BufferSlice) {
	size := data.Len()
	switch {
	case m.buf != nil: // a second message, for which grpc-go ends the call
	case size > m.limit:
		m.bad = newProblem(joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE,
			fmt.Sprintf("the request is %d bytes; the limit is %d", size, m.limit))
	case m.place != nil && !m.place.count(int64(size)):
		m.bad = job.ErrOverloaded
	default:
		m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	}
}

// decode decodes the message into req, once.
func (m *message) decode(req proto.Message) error {
	defer m.buf.Free()
	return decode(m.buf.ReadOnlyData(), req)
}

// decode decodes b into req. The error is about the request, for its caller.
func decode(b []byte, req proto.Message) error {
	md := req.ProtoReflect().Descriptor()
	if err := checkLists(b, md); err != nil {
		return err
	}
	if proto.Unmarshal(b, req) == nil {
		return nil
	}
	switch path, name := notUTF8(b, md); name {
	case "":
		return &job.InvalidError{Problem: "the request is not a well-formed protocol buffer message"}
	case "payload":
		return &job.InvalidError{Field: path, Problem: "is not valid UTF-8; send it as payload_bytes"}
	default:
		return &job.InvalidError{Field: path, Problem: "is not valid UTF-8"}
	}
}

// notUTF8 finds the first string field that is not UTF-8: its name, and the path to it, such as deliveries[3].payload. It is
// for messages without groups, maps and packed fields, which the API has not.
func notUTF8(b []byte, md protoreflect.MessageDescriptor) (path string, name protoreflect.Name) {
	seen := make(map[protoreflect.Name]int)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return "", ""
		}
		value := b[:n]
		b = b[n:]
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		path := string(fd.Name())
		if fd.IsList() {
			path += "[" + strconv.Itoa(seen[fd.Name()]) + "]"
			seen[fd.Name()]++
		}
		_, _, tag := protowire.ConsumeTag(value)
		content, _ := protowire.ConsumeBytes(value[tag:])
		switch {
		case fd.Kind() == protoreflect.StringKind && !utf8.Valid(content):
			return path, fd.Name()
		case fd.Kind() == protoreflect.MessageKind:
			if inner, name := notUTF8(content, fd.Message()); name != "" {
				return path + "." + inner, name
			}
		}
	}
	return "", ""
}

// listLimits are the limits of the lists in requests, by the request's and the field's name.
var listLimits = map[protoreflect.FullName]struct {
	field protoreflect.Name
	limit int
}{
	"jobonce.v1.BatchRecordDeliveriesRequest": {"deliveries", maxBatchItems},
	"jobonce.v1.BatchChangeLeasesRequest":     {"changes", maxBatchItems},
	"jobonce.v1.ClaimWorkRequest":             {"events", job.MaxClaimEvents},
}

// checkLists refuses a message with a list that is too long, before it is decoded: two bytes on the wire become an object
// of a hundred and more. What is wrong with the message otherwise is for the decoder to say.
func checkLists(b []byte, md protoreflect.MessageDescriptor) error {
	list, ok := listLimits[md.FullName()]
	if !ok {
		return nil
	}
	number, items := md.Fields().ByName(list.field).Number(), 0
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil
		}
		if num == number {
			items++
		}
		b = b[n:]
	}
	return listTooLong(string(list.field), items, list.limit)
}

// listTooLong is nil when a list is not too long.
func listTooLong(field string, items, limit int) error {
	if items <= limit {
		return nil
	}
	return &job.InvalidError{Field: field, Problem: fmt.Sprintf("has %d items; the limit is %d", items, limit)}
}

// codec is the standard codec, but knows [message] and [answer].
type codec struct{ encoding.CodecV2 }

// Unmarshal takes the bytes of a message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.take(data)
	return nil
}

// Marshal encodes v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.marshal()
	}
	return c.CodecV2.Marshal(v)
}
