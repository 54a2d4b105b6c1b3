package server

import (
	"context"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// largeAnswer is the size from which on an answer counts. Smaller ones are bounded by the number of streams.
	largeAnswer = 64 << 10
	// answersShare is by how much the bound of all answers is divided for one connection.
	answersShare = 4
)

// answers bounds the large answers that wait to be sent: a peer that does not read leaves them here, and its calls are
// over by then. Each connection has a share of the bound, so that one keeps nobody from reading.
type answers struct {
	maxBytes int64

	mu    sync.Mutex
	bytes int64
	peers map[*peerConn]int64
}

// intercept has a large response sent as an [answer]. A read is refused when there is no room for its response. A claim, whose
// jobs come with their bodies, is refused while there is no room at all. The response to a write is always sent: the write has
// been done.
func (a *answers) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	conn := connection(ctx)
	if info.FullMethod == joboncev1.WorkService_ClaimWork_FullMethodName && !a.add(conn, 0, true) {
		return nil, fail(ctx, errUnread(), "")
	}
	resp, err := handler(ctx, req)
	msg, ok := resp.(proto.Message)
	if err != nil || !ok {
		return resp, err
	}
	size := int64(proto.Size(msg))
	large, ok := ctx.Value(largeKey{}).(**answer)
	if size < largeAnswer || !ok {
		return resp, nil
	}
	if !a.add(conn, size, info.FullMethod == joboncev1.IdempotencyService_GetJob_FullMethodName) {
		return nil, fail(ctx, errUnread(), "")
	}
	// A compressed response would be a copy that is not counted. The call fails only outside of a gRPC call.
	_ = grpc.SetSendCompressor(ctx, encoding.Identity)
	*large = &answer{msg: msg, size: size, from: a, conn: conn}
	return resp, nil
}

// largeKey is the context's key for the place where intercept leaves the [answer]. The door sends it from there, so that the
// interceptors in between see the response itself.
type largeKey struct{}

// errUnread is the error of a call for whose answer there is no room.
func errUnread() error {
	return newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "too many answers wait to be read")
}

// add counts size bytes. With must set it refuses them when there is no room. A connection for which nothing waits may have one
// answer beyond its share.
func (a *answers) add(conn *peerConn, size int64, must bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := a.peers[conn]
	if must && (a.bytes+size > a.maxBytes || mine > 0 && mine+size > a.maxBytes/answersShare) {
		return false
	}
	a.bytes += size
	if a.peers[conn] = mine + size; a.peers[conn] == 0 {
		delete(a.peers, conn)
	}
	return true
}

// held is how many bytes of answers wait.
func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// answer is a large response on its way through the codec, and the pool that its encoded bytes come from, so that it hears when
// they have been sent.
type answer struct {
	msg  proto.Message
	size int64
	from *answers
	conn *peerConn
	once sync.Once
}

func (a *answer) release() { a.once.Do(func() { a.from.add(a.conn, -a.size, false) }) }

// Get makes a buffer.
func (a *answer) Get(n int) *[]byte {
	b := make([]byte, n)
	// grpc-go does not return all buffers of a connection that breaks.
	runtime.AddCleanup(&b, (*answer).release, a)
	return &b
}

// Put hears that the bytes have been sent, or never will be.
func (a *answer) Put(*[]byte) { a.release() }

func (a *answer) marshal() (mem.BufferSlice, error) {
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
