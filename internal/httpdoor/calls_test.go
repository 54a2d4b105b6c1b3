package httpdoor

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/server"
)

// fake is a service that notes what comes with a call, and answers with err.
type fake struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	md       metadata.MD
	deadline time.Duration
	err      error
}

func (f *fake) RecordDelivery(ctx context.Context, _ *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	f.md, _ = metadata.FromIncomingContext(ctx)
	f.deadline = 0
	if deadline, ok := ctx.Deadline(); ok {
		f.deadline = time.Until(deadline)
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("secret", "x"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("secret", "x"))
	return &joboncev1.RecordDeliveryResponse{}, f.err
}

// before starts a door before the service.
func before(t *testing.T, f *fake) *web {
	lis, srv := bufconn.Listen(64<<10), grpc.NewServer()
	joboncev1.RegisterIdempotencyServiceServer(srv, f)
	go func() { _ = srv.Serve(lis) }()
	w := start(t, Config{Connect: func(ctx context.Context, _ string, _ *tls.ConnectionState) (net.Conn, error) {
		return lis.DialContext(ctx)
	}})
	t.Cleanup(srv.Stop)
	return w
}

// TestMetadata: of the headers those pass that are meant to, and none that says what it is to be in gRPC.
func TestMetadata(t *testing.T) {
	f := new(fake)
	w := before(t, f)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`), "Authorization", "Bearer a", "Traceparent", trace, "Tracestate", "a=b", "Grpc-Timeout", "7S",
		"Grpc-Metadata-Authorization", "Bearer b", "Grpc-Metadata-X", "x", "Grpcgateway-Authorization", "Bearer c", "Grpc-Previous-Rpc-Attempts", "3", "Cookie", "c=d", "X-Other", "y", "X-Forwarded-For", "10.0.0.1", "X-Forwarded-Host", "evil.example", "TE", "trailers")
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", r.Status, r.text)
	}
	got := slices.Sorted(maps.Keys(f.md))
	want := []string{":authority", "authorization", "content-type", "grpc-accept-encoding", "traceparent", "tracestate", "user-agent"}
	if !slices.Equal(got, want) || !slices.Equal(f.md["authorization"], []string{"Bearer a"}) || !slices.Equal(f.md["traceparent"], []string{trace}) {
		t.Errorf("got %v", got)
	}
	if f.deadline <= 0 || f.deadline > 7*time.Second {
		t.Errorf("the deadline is %v away", f.deadline)
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Grpc-") {
			t.Errorf("got the header %s", name)
		}
	}
	if w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`), "Traceparent", "é", "Tracestate", "a=b"); f.md["traceparent"] != nil || f.md["tracestate"] == nil {
		t.Errorf("got %v", f.md)
	}
	if w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`)); f.deadline != 0 {
		t.Errorf("there is a deadline, %v away", f.deadline)
	}
}

// TestBareErrors: an error that is not the service's says nothing about the call, and is answered so.
func TestBareErrors(t *testing.T) {
	f := new(fake)
	w := before(t, f)
	for code, want := range map[codes.Code]int{
		codes.Unavailable: 503, codes.DeadlineExceeded: 504, codes.Canceled: 499, codes.Internal: 503, codes.Unknown: 503, codes.ResourceExhausted: 503,
	} {
		f.err = status.Error(code, "driver text")
		r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`))
		retry := r.Header.Get("Retry-After")
		if r.StatusCode != want || r.reason() != "OUTCOME_UNKNOWN" || !strings.Contains(r.Message, "same request_id") || strings.Contains(string(r.text), "driver") || (retry == "1") != (want == 503) {
			t.Errorf("%v: %s, Retry-After %q: %s", code, r.Status, retry, r.text)
		}
	}
}

// TestNoService: the door outlives the service, and says so.
func TestNoService(t *testing.T) {
	w := start(t, Config{Connect: func(context.Context, string, *tls.ConnectionState) (net.Conn, error) { return nil, net.ErrClosed }})
	if r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`)); r.StatusCode != http.StatusServiceUnavailable || r.reason() != "OUTCOME_UNKNOWN" {
		t.Errorf("%s: %s", r.Status, r.text)
	}
}

// TestShape counts what stands outside of strings.
func TestShape(t *testing.T) {
	for text, ok := range map[string]bool{
		`{}`: true, `{"a":"\\"}`: true, `"` + strings.Repeat(`[`, 100) + `\"` + strings.Repeat(`,`, maxValues) + `"`: true,
		strings.Repeat(`[`, maxDepth): true, strings.Repeat(`[`, maxDepth+1): false, `["\\",` + strings.Repeat(`[`, maxDepth): false,
		`[` + strings.Repeat(`,`, maxValues-2) + `]`: true, `[` + strings.Repeat(`,`, maxValues-1) + `]`: false, `\"` + strings.Repeat(`[`, 100): true, ``: false,
	} {
		if got := checkShape([]byte(text)); (got == nil) != ok {
			t.Errorf("%.50s: %v", text, got)
		}
	}
}

// closing is a connection that tells when it is closed.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c closing) Close() error {
	c.closed <- struct{}{}
	return c.Conn.Close()
}

// TestIdlePeer: a peer that asks for nothing keeps no connection in memory, and gets another one when it asks again.
func TestIdlePeer(t *testing.T) {
	srv := service(t, nil)
	opened, closed := make(chan struct{}, 10), make(chan struct{}, 10)
	w := start(t, Config{Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
		conn, err := srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
		opened <- struct{}{}
		return closing{conn, closed}, err
	}})
	for range 2 {
		w.posts("/v1/jobs:record", object{"job_id": "j"})
		w.posts("/v1/jobs:record", object{"job_id": "j"})
		<-opened
		select {
		case <-closed:
		case <-time.After(insideIdle + 10*time.Second):
			t.Fatal("the connection in memory is still open")
		}
	}
	if len(opened) > 0 {
		t.Error("more connections were opened than were needed")
	}
}
