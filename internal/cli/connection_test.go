package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// fakeService answers every delivery with answer, and keeps what it was sent.
type fakeService struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	answer func() (*joboncev1.RecordDeliveryResponse, error)

	request  *joboncev1.RecordDeliveryRequest
	metadata metadata.MD
	peer     *peer.Peer
}

func (f *fakeService) RecordDelivery(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest,
) (*joboncev1.RecordDeliveryResponse, error) {
	f.request = req
	f.metadata, _ = metadata.FromIncomingContext(ctx)
	f.peer, _ = peer.FromContext(ctx)
	return f.answer()
}

// serve serves f for the time of the test and returns its address.
func (f *fakeService) serve(t *testing.T, opts ...grpc.ServerOption) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	s := grpc.NewServer(opts...)
	joboncev1.RegisterIdempotencyServiceServer(s, f)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		testenv.OK(t, <-served)
	})
	return lis.Addr().String()
}

// selfSigned makes a certificate for 127.0.0.1 that is its own authority, and the files of both its parts.
func selfSigned(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testenv.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	testenv.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	testenv.Must(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	certFile, keyFile = writeFile(t, "cert.pem", certPEM), writeFile(t, "key.pem", keyPEM)
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return pair, certFile, keyFile
}

func writeFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testenv.Must(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestTLSAndTokenAndRequest(t *testing.T) {
	pair, certFile, keyFile := selfSigned(t)
	f := &fakeService{answer: func() (*joboncev1.RecordDeliveryResponse, error) {
		return &joboncev1.RecordDeliveryResponse{
			Disposition: joboncev1.Disposition_DISPOSITION_RECLAIMED, StartWork: true, Deliveries: 3,
			Job:   &joboncev1.Job{JobId: "j"},
			Lease: &joboncev1.Lease{Token: "t", Generation: 7, ExpireTime: timestamppb.New(time.UnixMilli(1_700_000_000_123))},
		}, nil
	}}
	addr := f.serve(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12,
	})))
	code, stdout, stderr := run("record", "--server", addr, "--ca-cert", certFile, "--cert", certFile, "--key", keyFile,
		"--token-file", writeFile(t, "token", []byte("secret\n")),
		"--job-id", "j", "--event", "e", "--status", "s", "--payload", "p", "--opaque-payload", "--request-id", "r",
		"--work-mode", "LEASED", "--lease", "90s", "--source", "poll")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if want := "RECLAIMED start_work=true deliveries=3 job_id=j lease_token=t generation=7 lease_expires=2023-11-14T22:13:20.123Z\n"; stdout != want {
		t.Errorf("got  %swant %s", stdout, want)
	}
	want := &joboncev1.RecordDeliveryRequest{
		JobId: "j", Event: "e", Status: "s", Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: "p"}, OpaquePayload: true,
		RequestId: "r", WorkMode: joboncev1.WorkMode_WORK_MODE_LEASED, LeaseDuration: durationpb.New(90 * time.Second), Source: "poll",
	}
	if !proto.Equal(f.request, want) {
		t.Errorf("sent %v\nwant %v", f.request, want)
	}
	if got := f.metadata.Get("authorization"); !slices.Equal(got, []string{"Bearer secret"}) {
		t.Errorf("authorization is %q", got)
	}
	if got := f.metadata.Get("user-agent"); len(got) != 1 || !strings.HasPrefix(got[0], "jobonce-cli/") {
		t.Errorf("user-agent is %q", got)
	}
	if info, ok := f.peer.AuthInfo.(credentials.TLSInfo); !ok || len(info.State.PeerCertificates) != 1 {
		t.Error("the client certificate was not sent")
	}

	// Without the authority the certificate is not trusted, and without TLS nothing is understood.
	for flag, hint := range map[string]string{
		"--tls":       ", and are --server and --tls right? --ca-cert names the authorities to trust instead of the system's\n",
		"--tls=false": ", and are --server and --tls right?\n",
		"--event=e":   "? This was in plaintext, as is the default to this machine: for a service that has TLS, add --tls\n",
	} {
		code, _, stderr := run("record", "--server", addr, "--job-id", "j", flag)
		if code != exitRetry || !strings.HasPrefix(stderr, "UNAVAILABLE: ") || !strings.HasSuffix(stderr, "; is the service running, and ready, at "+addr+hint) {
			t.Errorf("%s: exit code %d: %s", flag, code, stderr)
		}
	}
}

func TestTokenIsNotSentInPlaintextToOthers(t *testing.T) {
	code, _, stderr := run("get", "j", "--server", "192.0.2.1:50051", "--tls=false", "--token-file", writeFile(t, "token", []byte("secret")))
	if code != 2 || !strings.Contains(stderr, "plaintext") || strings.Contains(stderr, "secret") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestUnknownOutcomeTellsTheRequestID(t *testing.T) {
	st, err := status.New(codes.Unavailable, "written or not").WithDetails(
		&errdetails.ErrorInfo{Domain: "jobonce", Reason: "OUTCOME_UNKNOWN", Metadata: map[string]string{"request_id": "r1"}})
	testenv.Must(t, err)
	f := &fakeService{answer: func() (*joboncev1.RecordDeliveryResponse, error) { return nil, st.Err() }}
	code, stdout, stderr := run("record", "--server", f.serve(t), "--job-id", "j", "--request-id", "r1")
	want := "UNAVAILABLE OUTCOME_UNKNOWN: written or not; it may be recorded: repeat it with --request-id r1\n"
	if code != exitRetry || stdout != "" || stderr != want {
		t.Errorf("exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
}

func TestDispositionOfANewerService(t *testing.T) {
	f := &fakeService{answer: func() (*joboncev1.RecordDeliveryResponse, error) {
		return &joboncev1.RecordDeliveryResponse{Disposition: 99, StartWork: true}, nil
	}}
	if code, stdout, _ := run("record", "--server", f.serve(t), "--job-id", "j"); code != 0 || !strings.HasPrefix(stdout, "99 start_work=true ") {
		t.Errorf("exit code %d, standard output %q", code, stdout)
	}
}
