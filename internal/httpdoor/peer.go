package httpdoor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/internal/auth"
)

const (
	// bufferSize is that of a connection in memory, where large writes save nothing.
	bufferSize = 4 << 10
	// insideIdle is how long one is kept that has no call. It takes half of the memory of an HTTP connection.
	insideIdle = 5 * time.Second
)

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
	// vouched is about the client's certificate.
	vouched auth.Vouched
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
		p.refused("too many are open, so that more are closed at once", "raise --max-connections, and the limit of open files (ulimit -n) with it")
	}
	return context.WithValue(ctx, peerKey{}, one)
}

// refused logs once a minute why connections are not accepted. It needs p.mu.
func (p *peers) refused(why, mend string) {
	if now := time.Now(); now.Sub(p.logged) >= time.Minute {
		p.logged = now
		p.cfg.Logger.Error("cannot accept HTTP connections", "error", why, "mend", mend)
	}
}

// loud is a listener that logs what it cannot accept for now: net/http waits and tries again, and says so only to who debugs.
type loud struct {
	net.Listener
	peers *peers
}

// Accept accepts a connection.
func (l loud) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if passes, ok := err.(interface{ Temporary() bool }); ok && passes.Temporary() {
		l.peers.mu.Lock()
		defer l.peers.mu.Unlock()
		l.peers.refused(err.Error(), "more files may be open than the process or the system allows: raise the limit (ulimit -n)")
	}
	return conn, err
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
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(insideIdle))
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
	// asked is the request as it came.
	asked *http.Request
	// stranger is why the request had no caller when its body was to be read. The body was then left unread.
	stranger error
	// held is what is held of the answer, until the peer has read it.
	held int64
	room *room
}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// hold counts n bytes more of the answer, which is always sent. They count until release.
func (r *request) hold(n int) {
	r.held += int64(n)
	r.room.held.Add(int64(n))
}

func (r *request) release() { r.room.held.Add(-r.held) }

// calls makes each call on the connection in memory of the connection that its request came by.
type calls struct{ door *Door }

// Invoke makes a call.
func (c calls) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	p, r := peerOf(ctx), requestOf(ctx)
	if c.door.answers.full() {
		return c.refused(problem(reasonOverloaded, "too many answers wait to be read; nothing was written"))
	}
	if size := proto.Size(req.(proto.Message)); size > maxMessage {
		return c.refused(problem(reasonTooLarge, fmt.Sprintf("the request is %d bytes as a message; the limit is %d", size, maxMessage)))
	}
	conn, err := p.connect(r.asked.TLS)
	if err != nil {
		return err
	}
	// The gateway adds where a request comes from, as whoever sends it says. That is nothing for the service to go by.
	md, _ := metadata.FromOutgoingContext(ctx)
	md.Delete("x-forwarded-for")
	md.Delete("x-forwarded-host")
	err = conn.Invoke(metadata.NewOutgoingContext(ctx, md), method, req, resp, opts...)
	if code := status.Code(err); r.stranger != nil && (err == nil || code == codes.InvalidArgument) {
		// It has a caller by now, but the call was made without its body.
		err = problem(reasonUnavailable, r.stranger.Error()+"; nothing was written")
	}
	if msg, ok := resp.(proto.Message); ok && err == nil {
		r.hold(proto.Size(msg))
	}
	p.ended(status.Code(err))
	return err
}

// refused tells of a call that is not made.
func (c calls) refused(err error) error {
	if c.door.cfg.Refused != nil {
		c.door.cfg.Refused(reasonOf(status.Convert(err)))
	}
	return err
}

// NewStream is for streams, which the API has none of.
func (calls) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "there are no streams over HTTP")
}
