package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc/credentials"
)

// The text that says how to mend a connection of which one side speaks TLS and the other does not.
const (
	mendDefaultTLS = "the service speaks no TLS, which is the default to another machine; WithInsecure allows plaintext"
	mendTLS        = "the service speaks no TLS; WithTLS must go, or the service needs a certificate"
	mendPlaintext  = "the service speaks TLS, or hung up at once as one with TLS does; WithTLS turns it on"
)

// namedSecurity says of a connection that fails because one side alone speaks TLS how to mend it.
type namedSecurity struct {
	credentials.TransportCredentials
	mend string
}

// ClientHandshake implements [credentials.TransportCredentials].
func (s namedSecurity) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if s.mend == mendPlaintext {
		raw = &firstRead{Conn: raw}
	}
	conn, info, err := s.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if answer := (tls.RecordHeaderError{}); errors.As(err, &answer) {
		err = fmt.Errorf("%w: %s", err, s.mend)
	}
	return conn, info, err
}

// Clone implements [credentials.TransportCredentials].
func (s namedSecurity) Clone() credentials.TransportCredentials {
	return namedSecurity{s.TransportCredentials.Clone(), s.mend}
}

// firstRead is a connection in plaintext that tells when the first that the service says is TLS, or that it hangs up: servers
// with TLS do one or the other.
type firstRead struct {
	net.Conn
	done bool // One goroutine reads.
}

// Read reads.
func (f *firstRead) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.done {
		return n, err
	}
	f.done = true
	const alert = 0x15
	if n > 0 && b[0] == alert || n == 0 && errors.Is(err, io.EOF) {
		return 0, errors.New(mendPlaintext)
	}
	return n, err
}
