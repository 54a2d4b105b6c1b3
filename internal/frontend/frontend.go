// Package frontend is `jobonce webhook`: the sources of a configuration file as one HTTP server. What a request means, and how
// it is answered, is for client/webhook; here are the sources' expressions and secrets, the bounds, and the metrics.
package frontend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/client/webhook"
)

// The values that [Config] fields get when they are zero.
const (
	DefaultMaxRequests     = 512
	DefaultMaxConnections  = 4096
	DefaultMaxHeader       = 64 << 10
	DefaultReadTimeout     = webhook.DefaultReadTimeout
	DefaultShutdownTimeout = 30 * time.Second
)

const (
	// refusedPath, refusedBusy and refusedConnections say why a request, or a connection, reached no source.
	refusedPath        = "path"
	refusedBusy        = "busy"
	refusedConnections = "connections"
	// linesPerSecond bounds how many refused requests are logged: those that anybody can send, and apart from them those whose
	// signature is good.
	linesPerSecond = 10
	idleTimeout    = 2 * time.Minute
	// maxBodies bounds what the bodies under way take together, in bytes: anybody can send some.
	maxBodies = 128 << 20
)

// Config is what a frontend is made with.
type Config struct {
	Sources []Source
	// MaxBody is the largest body, in bytes: what the service takes. 0: webhook.DefaultMaxBody.
	MaxBody int
	// MaxHeader bounds the headers of a request, in bytes. 0: DefaultMaxHeader.
	MaxHeader int
	// MaxRequests bounds the requests under way; more are answered 503. 0: DefaultMaxRequests.
	MaxRequests int
	// MaxConnections bounds the connections that are open; more are closed at once. 0: DefaultMaxConnections.
	MaxConnections int
	// ReadTimeout is how long the headers of a request may take to come, and then its body. 0: DefaultReadTimeout.
	ReadTimeout time.Duration
	// ShutdownTimeout is how long requests under way may go on when the frontend is to stop. 0: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// TrustedProxies are those whose X-Forwarded-Proto and X-Forwarded-Host are believed, for signed URLs.
	TrustedProxies []netip.Prefix
	// TLS secures the connections. nil: plaintext.
	TLS *tls.Config
	// Now tells the time by which the age of signatures is judged. nil: time.Now.
	Now func() time.Time
	// Tracer makes a span of each request to a source. nil: there are none.
	Tracer trace.Tracer
	// Metrics count. nil: nothing is counted.
	Metrics *Metrics
	// Logger takes the log. Bodies and secrets are never written to it. nil: slog.Default().
	Logger *slog.Logger
}

// Frontend receives webhooks. Make it with [New].
type Frontend struct {
	cfg    Config
	log    *slog.Logger
	routes map[string]*route
	places chan struct{}
	bodies *semaphore.Weighted // bytes of the bodies under way
	open   atomic.Int64        // connections
	// few is for what strangers send, signed for what senders do.
	few, signed *rate.Limiter
}

// route is a source that is served.
type route struct {
	source               *Source
	secrets, verifyToken *secrets
	handler              *webhook.Handler
}

// New makes a frontend, and tries the examples of its sources. It starts nothing. The error names the source and the key.
func New(jobs webhook.Jobs, cfg Config) (*Frontend, error) {
	cfg.MaxBody = cmp.Or(cfg.MaxBody, webhook.DefaultMaxBody)
	cfg.MaxHeader = cmp.Or(cfg.MaxHeader, DefaultMaxHeader)
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, DefaultMaxRequests)
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, DefaultMaxConnections)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, DefaultReadTimeout)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, DefaultShutdownTimeout)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	f := &Frontend{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default()), routes: make(map[string]*route),
		places: make(chan struct{}, cfg.MaxRequests), bodies: semaphore.NewWeighted(maxBodies),
		few: rate.NewLimiter(linesPerSecond, linesPerSecond), signed: rate.NewLimiter(linesPerSecond, linesPerSecond),
	}
	for i := range cfg.Sources {
		s := &cfg.Sources[i]
		r, err := f.route(jobs, s)
		if err != nil {
			return nil, err
		}
		f.routes[s.Path] = r
	}
	return f, nil
}

func (f *Frontend) route(jobs webhook.Jobs, s *Source) (*route, error) {
	secrets, err := s.signing()
	if err != nil {
		return nil, err
	}
	token, err := s.verifyToken()
	if err != nil {
		return nil, err
	}
	source, err := s.source(secrets.get, token.get)
	if err != nil {
		return nil, err
	}
	r := &route{source: s, secrets: secrets, verifyToken: token}
	r.handler, err = webhook.NewHandler(jobs, source, webhook.WithMaxBody(f.cfg.MaxBody), webhook.WithReadTimeout(f.cfg.ReadTimeout),
		webhook.WithReport(f.report), webhook.WithClock(f.cfg.Now))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.at, err)
	}
	for i := range s.Examples {
		if err := s.Examples[i].check(s, r.handler); err != nil {
			return nil, err
		}
	}
	if s.RecordOnly {
		f.log.Warn("record_only is set: what this source records is kept, and nobody will work on it", "source", s.Name)
	}
	if f.cfg.Metrics != nil {
		f.cfg.Metrics.add(s.Name)
	}
	return r, nil
}

// Handler is the handler of a source; nil when there is no such source.
func (f *Frontend) Handler(name string) *webhook.Handler {
	for _, r := range f.routes {
		if r.source.Name == name {
			return r.handler
		}
	}
	return nil
}

// ServeHTTP gives a request to the source that has its path.
func (f *Frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := f.routes[r.URL.Path]
	if route == nil {
		f.refuse(w, r, refusedPath, http.StatusNotFound, "no source has this path")
		return
	}
	select {
	case f.places <- struct{}{}:
		defer func() { <-f.places }()
	default:
		w.Header().Set("Retry-After", "1")
		f.refuse(w, r, refusedBusy, http.StatusServiceUnavailable, "too many requests are under way")
		return
	}
	size := f.held(r)
	if !f.bodies.TryAcquire(size) {
		w.Header().Set("Retry-After", "1")
		f.refuse(w, r, refusedBusy, http.StatusServiceUnavailable, "too large bodies are under way")
		return
	}
	defer f.bodies.Release(size)
	if m := f.cfg.Metrics; m != nil {
		m.underWay.Inc()
		defer m.underWay.Dec()
	}
	r = f.asSent(r)
	if f.cfg.Tracer != nil {
		var end func()
		r, end = f.traced(r, route.source.Name)
		defer end()
	}
	route.handler.ServeHTTP(w, r)
}

// held is how much of a body is kept at most. One that does not say its size may be as large as any.
func (f *Frontend) held(r *http.Request) int64 {
	if size := r.ContentLength; size >= 0 && size < int64(f.cfg.MaxBody) {
		return size
	}
	return int64(f.cfg.MaxBody)
}

// refuse answers a request that reaches no source.
func (f *Frontend) refuse(w http.ResponseWriter, r *http.Request, reason string, status int, text string) {
	if m := f.cfg.Metrics; m != nil {
		m.refused.WithLabelValues(reason).Inc()
	}
	if f.few.Allow() {
		f.log.Warn("a request was refused: "+text, "path", clip(r.URL.Path), "from", r.RemoteAddr, "status", status)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // Who has gone needs no answer.
}

// clip bounds what strangers put into the log.
func clip(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// asSent is the request as its sender made it, as far as a trusted proxy says so in its headers. Those of other peers do not count.
func (f *Frontend) asSent(r *http.Request) *http.Request {
	if !f.trusts(r.RemoteAddr) {
		return r
	}
	first := func(header string) string {
		value, _, _ := strings.Cut(r.Header.Get(header), ",")
		return strings.TrimSpace(value)
	}
	host, proto := first("X-Forwarded-Host"), first("X-Forwarded-Proto")
	if host == "" && proto == "" {
		return r
	}
	out := new(*r) // The body and the headers are the same.
	if host != "" {
		out.Host = host
	}
	switch proto {
	case "https":
		out.TLS = &tls.ConnectionState{}
	case "http":
		out.TLS = nil
	}
	return out
}

func (f *Frontend) trusts(remote string) bool {
	addr, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range f.cfg.TrustedProxies {
		if p.Contains(addr.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// report counts and logs what became of a request.
func (f *Frontend) report(ctx context.Context, r webhook.Report) {
	if m := f.cfg.Metrics; m != nil {
		m.count(r)
	}
	level, text := slog.LevelWarn, "a webhook was refused"
	switch r.Reason {
	case webhook.Accepted, webhook.Handshaken:
		level, text = slog.LevelDebug, "a webhook was answered"
	case webhook.Unreadable:
		level, text = slog.LevelError, "a webhook cannot be read: it is kept whole, starts nothing, and the sender is asked to deliver it again"
	case webhook.NotRecorded:
		text = "a webhook was not recorded, or that is not known: the sender is asked to deliver it again"
	}
	limiter := f.few
	if r.Verified {
		limiter = f.signed
	}
	if !f.log.Enabled(ctx, level) || level == slog.LevelWarn && !limiter.Allow() {
		return
	}
	attrs := []slog.Attr{slog.String("source", r.Source), slog.String("reason", string(r.Reason)), slog.Int("status", r.Status),
		slog.Duration("took", r.Duration)}
	if r.JobID != "" {
		attrs = append(attrs, slog.String("job_id", r.JobID))
	}
	if r.Items != 1 {
		attrs = append(attrs, slog.Int("events", r.Items))
	}
	if r.Err != nil {
		attrs = append(attrs, slog.String("error", r.Err.Error()))
	}
	f.log.LogAttrs(ctx, level, text, attrs...)
}

// bounded is http.Server.ConnState, and closes the connections for which there is no room.
func (f *Frontend) bounded(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateClosed, http.StateHijacked:
		f.open.Add(-1)
	case http.StateNew:
		if f.open.Add(1) <= int64(f.cfg.MaxConnections) {
			return
		}
		_ = conn.Close()
		if m := f.cfg.Metrics; m != nil {
			m.refused.WithLabelValues(refusedConnections).Inc()
		}
		if f.few.Allow() {
			f.log.Warn("a connection was closed: too many are open; --max-connections says how many may be", "from", conn.RemoteAddr())
		}
	}
}

// Run serves on the listener, which it closes, until ctx ends; then it lets the requests under way be answered within
// Config.ShutdownTimeout, cuts what is left, and returns nil. It may be called once.
func (f *Frontend) Run(ctx context.Context, lis net.Listener) error {
	server := &http.Server{
		Handler: f, TLSConfig: f.cfg.TLS, MaxHeaderBytes: f.cfg.MaxHeader,
		ReadHeaderTimeout: f.cfg.ReadTimeout, IdleTimeout: idleTimeout,
		// For requests that are refused before they are read: the server waits for the rest of them.
		ReadTimeout: 2 * f.cfg.ReadTimeout,
		ConnState:   f.bounded,
		ErrorLog:    slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watchers sync.WaitGroup
	for _, r := range f.routes {
		watchers.Go(func() { r.secrets.run(watching, r.handler.CheckSecrets, f.log) })
		watchers.Go(func() { r.verifyToken.run(watching, func([]string) error { return nil }, f.log) })
	}
	defer watchers.Wait()
	defer stop()
	served := make(chan error, 1)
	go func() {
		if f.cfg.TLS != nil {
			served <- server.ServeTLS(lis, "", "")
			return
		}
		served <- server.Serve(lis)
	}()
	select {
	case err := <-served:
		_ = server.Close() // what it accepted before
		return fmt.Errorf("serve webhooks on %v: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.ShutdownTimeout)
	defer cancel()
	if err := server.Shutdown(within); err != nil {
		f.log.Warn("webhooks are still being answered, and are cut", "after", f.cfg.ShutdownTimeout)
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve webhooks on %v: %w", lis.Addr(), err)
	}
	return nil
}
