package server

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// field encodes a length-delimited field.
func field(num protowire.Number, content ...[]byte) []byte {
	var all []byte
	for _, c := range content {
		all = append(all, c...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), all)
}

// notText is not UTF-8.
var notText = []byte("a\xffb")

// requests are the messages that the door decodes.
func requests(t testing.TB) (all []proto.Message) {
	t.Helper()
	for _, file := range []protoreflect.FileDescriptor{
		joboncev1.File_jobonce_v1_idempotency_service_proto, joboncev1.File_jobonce_v1_work_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m, err := protoregistry.GlobalTypes.FindMessageByName(methods.Get(j).Input().FullName())
				testenv.Must(t, err)
				all = append(all, m.New().Interface())
			}
		}
	}
	return all
}

func TestDecodeNamesTheField(t *testing.T) {
	single, batch := new(joboncev1.RecordDeliveryRequest), new(joboncev1.BatchRecordDeliveriesRequest)
	good := field(1, field(1, []byte("id")))
	for _, tc := range []struct {
		name string
		msg  proto.Message
		wire []byte
		path string // empty: the message as a whole is at fault
	}{
		{"payload", single, field(4, notText), "payload"},
		{"job_id", single, append(field(2, []byte("e")), field(1, notText)...), "job_id"},
		{"first of two", single, append(field(3, notText), field(1, notText)...), "status"},
		{"element", batch, append(append(append([]byte{}, good...), good...), field(1, field(4, notText))...), "deliveries[2].payload"},
		{"first element", batch, field(1, field(7, notText)), "deliveries[0].request_id"},
		{"text before a broken tail", single, append(field(1, notText), 0x80), "job_id"},
		{"broken head before text", single, append([]byte{0x07}, field(1, notText)...), ""},
		{"cut short", single, field(1, []byte("abc"))[:3], ""},
		{"cut short inside", batch, field(1, []byte{0x0a, 0x05, 'x'}), ""},
		{"field number 0", single, []byte{0x02, 0x00}, ""},
		{"field number too high", single, append(protowire.AppendVarint(nil, 1<<33|2), 0), ""},
		{"end of no group", single, []byte{0x0c}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var invalid *job.InvalidError
			if err := decode(tc.wire, proto.Clone(tc.msg)); !errors.As(err, &invalid) || invalid.Field != tc.path {
				t.Errorf("got %v, want %q to be at fault", err, tc.path)
			}
		})
	}
}

// FuzzDecode has a peer send any bytes as a request. What the decoder takes is decoded, and what it does not is the peer's
// fault alone, from the message's encoding to the check of the delivery.
func FuzzDecode(f *testing.F) {
	messages := requests(f)
	f.Add(byte(0), field(4, notText))
	f.Add(byte(1), append(field(1, field(4, []byte("{}"))), field(1, field(4, notText))...))
	f.Add(byte(2), []byte{0x0a, 0x01, 'x', 0x10, 0x02})
	f.Add(byte(3), field(1, field(1, field(6, field(6, []byte{0x08, 0x01})))))
	f.Add(byte(0), []byte{0x4b, 0x0a, 0x01, 'x', 0x4c}) // a group where a message is expected
	f.Add(byte(0), append(field(1, []byte("job")), field(4, []byte(`{"event":1}`))...))
	f.Fuzz(func(t *testing.T, which byte, wire []byte) {
		like := messages[int(which)%len(messages)].ProtoReflect()
		got := like.New().Interface()
		err := decode(wire, got)
		long := checkLists(wire, like.Descriptor()) != nil
		if well := proto.Unmarshal(wire, like.New().Interface()) == nil; (err == nil) != (well && !long) {
			t.Errorf("got %v; well-formed: %t, too long: %t", err, well, long)
		}
		if req, ok := got.(*joboncev1.RecordDeliveryRequest); ok && err == nil {
			var in job.Input
			if in, err = fromRequest(req); err == nil {
				_, err = in.Delivery(job.DefaultMaxBodyBytes)
			}
		}
		if err != nil && explain(t.Context(), err, "").code != codes.InvalidArgument {
			t.Errorf("the peer is told %v", err)
		}
	})
}

// No request holds itself, so that what looks for its fields comes to an end.
func TestRequestsDoNotNest(t *testing.T) {
	var walk func(md protoreflect.MessageDescriptor, depth int)
	walk = func(md protoreflect.MessageDescriptor, depth int) {
		if depth > 10 {
			t.Fatalf("%s holds itself", md.FullName())
		}
		for i := range md.Fields().Len() {
			if inner := md.Fields().Get(i).Message(); inner != nil {
				walk(inner, depth+1)
			}
		}
	}
	for _, m := range requests(t) {
		walk(m.ProtoReflect().Descriptor(), 0)
	}
}
