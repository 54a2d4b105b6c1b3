package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// defaultTLS is TLS that nobody asked for: where the service has none, the error says so.
type defaultTLS struct {
	credentials.TransportCredentials
}

// ClientHandshake implements [credentials.TransportCredentials].
func (d defaultTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if answer := (tls.RecordHeaderError{}); errors.As(err, &answer) {
		err = fmt.Errorf("%w: the service speaks no TLS, which is the default to another machine; WithInsecure allows plaintext", err)
	}
	return conn, info, err
}

// Clone implements [credentials.TransportCredentials].
func (d defaultTLS) Clone() credentials.TransportCredentials {
	return defaultTLS{d.TransportCredentials.Clone()}
}
