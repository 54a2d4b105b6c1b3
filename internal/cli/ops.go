package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/telemetry"
	"github.com/jobonce/jobonce/server"
)

// ops is the ops listener of serve and the metrics that it shows. The nil one is that of a service without: it does
// nothing, and nothing is measured.
type ops struct {
	lis     net.Listener
	metrics *telemetry.Metrics
	// admit decides who may read the metrics; nil: everybody.
	admit telemetry.Admit
}

// newOps binds the address; nil when that is empty.
func newOps(ctx context.Context, address string) (*ops, error) {
	if address == "" {
		return nil, nil
	}
	lis, err := listen(ctx, "--ops-listen", address, privateSocket)
	if err != nil {
		return nil, err
	}
	return &ops{lis: lis, metrics: telemetry.NewMetrics(build())}, nil
}

// build is what was built, for metrics and traces.
func build() telemetry.Build {
	v := readVersion()
	return telemetry.Build{Version: v.Version, Commit: v.Commit, Go: v.Go}
}

// openOps serves the ops listener of a command that is no service, until end is called. It serves none when the address is empty.
func openOps(ctx context.Context, address string, metrics prometheus.Gatherer, logger *slog.Logger) (end func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	lis, err := listen(ctx, "--ops-listen", address, privateSocket)
	if err != nil {
		return nil, err
	}
	ready := func(context.Context) error {
		if ctx.Err() != nil {
			return errors.New("the command is stopping")
		}
		return nil
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- telemetry.NewOps(metrics, ready, nil, logger).Run(running, lis) }()
	return func() error {
		stop()
		return <-ended
	}, nil
}

// address is where it listens, for the log.
func (o *ops) address() string {
	if o == nil {
		return "none"
	}
	return o.lis.Addr().String()
}

// close closes a listener that nobody served on; otherwise it was closed before.
func (o *ops) close() {
	if o != nil {
		_ = o.lis.Close()
	}
}

// observe has batches and calls measured.
func (o *ops) observe(batches *batch.Config, calls *server.Config) {
	if o == nil {
		return
	}
	batches.Observe = o.metrics.Written
	calls.Observer = o.metrics
	calls.UnaryInterceptors = []grpc.UnaryServerInterceptor{o.metrics.UnaryInterceptor()}
	calls.StreamInterceptors = []grpc.StreamServerInterceptor{o.metrics.StreamInterceptor()}
}

// instrument has the requests of a listener over HTTP measured; nil: they are not.
func (o *ops) instrument(listener string) func(http.Handler) http.Handler {
	if o == nil {
		return nil
	}
	return func(next http.Handler) http.Handler { return o.metrics.HTTP(listener, next) }
}

// protect shows the metrics to callers with the right alone.
func (o *ops) protect(callers *auth.Authority) {
	o.admit = func(ctx context.Context, authorization []string) (int, error) {
		switch caller, err := callers.Who(ctx, auth.Shown{Authorization: authorization}); {
		case errors.Is(err, auth.ErrUnavailable):
			return http.StatusServiceUnavailable, err
		case err != nil:
			return http.StatusUnauthorized, err
		case !caller.May(auth.Metrics):
			return http.StatusForbidden, fmt.Errorf("%s may not read the metrics", caller.Name)
		}
		return http.StatusOK, nil
	}
}

// watchExpiries shows when certificates and callers expire.
func (o *ops) watchExpiries(s security) {
	if o == nil {
		return
	}
	if s.certificates != nil {
		o.metrics.WatchCertificate(s.certificates.Expires)
	}
	if s.callers != nil {
		o.metrics.WatchCallers(s.callers.Expiries)
	}
}

// run serves until ctx ends. The service counts as ready until serving ends, as long as its store is.
func (o *ops) run(ctx, serving context.Context, srv *server.Server, jobs *batch.Store, store *openStore, logger *slog.Logger) error {
	if o == nil {
		return nil
	}
	o.metrics.WatchQueue(jobs.Queued, jobs.QueuedChanges)
	o.metrics.WatchLine(srv.InLine)
	o.metrics.WatchReady(jobs.Check)
	o.metrics.WatchDue(srv.LongestDue, srv.LastClaim)
	if store.clockOffset != nil {
		o.metrics.WatchClock(store.clockOffset)
	}
	if store.leases != nil {
		o.metrics.WatchClaims(store.leases)
	}
	o.metrics.WatchOverdue(jobs.CountOverdue)
	if store.unclaimable != nil {
		o.metrics.WatchUnclaimable(store.unclaimable)
	}
	ready := func(ctx context.Context) error {
		if serving.Err() != nil {
			return errors.New("the service is stopping")
		}
		return jobs.Check(ctx)
	}
	return telemetry.NewOps(o.metrics.Gatherer(), ready, o.admit, logger).Run(ctx, o.lis)
}
