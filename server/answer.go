package server

import (
	"context"
	"net"
	"runtime"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// largeAnswer is the size from which on an answer counts. Smaller ones are bounded by the number of streams.
const largeAnswer = 64 << 10

// answersShare is by how much the bound of all answers is divided for one connection.
const answersShare = 4

// answers bounds the large answers that wait to be sent: a peer that does not read leaves them here, and its calls are
// over by then. It has a bound apart from that of the requests, so that such a peer keeps nobody from writing, and each
// connection has a share of it, so that one keeps nobody from reading.
type answers struct {
	maxBytes int64

	mu     sync.Mutex
	bytes  int64
	byPeer map[net.Addr]int64
}

func newAnswers(maxBytes int64) *answers {
	return &answers{maxBytes: maxBytes, byPeer: make(map[net.Addr]int64)}
}

// held is how many bytes of answers wait.
func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// fits tells whether size more bytes have room. A connection for which nothing waits has room for one answer in any case,
// as long as there is room at all.
func (a *answers) fits(peer net.Addr, size int64) bool {
	mine := a.byPeer[peer]
	return a.bytes+size <= a.maxBytes && (mine == 0 || mine+size <= a.maxBytes/answersShare)
}

// add counts size bytes, unless there must be room and is none.
func (a *answers) add(peer net.Addr, size int64, must bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if must && !a.fits(peer, size) {
		return false
	}
	a.bytes += size
	if a.byPeer[peer] += size; a.byPeer[peer] == 0 {
		delete(a.byPeer, peer)
	}
	return true
}

// peerOf stands for the connection of a call. It is the address itself, of which each connection has one, and not its text:
// all connections to a Unix socket have the same.
func peerOf(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// answer is a large answer on its way through the codec.
type answer struct {
	msg  proto.Message
	size int64
	from *answers
	peer net.Addr
	once sync.Once
}

// room makes an answer of a large message. A read is refused where there is no room. What a write says is sent in any
// case: it has been done.
func (a *answers) room(ctx context.Context, method string, resp any) (*answer, error) {
	msg, ok := resp.(proto.Message)
	if !ok {
		return nil, nil
	}
	size := int64(proto.Size(msg))
	if size < largeAnswer {
		return nil, nil
	}
	from := peerOf(ctx)
	if !a.add(from, size, method == joboncev1.IdempotencyService_GetJob_FullMethodName) {
		return nil, errUnread()
	}
	return &answer{msg: msg, size: size, from: a, peer: from}, nil
}

// reserving wraps a handler so that its large answers have room, for which it sets out.
func (a *answers) reserving(method string, handler func(context.Context, any) (any, error), out **answer) func(context.Context, any) (any, error) {
	return func(ctx context.Context, req any) (any, error) {
		// Claimed jobs come with their payloads: a peer that does not read the last ones gets no more.
		if method == joboncev1.WorkService_ClaimWork_FullMethodName && !a.add(peerOf(ctx), 0, true) {
			return nil, fail(ctx, errUnread(), "")
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return resp, err
		}
		if *out, err = a.room(ctx, method, resp); err != nil {
			return nil, fail(ctx, err, "")
		}
		return resp, nil
	}
}

// errUnread is the error of a call for whose answer there is no room.
func errUnread() error {
	return newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "too many answers wait to be read")
}

func (a *answer) release() { a.once.Do(func() { a.from.add(a.peer, -a.size, false) }) }

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
	a.msg = nil // not to be kept until the bytes are sent
	return mem.BufferSlice{mem.NewBuffer(buf, a)}, nil
}
