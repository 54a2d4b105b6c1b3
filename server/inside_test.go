package server

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestInside: who comes by a connection in memory is not on this machine, whatever the address says, and may not what those are
// let do who are. The server is in TLS, which such a connection does not speak.
func TestInside(t *testing.T) {
	ca := testenv.NewCA(t, "servers")
	pair, dir := ca.Issue(), t.TempDir()
	certificates, err := auth.LoadCertificates(auth.CertificateFiles{
		Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key),
	}, testenv.Logger(t))
	testenv.Must(t, err)
	_, sum := auth.NewToken()
	callers := authority(t, auth.Config{}, "- {name: a, token_sha256: "+sum+", allow: [record]}")
	r := start(t, Config{Callers: callers, Certificates: certificates, MaxConnections: 1}, new(memoryJobs))
	other, err := r.server.Connect(t.Context(), Peer{Addr: "127.0.0.1:1"}) // They were counted where they came in.
	testenv.Must(t, err)
	conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return r.server.Connect(ctx, Peer{Addr: "127.0.0.1:1"})
		}))
	testenv.Must(t, err)
	defer conn.Close()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	testenv.Must(t, err)
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %v", err)
	}

	other.Close()
	r.stop()
	testenv.OK(t, <-r.stopped)
	if _, err := r.server.Connect(t.Context(), Peer{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v from a server that has stopped", err)
	}
}
