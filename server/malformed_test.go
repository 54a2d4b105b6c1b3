package server

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
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
