package client_test

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// secureService tells each call who it was: the first name of its certificate, and its authorization.
type secureService struct {
	joboncev1.UnimplementedIdempotencyServiceServer
}

func (secureService) GetJob(ctx context.Context, _ *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
	who := strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), " ")
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			who += info.State.PeerCertificates[0].DNSNames[0]
		}
	}
	return &joboncev1.GetJobResponse{Job: &joboncev1.Job{JobId: who}}, nil
}

// serveTLS serves, in plaintext when config is nil, and returns the address and what ends its connections.
func serveTLS(t *testing.T, config *tls.Config) (addr string, restart func()) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	addr = lis.Addr().String()
	serve := func(lis net.Listener) *grpc.Server {
		var opts []grpc.ServerOption
		if config != nil {
			opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
		}
		s := grpc.NewServer(opts...)
		joboncev1.RegisterIdempotencyServiceServer(s, secureService{})
		go s.Serve(lis)
		return s
	}
	s := serve(lis)
	t.Cleanup(func() { s.Stop() })
	return addr, func() {
		s.Stop()
		lis, err := net.Listen("tcp", addr)
		testenv.Must(t, err)
		s = serve(lis)
	}
}

// TestClientCertificateFiles: a new connection shows what the files hold then, and the old certificate while they are broken.
func TestClientCertificateFiles(t *testing.T) {
	ca, dir := testenv.NewCA(t, "ca"), t.TempDir()
	write := func(p testenv.Pair) (cert, key string) {
		return testenv.WriteFile(t, dir, "crt", p.Cert), testenv.WriteFile(t, dir, "key", p.Key)
	}
	cert, key := write(ca.Issue("one"))
	addr, restart := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue().TLS(t)}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})
	c, err := client.New(addr, client.WithTLS(&tls.Config{RootCAs: ca.Pool()}), client.WithClientCertificateFiles(cert, key))
	testenv.Must(t, err)
	defer c.Close()
	shows := func(want string) {
		t.Helper()
		job, err := c.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
		if err != nil || job.GetJobId() != want {
			t.Errorf("it shows %q, %v, want %q", job.GetJobId(), err, want)
		}
	}
	shows("one")
	write(ca.Issue("two"))
	restart()
	shows("two")
	testenv.OK(t, os.WriteFile(key, nil, 0o600))
	restart()
	shows("two")

	for name, opts := range map[string][]client.Option{
		"missing files":    {client.WithTLS(nil), client.WithClientCertificateFiles(filepath.Join(dir, "no"), key)},
		"plaintext":        {client.WithClientCertificateFiles(write(ca.Issue("x")))},
		"two certificates": {client.WithTLS(&tls.Config{Certificates: []tls.Certificate{{}}}), client.WithClientCertificateFiles(write(ca.Issue("x")))},
	} {
		if _, err := client.New(addr, opts...); err == nil || !strings.Contains(err.Error(), "WithClientCertificateFiles") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTokenFile: a token that is replaced is sent soon, and the old one while the file is broken.
func TestTokenFile(t *testing.T) {
	path := testenv.WriteFile(t, t.TempDir(), "token", []byte(" one\n"))
	addr, _ := serveTLS(t, nil)
	c, err := client.New(addr, client.WithTokenFile(path))
	testenv.Must(t, err)
	defer c.Close()
	sends := func(want string) {
		t.Helper()
		for begin := time.Now(); ; {
			job, err := c.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
			testenv.Must(t, err)
			if job.GetJobId() == "Bearer "+want {
				return
			}
			if time.Since(begin) > 30*time.Second {
				t.Fatalf("it sends %q, want %q", job.GetJobId(), want)
			}
		}
	}
	sends("one")
	testenv.OK(t, os.WriteFile(path, []byte("two"), 0o600))
	sends("two")
	testenv.OK(t, os.WriteFile(path, nil, 0o600))
	sends("two")
	for _, content := range []string{"", "a b", "a\nb"} {
		testenv.OK(t, os.WriteFile(path, []byte(content), 0o600))
		if _, err := client.New(addr, client.WithTokenFile(path)); err == nil || !strings.Contains(err.Error(), "WithTokenFile") {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// TestOneSideSpeaksTLS: the error names the option.
func TestOneSideSpeaksTLS(t *testing.T) {
	ca := testenv.NewCA(t, "ca")
	secure, _ := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue().TLS(t)}})
	plain, _ := serveTLS(t, nil)
	for name, tc := range map[string]struct {
		addr string
		opt  client.Option
		want string
	}{
		"plaintext client": {secure, client.WithInsecure(), "WithTLS turns it on"},
		"TLS client":       {plain, client.WithTLS(nil), "the service speaks no TLS; WithTLS must go"},
	} {
		c, err := client.New(tc.addr, tc.opt, client.WithRetry(client.RetryPolicy{MaxAttempts: 2}))
		testenv.Must(t, err)
		_, err = c.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		c.Close()
	}
}
