package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/telemetry"
	"github.com/jobonce/jobonce/server"
)

// admin is the admin listener of serve and the metrics that it shows. The nil one is that of a service without: it does
// nothing, and nothing is measured.
type admin struct {
	lis     net.Listener
	metrics *telemetry.Metrics
}

// newAdmin binds the address; nil when that is empty.
func newAdmin(ctx context.Context, address string) (*admin, error) {
	if address == "" {
		return nil, nil
	}
	lis, err := listen(ctx, "--admin-listen", address)
	if err != nil {
		return nil, err
	}
	v := readVersion()
	return &admin{lis: lis, metrics: telemetry.NewMetrics(telemetry.Build{Version: v.Version, Commit: v.Commit, Go: v.Go})}, nil
}

// address is where it listens, for the log.
func (a *admin) address() string {
	if a == nil {
		return "none"
	}
	return a.lis.Addr().String()
}

// close closes a listener that nobody served on; otherwise it was closed before.
func (a *admin) close() {
	if a != nil {
		_ = a.lis.Close()
	}
}

// observe has batches and calls measured.
func (a *admin) observe(batches *batch.Config, calls *server.Config) {
	if a == nil {
		return
	}
	batches.Observe = a.metrics.Written
	calls.Observer = a.metrics
	calls.UnaryInterceptors = []grpc.UnaryServerInterceptor{a.metrics.UnaryInterceptor()}
	calls.StreamInterceptors = []grpc.StreamServerInterceptor{a.metrics.StreamInterceptor()}
}

// run serves until ctx ends. The service counts as ready until serving ends, as long as its store is.
func (a *admin) run(ctx, serving context.Context, jobs *batch.Store, store *openStore, logger *slog.Logger) error {
	if a == nil {
		return nil
	}
	a.metrics.WatchQueue(jobs.Queued)
	a.metrics.WatchReady(jobs.Check)
	if store.clockOffset != nil {
		a.metrics.WatchClock(store.clockOffset)
	}
	if store.unclaimable != nil {
		a.metrics.WatchUnclaimable(store.unclaimable)
	}
	ready := func(ctx context.Context) error {
		if serving.Err() != nil {
			return errors.New("the service is stopping")
		}
		return jobs.Check(ctx)
	}
	return telemetry.NewAdmin(a.metrics, ready, logger).Run(ctx, a.lis)
}
