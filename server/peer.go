package server

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
)

const (
	// maxWatches bounds the health watches of one connection. A client needs one for each service that it asks about.
	maxWatches = 4
	// maxRefusals is after how many calls in a row that were refused for their caller's sake a connection is closed.
	maxRefusals = 100
	// closeDelay is how long the last answer has to arrive before that.
	closeDelay = 100 * time.Millisecond
)

// peerConn is a connection, and what its calls have in common.
type peerConn struct {
	net.Conn
	addr   *peerAddr
	closed func()
	// spoken keeps the server's stop from closing the connection.
	spoken func() bool
	// vouched is about the client's certificate.
	vouched auth.Vouched

	mu sync.Mutex
	// watches counts the health watches, underWay the other calls, and refusals those in a row that were refused.
	watches, underWay, refusals int
	closing                     bool
}

// peerAddr is the address of a connection's peer. It leads a call to its connection, and tells connections apart: peers on a
// unix socket have no names.
type peerAddr struct {
	net.Addr
	conn *peerConn
}

// newPeerConn closes the connection when stopping ends and the peer has not spoken yet: grpc-go would wait until it has, or its
// time is up, before it asks other peers to go.
func newPeerConn(stopping context.Context, conn net.Conn, closed func()) *peerConn {
	c := &peerConn{Conn: conn, closed: sync.OnceFunc(closed)}
	c.addr = &peerAddr{conn.RemoteAddr(), c}
	c.spoken = context.AfterFunc(stopping, func() {
		defer c.closed()
		_ = conn.Close()
	})
	return c
}

// SetDeadline hears that the peer has spoken: then grpc-go takes back the deadline that it has set for that.
func (c *peerConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.spoken()
	}
	return c.Conn.SetDeadline(t)
}

// RemoteAddr is the peer's address, the same for all calls of a connection and for no other.
func (c *peerConn) RemoteAddr() net.Addr { return c.addr }

// Close closes the connection.
func (c *peerConn) Close() error {
	c.spoken()
	defer c.closed()
	return c.Conn.Close()
}

// connection is the one that the call of ctx came by.
func connection(ctx context.Context) *peerConn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*peerAddr); ok {
			return a.conn
		}
	}
	c := new(peerConn) // That of no other call.
	c.addr = &peerAddr{conn: c}
	return c
}

// watch counts a health watch, if there may be one more. unwatch must follow then.
func (c *peerConn) watch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches >= maxWatches {
		return newProblem(joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED, "this connection has too many health watches")
	}
	c.watches++
	return nil
}

func (c *peerConn) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches--
}

// begin counts a call. end must follow.
func (c *peerConn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay++
}

// end counts how a call ended. A peer that is told again and again that it may not call is cut off.
func (c *peerConn) end(code codes.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay--
	if code != codes.Unauthenticated && code != codes.PermissionDenied {
		c.refusals = 0
		return
	}
	if c.refusals++; c.tiresome() && !c.closing {
		c.closing = true
		time.AfterFunc(closeDelay, c.closeTiresome)
	}
}

func (c *peerConn) tiresome() bool { return c.refusals >= maxRefusals && c.underWay == 0 }

func (c *peerConn) closeTiresome() {
	c.mu.Lock()
	c.closing = false
	tiresome := c.tiresome()
	c.mu.Unlock()
	if tiresome {
		_ = c.Close()
	}
}
