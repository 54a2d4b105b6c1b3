package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// checkTimeout is how long the store may take to say that it can serve. One that takes longer cannot.
const checkTimeout = 5 * time.Second

// startGrace is how long a store may take to be ready for the first time before that is an error.
const startGrace = 10 * time.Second

// healthService is the standard health service, set by asking the store.
type healthService struct {
	*health.Server
	store    job.Checker
	interval time.Duration
	log      *slog.Logger
	// serving and reason are what the store said last, level how loudly that was logged, and began when it was first asked;
	// only the goroutine that asks it uses them. working is whether work could be claimed.
	serving bool
	working bool
	reason  string
	level   slog.Level
	began   time.Time
	// ready is closed when the store is ready for the first time.
	ready chan struct{}
	// stopping ends when the server stops.
	stopping context.Context
	cancel   context.CancelFunc
}

func newHealthService(store job.Checker, interval time.Duration, log *slog.Logger) *healthService {
	h := &healthService{
		Server: health.NewServer(), store: store, interval: interval, log: log, began: time.Now(), ready: make(chan struct{}),
	}
	h.stopping, h.cancel = context.WithCancel(context.Background())
	h.set(false, generalHealth...)
	h.set(false, workHealth)
	return h
}

// generalHealth are the names whose status is the store's, "" for the server as a whole. workHealth needs more of the store.
var (
	generalHealth = []string{"", joboncev1.IdempotencyService_ServiceDesc.ServiceName, joboncev1.ExpectationService_ServiceDesc.ServiceName,
		joboncev1.AdminService_ServiceDesc.ServiceName}
	workHealth = joboncev1.WorkService_ServiceDesc.ServiceName
)

func (h *healthService) set(serving bool, services ...string) {
	s := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		s = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, name := range services {
		h.SetServingStatus(name, s)
	}
}

// run asks the store until ctx ends, and at once when prepared is closed.
func (h *healthService) run(ctx context.Context, prepared <-chan struct{}) {
	ticker := time.NewTicker(h.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-prepared:
			prepared = nil
		}
		h.ask(ctx)
	}
}

// ask asks the store once and sets the statuses by its answer. They stay as they are when ctx ends before the answer comes.
func (h *healthService) ask(ctx context.Context) {
	err := h.check(ctx, h.store.Check)
	working := err == nil && h.check(ctx, h.store.CheckWork) == nil // The store logs why not.
	if ctx.Err() != nil {
		return
	}
	if working != h.working {
		h.set(working, workHealth)
		h.working = working
	}
	level := slog.LevelError
	select {
	case <-h.ready:
	default:
		if time.Since(h.began) < startGrace {
			level = slog.LevelInfo
		}
	}
	switch {
	case err == nil && !h.serving:
		h.set(true, generalHealth...)
		h.log.Info("serving: the store is ready")
		select {
		case <-h.ready:
		default:
			close(h.ready)
		}
	case err != nil && (h.serving || err.Error() != h.reason || level > h.level):
		// A new reason is a change, too.
		h.set(false, generalHealth...)
		h.log.Log(ctx, level, "not serving: the store is not ready", "reason", err)
		h.reason, h.level = err.Error(), level
	}
	h.serving = err == nil
}

func (h *healthService) check(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return ask(ctx)
}

// stop says NOT_SERVING for good and ends the watches.
func (h *healthService) stop() {
	h.Shutdown()
	h.cancel()
}

// Watch is the standard Watch, but ends with a last NOT_SERVING when the server stops: a watch never ends by itself, and
// one client that watches would hold up the graceful stop until its timeout.
func (h *healthService) Watch(req *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.stopping, cancel)()
	err := h.Server.Watch(req, watchStream{stream, ctx})
	if h.stopping.Err() == nil {
		return err
	}
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the server is stopping")
}

// watchStream is a stream with another context.
type watchStream struct {
	grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]
	ctx context.Context
}

func (w watchStream) Context() context.Context { return w.ctx }
