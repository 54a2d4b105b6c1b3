package client_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	request       = joboncev1.RecordDeliveryRequest
	response      = joboncev1.RecordDeliveryResponse
	batchRequest  = joboncev1.BatchRecordDeliveriesRequest
	batchResponse = joboncev1.BatchRecordDeliveriesResponse
	result        = joboncev1.BatchRecordDeliveriesResponse_Result
)

// fake is a service whose answers the test gives. A nil function is UNIMPLEMENTED, but that a batch goes to record item by item.
type fake struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	record func(context.Context, *request) (*response, error)
	batch  func(context.Context, *batchRequest) (*batchResponse, error)
	get    func(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error)
	// health is what the service says of itself; nil: SERVING.
	health   *health.Server
	noHealth bool // The service does not say.
}

func (f *fake) RecordDelivery(ctx context.Context, req *request) (*response, error) {
	if f.record == nil {
		return f.UnimplementedIdempotencyServiceServer.RecordDelivery(ctx, req)
	}
	return f.record(ctx, req)
}

func (f *fake) BatchRecordDeliveries(ctx context.Context, req *batchRequest) (*batchResponse, error) {
	switch {
	case f.batch != nil:
		return f.batch(ctx, req)
	case f.record == nil:
		return f.UnimplementedIdempotencyServiceServer.BatchRecordDeliveries(ctx, req)
	}
	// As the service does: each on its own.
	resp := &batchResponse{}
	for _, one := range req.GetDeliveries() {
		r := &result{}
		if answer, err := f.record(ctx, one); err != nil {
			r.Outcome = &joboncev1.BatchRecordDeliveriesResponse_Result_Error{Error: itemOf(err)}
		} else {
			r.Outcome = &joboncev1.BatchRecordDeliveriesResponse_Result_Response{Response: answer}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// itemOf is a call's error as an item of a batch carries it.
func itemOf(err error) *joboncev1.ItemError {
	st := status.Convert(err)
	item := &joboncev1.ItemError{Code: int32(st.Code()), Message: st.Message()}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			item.Reason = joboncev1.ErrorReason(joboncev1.ErrorReason_value["ERROR_REASON_"+d.GetReason()])
		case *errdetails.RetryInfo:
			item.RetryDelay = d.GetRetryDelay()
		}
	}
	return item
}

func (f *fake) GetJob(ctx context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
	if f.get == nil {
		return f.UnimplementedIdempotencyServiceServer.GetJob(ctx, req)
	}
	return f.get(ctx, req)
}

// network is an in-memory listener whose connections can be cut.
type network struct {
	*bufconn.Listener
	mu    sync.Mutex
	conns []*connection
	down  bool
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, errors.New("connection refused")
	}
	return n.DialContext(ctx)
}

func (n *network) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn}
	n.mu.Lock()
	n.conns = append(n.conns, c)
	n.mu.Unlock()
	return c, nil
}

// connection can lose what the service sends.
type connection struct {
	net.Conn
	lossy atomic.Bool
}

func (c *connection) Write(b []byte) (int, error) {
	if c.lossy.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// lose makes the service's side of all present connections silent, without a sign to the client.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		conn.lossy.Store(true)
	}
}

// cut closes every connection under the feet of both sides.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

// shut cuts every connection and refuses new ones.
func (n *network) shut() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.cut()
}

// open ends shut.
func (n *network) open() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}

// start serves f in memory and returns a client of it, which batches unless an option says otherwise: the dialler reads no
// caller's context. Inside [synctest.Test] all time is simulated.
func start(t *testing.T, f *fake, opts ...client.Option) (*client.Client, *network) {
	t.Helper()
	return startAt(t, "passthrough:///memory", f, append([]client.Option{client.WithInsecure(), client.WithBatching()}, opts...)...)
}

// startAt is start with a client that believes to call target, in the way that is the default for it.
func startAt(t *testing.T, target string, f *fake, opts ...client.Option) (*client.Client, *network) {
	t.Helper()
	lis := &network{Listener: bufconn.Listen(64 << 10)}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: client.DefaultKeepaliveTime / 2, PermitWithoutStream: true,
	}))
	joboncev1.RegisterIdempotencyServiceServer(server, f)
	if f.health == nil {
		f.health = health.NewServer()
	}
	if !f.noHealth {
		grpc_health_v1.RegisterHealthServer(server, f.health)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // it may have been stopped before it began
			t.Errorf("serve: %v", err)
		}
	})
	opts = append([]client.Option{client.WithDialOptions(grpc.WithContextDialer(lis.dial))}, opts...)
	c, err := client.New(target, opts...)
	testenv.Must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c, lis
}

// reasonName is the reason as it stands in an ErrorInfo.
func reasonName(r joboncev1.ErrorReason) string { return r.String()[len("ERROR_REASON_"):] }

// failure makes the error that the service answers with. Empty field and zero delay are left out.
func failure(code codes.Code, reason, message, field string, delay time.Duration) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: "jobonce", Reason: reason}}
	if field != "" {
		details = append(details, &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: message}},
		})
	}
	if delay != 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		return err
	}
	return st.Err()
}

var (
	overloaded  = failure(codes.ResourceExhausted, "OVERLOADED", "the queue is full", "", 700*time.Millisecond)
	unavailable = failure(codes.Unavailable, "STORE_UNAVAILABLE", "no store", "", 0)
	unknown     = failure(codes.Unavailable, "OUTCOME_UNKNOWN", "nobody knows", "", 0)
)
