package server

import (
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// bytesStream is a stream that has all bytes at once, in frames of a size.
type bytesStream struct {
	rest  []byte
	frame int
	// asked is the most that was asked for at once.
	asked int
}

func (s *bytesStream) ReadMessageHeader(header []byte) error {
	if len(s.rest) == 0 {
		return io.EOF
	}
	n := copy(header, s.rest)
	s.rest = s.rest[n:]
	if n < len(header) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (s *bytesStream) Read(n int) (mem.BufferSlice, error) {
	s.asked = max(s.asked, n)
	if len(s.rest) < n {
		return nil, io.ErrUnexpectedEOF
	}
	var out mem.BufferSlice
	for n > 0 {
		part := min(n, s.frame)
		out = append(out, mem.SliceBuffer(s.rest[:part:part]))
		s.rest, n = s.rest[part:], n-part
	}
	return out, nil
}

func (s *bytesStream) WriteStatus(*status.Status) error { return nil }

// FuzzReceive has a peer send any bytes as a call, from the length of the message to the check of the delivery.
func FuzzReceive(f *testing.F) {
	good := field(1, []byte("job"))
	f.Add(append(prefix(0, len(good)), good...), byte(1))
	f.Add(append(prefix(1, len(good)), good...), byte(1))
	f.Add(prefix(0, 1<<32-1), byte(9))
	f.Add(append(prefix(0, 0), prefix(0, 0)...), byte(9))
	f.Add(append(prefix(0, 40_000), make([]byte, 40_000)...), byte(255))
	f.Add(append(prefix(0, 5_000), make([]byte, 5_000)...), byte(0))
	f.Fuzz(func(t *testing.T, sent []byte, frame byte) {
		limit := newAdmission(1, 64<<10)
		call := limit.enter(time.Now(), func(*problem) {})
		stream := &bytesStream{rest: sent, frame: int(frame) + 1}
		data, err := receive(stream, call)
		if _, held := limit.held(); held > 64<<10 || stream.asked > largestPart {
			t.Errorf("%d bytes are held, %d were asked for", held, stream.asked)
		}
		if err == nil {
			if data.Len() != len(sent)-5 {
				t.Errorf("%d bytes of %d", data.Len(), len(sent)-5)
			}
			check(t, data)
			data.Free()
		} else if _, ok := status.FromError(err); !ok && err != job.ErrOverloaded {
			t.Errorf("a call fails with %v", err)
		}
		call.received()
		call.leave()
		if calls, held := limit.held(); calls != 0 || held != 0 || limit.receiving.Len() != 0 {
			t.Errorf("%d calls with %d bytes stay", calls, held)
		}
	})
}

// check takes a message on as a delivery. Nobody but the caller can be at fault.
func check(t *testing.T, data mem.BufferSlice) {
	t.Helper()
	var req joboncev1.RecordDeliveryRequest
	err := decode(data, &req)
	if err == nil {
		var in job.Input
		if in, err = fromRequest(&req); err == nil {
			_, err = in.Delivery(job.DefaultMaxPayloadBytes)
		}
	}
	if err != nil {
		if code := explain(t.Context(), err, "").code; code != codes.InvalidArgument {
			t.Errorf("%v becomes %v", err, code)
		}
	}
}
