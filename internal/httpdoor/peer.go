package httpdoor

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// bufferSize is that of a connection in memory, where large writes save nothing.
const bufferSize = 4 << 10

// peers has the connections that are open.
type peers struct {
	cfg *Config

	mu     sync.Mutex
	open   map[net.Conn]*peer
	logged time.Time
}

// peer is a connection, and the one in memory on which its calls are made, from the first one on.
type peer struct {
	cfg   *Config
	addr  string
	began time.Time
	// refusals counts the requests in a row that were refused for their caller's sake.
	refusals atomic.Int64

	mu     sync.Mutex
	conn   *grpc.ClientConn
	closed bool
}

// peerKey is the context's key for the [peer] of a request.
type peerKey struct{}

func peerOf(ctx context.Context) *peer {
	p, _ := ctx.Value(peerKey{}).(*peer)
	return p
}

// began is http.Server.ConnContext: the contexts of a connection's requests have its peer.
func (p *peers) began(ctx context.Context, conn net.Conn) context.Context {
	one := &peer{cfg: p.cfg, addr: conn.RemoteAddr().String(), began: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = make(map[net.Conn]*peer)
	}
	p.open[conn] = one
	if len(p.open) > p.cfg.MaxConnections {
		defer conn.Close()
		if now := time.Now(); now.Sub(p.logged) >= time.Minute {
			p.logged = now
			p.cfg.Logger.Error("too many HTTP connections are open; more are closed at once",
				"mend", "raise --max-connections, and the limit of open files (ulimit -n) with it")
		}
	}
	return context.WithValue(ctx, peerKey{}, one)
}

// changed is http.Server.ConnState.
func (p *peers) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	p.mu.Lock()
	one := p.open[conn]
	delete(p.open, conn)
	p.mu.Unlock()
	if one != nil {
		one.close()
	}
}

// close closes what is left.
func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.open {
		one.close()
	}
	p.open = nil
}

// tired tells whether the connection is to end after this request.
func (p *peer) tired(age time.Duration) bool {
	return p.refusals.Load() >= maxRefusals || age > 0 && time.Since(p.began) >= age
}

// ended counts how a request ended.
func (p *peer) ended(code codes.Code) {
	if code == codes.Unauthenticated || code == codes.PermissionDenied {
		p.refusals.Add(1)
	} else {
		p.refusals.Store(0)
	}
}

// connect is the connection in memory.
func (p *peer) connect(secured *tls.ConnectionState) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, status.Error(codes.Canceled, "the connection is closed")
	case p.conn != nil:
		return p.conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.cfg.Connect(ctx, p.addr, secured) }),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
	p.conn = conn
	return conn, err
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// requestKey is the context's key for the [request] of a call.
type requestKey struct{}

// request is what a call needs to know of the request that it is made of.
type request struct {
	secured *tls.ConnectionState
	// stranger is why the request had no caller when its body was to be read. The body was then left unread.
	stranger error
	// answer is the size of the answer, as it is held until the peer has read it.
	answer int64
}

// calls makes each call on the connection in memory of the connection that its request came by.
type calls struct{ door *Door }

// Invoke makes a call.
func (c calls) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	p := peerOf(ctx)
	r := ctx.Value(requestKey{}).(*request)
	if c.door.answers.full() {
		return overloaded("too many answers wait to be read")
	}
	conn, err := p.connect(r.secured)
	if err != nil {
		return err
	}
	err = conn.Invoke(ctx, method, req, resp, opts...)
	if err == nil && r.stranger != nil { // It has a caller by now, but the call was made without its body.
		err = status.Error(codes.Unavailable, r.stranger.Error())
	}
	if msg, ok := resp.(proto.Message); ok && err == nil {
		r.answer = int64(2 * proto.Size(msg)) // the message, and its text
		c.door.answers.held.Add(r.answer)
	}
	p.ended(status.Code(err))
	return err
}

// NewStream is for streams, which the API has none of.
func (calls) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "there are no streams over HTTP")
}
