package server

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// largeAnswer is the size from which on an answer counts. Smaller ones are bounded by the number of streams.
const largeAnswer = 64 << 10

// answers bounds the large answers that wait to be sent: a peer that does not read leaves them here, and its calls are
// over by then. It has a bound apart from that of the requests, so that such a peer keeps nobody from writing.
type answers struct {
	maxBytes int64
	bytes    atomic.Int64
}

// answer is a large answer on its way through the codec.
type answer struct {
	msg  proto.Message
	size int64
	from *answers
	once sync.Once
}

// room makes an answer of a large message. A read is refused where there is no room. What a write says is sent in any
// case: it has been done.
func (a *answers) room(method string, resp any) (*answer, error) {
	msg, ok := resp.(proto.Message)
	if !ok {
		return nil, nil
	}
	size := int64(proto.Size(msg))
	if size < largeAnswer {
		return nil, nil
	}
	if a.bytes.Add(size) > a.maxBytes && method == joboncev1.IdempotencyService_GetJob_FullMethodName {
		a.bytes.Add(-size)
		return nil, job.ErrOverloaded
	}
	return &answer{msg: msg, size: size, from: a}, nil
}

// reserving wraps a handler so that its large answers have room, for which it sets out.
func (a *answers) reserving(method string, handler func(context.Context, any) (any, error), out **answer) func(context.Context, any) (any, error) {
	return func(ctx context.Context, req any) (any, error) {
		resp, err := handler(ctx, req)
		if err != nil {
			return resp, err
		}
		if *out, err = a.room(method, resp); err != nil {
			return nil, fail(ctx, err, "")
		}
		return resp, nil
	}
}

func (a *answer) release() { a.once.Do(func() { a.from.bytes.Add(-a.size) }) }

// Get and Put make an answer the pool that its encoded bytes come from, so that it hears when they have been sent.
func (a *answer) Get(n int) *[]byte {
	b := make([]byte, n)
	// grpc-go does not return all buffers of a connection that breaks.
	runtime.AddCleanup(&b, (*answer).release, a)
	return &b
}

// Put hears that the bytes have been sent, or never will be.
func (a *answer) Put(*[]byte) { a.release() }

// codec is the standard codec, but understands [answer].
type codec struct{ encoding.CodecV2 }

// Marshal encodes v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	buf := a.Get(int(a.size))
	b, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], a.msg)
	if err != nil {
		a.release()
		return nil, err
	}
	*buf = b
	return mem.BufferSlice{mem.NewBuffer(buf, a)}, nil
}
