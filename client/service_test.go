package client_test

import (
	"context"
	"path"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

// service is the real service over an embedded store. Inside [synctest.Test] all of its time is simulated.
type service struct {
	net   *network
	store *batch.Store

	mu    sync.Mutex
	calls []string // The RPCs that were called, in order.
	hook  hook
}

// hook goes around the handlers; nil calls them.
type hook func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error)

const (
	recordRPC   = "RecordDelivery"
	claimRPC    = "ClaimWork"
	renewRPC    = "RenewLease"
	completeRPC = "CompleteWork"
	releaseRPC  = "ReleaseWork"
	changesRPC  = "BatchChangeLeases"
)

// maxAttempts is how many leases the service grants for a job.
const maxAttempts = 4

func startService(t *testing.T) *service {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{MaxAttempts: maxAttempts, Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	s := &service{net: &network{Listener: bufconn.Listen(64 << 10)}, store: batch.New(store, batch.Config{})}
	srv, err := server.New(server.Config{Logger: testenv.Logger(t), UnaryInterceptors: []grpc.UnaryServerInterceptor{s.intercept}}, s.store)
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Run(ctx, s.net) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := s.store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

func (s *service) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	s.mu.Lock()
	s.calls = append(s.calls, method)
	h := s.hook
	s.mu.Unlock()
	if h == nil {
		return handler(ctx, req)
	}
	return h(ctx, method, req, handler)
}

// through lets the calls from now on go through h.
func (s *service) through(h hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = h
}

// called is how often the RPC was called.
func (s *service) called(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, m := range s.calls {
		if m == method {
			n++
		}
	}
	return n
}

// client returns a client of the service.
func (s *service) client(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	opts = append([]client.Option{
		client.WithInsecure(), client.WithBatching(), client.WithDialOptions(grpc.WithContextDialer(s.net.dial)),
	}, opts...)
	c, err := client.New("passthrough:///memory", opts...)
	testenv.Must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// work is what the store has of a job's work.
func (s *service) work(t *testing.T, jobID string) job.Work {
	t.Helper()
	r, err := s.store.Get(context.WithoutCancel(t.Context()), jobID, false)
	testenv.Must(t, err)
	return r.Work
}

// queue records jobs for workers.
func queue(t *testing.T, c *client.Client, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := c.RecordDelivery(t.Context(), &request{
			JobId: id, WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED,
			Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: "body of " + id},
		})
		testenv.Must(t, err)
	}
}

// delivery is a delivery of the job under a lease of 10 s.
func delivery(id string) *request {
	return &request{
		JobId: id, Event: "job.completed", LeaseDuration: durationpb.New(10 * time.Second),
		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: "body of " + id},
	}
}

// answerLost lets the RPC's first n calls do what they do and then fail.
func answerLost(method string, n int) hook {
	var mu sync.Mutex
	return func(ctx context.Context, m string, req any, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		if m == method && n > 0 {
			n--
			return nil, unknown
		}
		return resp, err
	}
}

// refused makes the RPC fail before it does anything.
func refused(method string, err error) hook {
	return func(ctx context.Context, m string, req any, handler grpc.UnaryHandler) (any, error) {
		if m == method {
			return nil, err
		}
		return handler(ctx, req)
	}
}
