package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// wireStream is what grpc-go's own streams have besides [grpc.ServerTransportStream]. Its decoder reads a message as a
// whole, of whatever length the peer claims; with these methods a message is read in parts, and each is accounted for
// before the peer may send it.
type wireStream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	WriteStatus(st *status.Status) error
}

// receive reads the one message of a unary call. The caller frees it.
func receive(stream wireStream, call *admitted) (mem.BufferSlice, error) {
	var header [5]byte
	if err := stream.ReadMessageHeader(header[:]); err != nil {
		return nil, incomplete(err)
	}
	switch header[0] {
	case 0:
	case 1:
		return nil, status.Error(codes.Unimplemented, "compressed requests are not taken")
	default:
		return nil, status.Errorf(codes.Internal, "unknown flags %#x before the message", header[0])
	}
	length := int64(binary.BigEndian.Uint32(header[1:]))
	if length > maxReceiveBytes {
		return nil, newProblem(joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE,
			fmt.Sprintf("the request is %d bytes; the limit is %d", length, maxReceiveBytes))
	}
	if !call.announce(length) {
		return nil, job.ErrOverloaded
	}
	message, err := receiveParts(stream, call, length)
	if err != nil {
		return nil, err
	}
	// The end of the stream: what comes after a message would be kept for nobody to read.
	switch err := stream.ReadMessageHeader(header[:]); {
	case errors.Is(err, io.EOF):
		return message, nil
	case err == nil:
		err = status.Error(codes.Internal, "more than one request in a unary call")
		fallthrough
	default:
		message.Free()
		return nil, incomplete(err)
	}
}

func receiveParts(stream wireStream, call *admitted, length int64) (mem.BufferSlice, error) {
	var message mem.BufferSlice
	for part := int64(firstPart); length > 0; part = min(2*part, largestPart) {
		n := min(part, length)
		if !call.grow(n) {
			message.Free()
			return nil, job.ErrOverloaded
		}
		buffers, err := stream.Read(int(n))
		if err != nil {
			message.Free()
			return nil, incomplete(err)
		}
		message = append(message, compact(buffers, n)...)
		length -= n
	}
	return message, nil
}

// compact copies a part that came in very small pieces: each costs more than what is in it.
func compact(buffers mem.BufferSlice, n int64) mem.BufferSlice {
	const usual = 512 // bytes in a piece
	if int64(len(buffers)) <= n/usual+4 {
		return buffers
	}
	whole := buffers.MaterializeToBuffer(mem.DefaultBufferPool())
	buffers.Free()
	return mem.BufferSlice{whole}
}

// incomplete is the error of a request that ended before it was whole. grpc-go's errors have a status already.
func incomplete(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, "the request ended before its message did")
	}
	return err
}

// tooSlow is the error of a request that took longer to arrive than any call may take.
func tooSlow() *problem {
	p := newProblem(joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, "the request did not arrive in time")
	p.code, p.retry, p.unwritten = codes.DeadlineExceeded, 0, true
	return p
}
