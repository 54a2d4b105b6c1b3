package server

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
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

func TestCheckWire(t *testing.T) {
	single, batch := new(joboncev1.RecordDeliveryRequest), new(joboncev1.BatchRecordDeliveriesRequest)
	good := field(1, field(1, []byte("id")))
	for _, tc := range []struct {
		name string
		msg  proto.Message
		wire []byte
		path string // empty: errWire
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
			if proto.Unmarshal(tc.wire, proto.Clone(tc.msg)) == nil {
				t.Fatal("the decoder takes this")
			}
			err := checkWire(tc.wire, tc.msg.ProtoReflect().Descriptor())
			var text *textError
			switch {
			case tc.path == "" && err != errWire:
				t.Errorf("got %v, want %v", err, errWire)
			case tc.path != "" && (!errors.As(err, &text) || text.path != tc.path):
				t.Errorf("got %v, want %s to be at fault", err, tc.path)
			}
		})
	}
}

// A message that nests too deeply is refused as the decoder refuses it, not by exhausting the stack.
func TestCheckWireDepth(t *testing.T) {
	// A struct value that holds a list that holds a value, and so on. The lengths grow outwards, so build inside out and
	// backwards.
	nest := func(levels int) []byte {
		var reversed []byte
		prepend := func(b []byte) {
			for i := len(b) - 1; i >= 0; i-- {
				reversed = append(reversed, b[i])
			}
		}
		for range levels / 2 {
			prepend(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(len(reversed))))
			prepend(protowire.AppendVarint(protowire.AppendTag(nil, 6, protowire.BytesType), uint64(len(reversed))))
		}
		b := make([]byte, len(reversed))
		for i, c := range reversed {
			b[len(b)-1-i] = c
		}
		return b
	}
	md := new(structpb.Value).ProtoReflect().Descriptor()
	const limit = protowire.DefaultRecursionLimit
	for _, levels := range []int{100, limit - 2, limit, 2 * limit} {
		wire := nest(levels)
		want := proto.Unmarshal(wire, new(structpb.Value))
		if got := checkWire(wire, md); (got == nil) != (want == nil) {
			t.Errorf("%d levels: got %v, the decoder says %v", levels, got, want)
		}
	}
}

// FuzzCheckWire holds checkWire to the decoder's verdict.
func FuzzCheckWire(f *testing.F) {
	messages := []proto.Message{
		new(joboncev1.RecordDeliveryRequest), new(joboncev1.BatchRecordDeliveriesRequest), new(joboncev1.GetJobRequest),
		new(joboncev1.BatchRecordDeliveriesResponse),
	}
	f.Add(byte(0), field(4, notText))
	f.Add(byte(1), append(field(1, field(4, []byte("{}"))), field(1, field(4, notText))...))
	f.Add(byte(2), []byte{0x0a, 0x01, 'x', 0x10, 0x02})
	f.Add(byte(3), field(1, field(1, field(6, field(6, []byte{0x08, 0x01})))))
	f.Add(byte(0), []byte{0x4b, 0x0a, 0x01, 'x', 0x4c}) // a group where a message is expected
	f.Fuzz(func(t *testing.T, which byte, wire []byte) {
		msg := messages[int(which)%len(messages)]
		got := checkWire(wire, msg.ProtoReflect().Descriptor())
		want := proto.Unmarshal(wire, msg.ProtoReflect().New().Interface())
		if (got == nil) != (want == nil) {
			t.Errorf("got %v, the decoder says %v", got, want)
		}
	})
}
