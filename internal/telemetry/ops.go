package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// readyTimeout is how long the store may take to answer a probe. One that takes longer is not ready.
	readyTimeout = 5 * time.Second
	// shutdownTimeout is how long requests may go on when the listener is to stop.
	shutdownTimeout = 2 * time.Second
	// maxScrapes is how many requests for metrics are answered at a time.
	maxScrapes = 4
)

// Ops is the HTTP listener for operators and their machines:
//
//	/metrics  the metrics, for Prometheus
//	/livez    200 as long as the process runs
//	/readyz   200 when the service is ready, else 503 with the reason
//
// It has no authentication, but that /metrics may have one, and the reason may name hosts and paths: it is for a network that
// only operators reach.
type Ops struct {
	server *http.Server
}

// Admit decides whether a request may read the metrics: by the values of its header Authorization. The error is what it is told,
// with the status.
type Admit func(ctx context.Context, authorization []string) (status int, err error)

// NewOps makes a listener that shows m to those whom admit lets, everybody when it is nil. check returns nil when the service
// is ready, otherwise why it is not. It starts nothing.
func NewOps(m prometheus.Gatherer, check func(context.Context) error, admit Admit, logger *slog.Logger) *Ops {
	errorLog := slog.NewLogLogger(logger.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(m, promhttp.HandlerOpts{ErrorLog: errorLog, MaxRequestsInFlight: maxScrapes})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if admit != nil {
			if status, err := admit(r.Context(), r.Header.Values("Authorization")); err != nil {
				if status == http.StatusUnauthorized {
					w.Header().Set("WWW-Authenticate", "Bearer")
				}
				say(w, status, err.Error())
				return
			}
		}
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			say(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		say(w, http.StatusOK, "ok")
	})
	return &Ops{server: &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
	}}
}

func say(w http.ResponseWriter, code int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// Who has gone needs no answer.
	_, _ = io.WriteString(w, text+"\n")
}

// Run serves on the listener, which it closes, until ctx ends; then it returns nil. It may be called once.
func (o *Ops) Run(ctx context.Context, lis net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- o.server.Serve(lis) }()
	select {
	case err := <-served:
		_ = o.server.Close() // what it accepted before
		return fmt.Errorf("serve the ops listener on %v: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := o.server.Shutdown(stop); err != nil {
		_ = o.server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the ops listener on %v: %w", lis.Addr(), err)
	}
	return nil
}
