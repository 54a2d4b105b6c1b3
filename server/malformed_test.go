package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wireCodec sends bytes as they are.
type wireCodec struct{ encoding.CodecV2 }

func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// invokeRaw calls a method with a request that no client would encode.
func (r *running) invokeRaw(t *testing.T, method string, wire []byte) error {
	t.Helper()
	return r.conn.Invoke(t.Context(), method, wire, new(emptypb.Empty),
		grpc.ForceCodecV2(wireCodec{encoding.GetCodecV2(protocodec.Name)}))
}

func TestMalformedRequests(t *testing.T) {
	jobs := new(memoryJobs)
	s := start(t, Config{}, jobs)
	good := field(1, field(1, []byte("good")))
	large := strings.Repeat("x", 100_000)
	for _, tc := range []struct {
		name, method string
		wire         []byte
		field, says  string
	}{
		{"payload", joboncev1.IdempotencyService_RecordDelivery_FullMethodName,
			append(field(1, []byte("a")), field(4, notText)...), "payload", "payload_bytes"},
		// One that grpc-go keeps in several buffers.
		{"large payload", joboncev1.IdempotencyService_RecordDelivery_FullMethodName,
			append(field(1, []byte("a")), field(4, []byte(large), notText)...), "payload", "payload_bytes"},
		{"job_id", joboncev1.IdempotencyService_RecordDelivery_FullMethodName, field(1, notText), "job_id", "UTF-8"},
		{"in a batch", joboncev1.IdempotencyService_BatchRecordDeliveries_FullMethodName,
			append(append([]byte{}, good...), field(1, field(1, []byte("b")), field(4, notText))...), "deliveries[1].payload", "payload_bytes"},
		{"of a read", joboncev1.IdempotencyService_GetJob_FullMethodName, field(1, notText), "job_id", "UTF-8"},
		{"millions of deliveries", joboncev1.IdempotencyService_BatchRecordDeliveries_FullMethodName, emptyItems(1), "deliveries", "the limit is 256"},
		{"millions of events", joboncev1.WorkService_ClaimWork_FullMethodName, emptyItems(3), "events", "the limit is 100"},
		{"no message at all", joboncev1.IdempotencyService_GetJob_FullMethodName, []byte{0xff, 0xff}, "", "well-formed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := s.invokeRaw(t, tc.method, tc.wire)
			if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD", field: tc.field}) {
				t.Fatalf("got %v %+v", err, details(t, err))
			}
			if msg := status.Convert(err).Message(); !strings.Contains(msg, tc.says) || strings.Contains(msg, large) {
				t.Errorf("got the message %q, want it to speak of %s", msg, tc.says)
			}
			// The interceptors see it.
			lines := s.log.lines(t, "call failed")
			if last := lines[len(lines)-1]; last["method"] != tc.method || last["reason"] != "INVALID_FIELD" {
				t.Errorf("logged %v", last)
			}
		})
	}
	if records, writes := jobs.size(); records != 0 || writes != 0 {
		t.Errorf("%d records, %d writes; want none", records, writes)
	}
}

func TestOversizePayload(t *testing.T) {
	jobs := new(memoryJobs)
	s := start(t, Config{MaxBodyBytes: 2000}, jobs)
	fits, over := strings.Repeat("x", 2000), strings.Repeat("x", 2001)
	for i, req := range []*joboncev1.RecordDeliveryRequest{text("t", fits), raw("b", []byte(fits))} {
		if _, err := s.RecordDelivery(t.Context(), req); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for _, tc := range []struct {
		req   *joboncev1.RecordDeliveryRequest
		field string
	}{
		{text("over", over), "payload"},
		{raw("over", []byte(over)), "payload_bytes"},
		{text("over", strings.Repeat("x", maxReceiveBytes-100)), "payload"},
	} {
		_, err := s.RecordDelivery(t.Context(), tc.req)
		if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "PAYLOAD_TOO_LARGE", field: tc.field}) {
			t.Errorf("got %v %+v", err, details(t, err))
		}
	}
	// One that is not even read gets grpc-go's own answer, and the interceptors see it.
	_, err := s.RecordDelivery(t.Context(), text("over", strings.Repeat("x", maxReceiveBytes)))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	s.stop()
	<-s.stopped
	lines := s.log.lines(t, "call failed")
	if last := lines[len(lines)-1]; last["reason"] != "PAYLOAD_TOO_LARGE" {
		t.Errorf("logged %v", last)
	}
	if records, _ := jobs.size(); records != 2 {
		t.Errorf("%d records, want 2", records)
	}
}

func TestUnknownMethod(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	for _, method := range []string{"/jobonce.v1.IdempotencyService/NoSuch", "/jobonce.v9.NoSuch/Get", "/no.such/" + strings.Repeat("x", 200<<10)} {
		err := s.conn.Invoke(t.Context(), method, new(emptypb.Empty), new(emptypb.Empty))
		if status.Code(err) != codes.Unimplemented || details(t, err) != (told{reason: "UNIMPLEMENTED"}) {
			t.Errorf("%s: got %v", method, err)
		}
	}
	lines := s.log.lines(t, "call failed")
	if len(lines) != 3 || lines[1]["reason"] != "UNIMPLEMENTED" {
		t.Errorf("logged %v", lines)
	}
	for _, l := range lines {
		if n := len(l["method"].(string)); n > 300 {
			t.Errorf("a method's name of %d bytes is logged", n)
		}
	}
}

// A request that cannot be decoded leaves no buffer in use that the next request writes to.
func TestMalformedAmongGood(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	for i := range 50 {
		body := strings.Repeat(string(rune('a'+i%26)), 20_000+i)
		if err := s.invokeRaw(t, joboncev1.IdempotencyService_RecordDelivery_FullMethodName, field(4, []byte(body), notText)); err == nil {
			t.Fatal("it was taken")
		}
		id := fmt.Sprintf("job-%d", i)
		if _, err := s.RecordDelivery(t.Context(), text(id, body)); err != nil {
			t.Fatal(err)
		}
		got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: id, View: joboncev1.JobView_JOB_VIEW_FULL})
		if err != nil || got.GetJob().GetPayload() != body {
			t.Fatalf("%s came back changed, %v", id, err)
		}
	}
}

// emptyItems is as many empty items of a list as a request holds.
func emptyItems(number byte) []byte {
	return bytes.Repeat([]byte{number<<3 | 2, 0}, maxReceiveBytes/2)
}

// TestLongListsAreNotDecoded: the memory for millions of items is not taken just to count them.
func TestLongListsAreNotDecoded(t *testing.T) {
	wire := emptyItems(1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := decode(wire, new(joboncev1.BatchRecordDeliveriesRequest))
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > maxReceiveBytes {
		t.Errorf("took %d bytes for %d on the wire, and said %v", took, len(wire), err)
	}
}

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

// TestMetadataOverTheLimit: a call with too much metadata is refused in words, and no other call of its connection notices,
// whatever the metadata looks like: one long value, many short ones, or values that compress well.
func TestMetadataOverTheLimit(t *testing.T) {
	for name, extra := range map[string][]string{
		"a little over":   {"bomb", strings.Repeat("x", maxMetadataBytes-100)},
		"one long value":  {"bomb", strings.Repeat("x", 200_000)},
		"many values":     manyHeaders(5_000),
		"several of 60 K": {"a", strings.Repeat("x", 60_000), "b", strings.Repeat("y", 60_000), "c", strings.Repeat("z", 60_000)},
		"does not pack":   {"bomb", strings.Repeat("~", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			inside, release := make(chan struct{}), make(chan struct{}, 2)
			s := start(t, Config{}, &memoryJobs{onGet: func(context.Context) error { close(inside); <-release; return nil }})
			p := dial(t, s.conn.Target())
			neighbour := p.call(t, getPath, encode(t, &joboncev1.GetJobRequest{JobId: "j"}))
			<-inside
			defer func() { release <- struct{}{} }()
			for range 10 {
				id := p.headers(t, getPath, false, extra...)
				if e := p.event(t); e.stream != id || e.status != codes.InvalidArgument || !e.isEnd {
					t.Fatalf("got %+v, want the call refused", e)
				}
			}
			release <- struct{}{}
			if e := p.event(t); e.stream != neighbour || e.status != codes.NotFound {
				t.Errorf("the neighbour got %+v", e)
			}
			p.close()
		})
	}
}

// Streams are refused like calls, and what lies just below the limit is taken.
func TestMetadataLimits(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	long := metadata.AppendToOutgoingContext(t.Context(), "bomb", strings.Repeat("x", maxMetadataBytes))
	_, err := s.GetJob(long, &joboncev1.GetJobRequest{JobId: "j"})
	if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD"}) ||
		!strings.Contains(err.Error(), "metadata") {
		t.Errorf("a call: %v", err)
	}
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(long, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream: %v", err)
	}
	below := metadata.AppendToOutgoingContext(t.Context(), "fits", strings.Repeat("x", maxMetadataBytes-1000))
	if _, err := s.GetJob(below, &joboncev1.GetJobRequest{JobId: "j"}); status.Code(err) != codes.NotFound {
		t.Errorf("below the limit: %v", err)
	}
	if lines := s.log.lines(t, "call failed"); len(lines) == 0 || !strings.Contains(lines[0]["error"].(string), "metadata") {
		t.Errorf("logged: %v", lines)
	}
}
