package server

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Peer is who stands behind a connection in memory: a peer of another listener of this process, such as that of HTTP.
type Peer struct {
	// Addr is its address, for people. It counts as one beyond this machine, whatever it is: what is allowed to those who
	// are on the machine is not allowed to those who come by way of something that may be reached from elsewhere.
	Addr string
	// TLS is how its own connection is secured, with the certificate that it shows. nil: plaintext.
	TLS *tls.ConnectionState
}

// Connect opens a connection in memory to the server, on which the peer makes calls: to the door they are the calls of any other
// connection, by whoever the peer's certificate and its calls' metadata say. It waits until the server runs. The error is that
// of ctx, or [net.ErrClosed] once the server takes no connections.
func (s *Server) Connect(ctx context.Context, p Peer) (net.Conn, error) {
	theirs, ours := net.Pipe()
	select {
	case s.inside.conns <- &insideConn{ours, p}:
		return theirs, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.inside.closed:
		return nil, net.ErrClosed
	}
}

// insideConn is the server's end of a connection in memory.
type insideConn struct {
	net.Conn
	peer Peer
}

// RemoteAddr is the peer's address.
func (c *insideConn) RemoteAddr() net.Addr { return insideAddr(c.peer.Addr) }

// insideAddr is the address of a peer behind a connection in memory. It is not loopback.
type insideAddr string

// Network names no network of package net.
func (insideAddr) Network() string  { return "inside" }
func (a insideAddr) String() string { return string(a) }

// insideListener accepts connections in memory.
type insideListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newInsideListener() *insideListener {
	l := &insideListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Accept returns the next connection, or [net.ErrClosed].
func (l *insideListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close has Accept and Connect fail.
func (l *insideListener) Close() error {
	l.close()
	return nil
}

// Addr is for the log.
func (l *insideListener) Addr() net.Addr { return insideAddr("inside") }

// insideCreds takes the identity of a peer behind a connection in memory from its own connection. Others shake hands.
type insideCreds struct {
	credentials.TransportCredentials
}

// ServerHandshake tells who the peer is.
func (c insideCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if conn, ok := raw.(*peerConn); ok {
		if inside, ok := conn.Conn.(*insideConn); ok {
			common := credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}
			if inside.peer.TLS == nil {
				return raw, insideInfo{common}, nil
			}
			common.SecurityLevel = credentials.PrivacyAndIntegrity
			return raw, credentials.TLSInfo{State: *inside.peer.TLS, CommonAuthInfo: common}, nil
		}
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

// Clone copies the credentials.
func (c insideCreds) Clone() credentials.TransportCredentials {
	return insideCreds{c.TransportCredentials.Clone()}
}

// insideInfo is that of a peer in plaintext.
type insideInfo struct{ credentials.CommonAuthInfo }

// AuthType is the protocol's name.
func (insideInfo) AuthType() string { return "inside" }
