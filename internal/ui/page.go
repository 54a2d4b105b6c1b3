// Package ui is the operators' page: what is due, held, dead, overdue and in conflict, one job, and what can be done about it. It is
// HTML that runs no script. It has no data of its own: each view is made of calls of the service, on a connection in memory,
// with the token that the viewer has signed in with, so that the service decides what the viewer may see and do.
package ui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
)

const (
	// maxForm bounds a request's body: as many jobs as a list has, with the longest ids.
	maxForm = 256 << 10
	// maxHeader is what is read of a request's headers, in which a job's id may stand three times as long as it is.
	maxHeader = 32 << 10
	// maxConnections are open at a time; more wait.
	maxConnections = 256
	// headerTime is how long the headers may take to come, readTime all of a request.
	headerTime, readTime = 10 * time.Second, 30 * time.Second
	// callTime bounds each call of the service, viewTime those that a view is made of, changeTime those that a form asks for, and
	// writeTime a request from its headers to the last of its answer.
	callTime, viewTime, changeTime, writeTime = 10 * time.Second, 30 * time.Second, time.Minute, 90 * time.Second
	// idleTime is how long a connection is kept on which nothing is asked.
	idleTime = 75 * time.Second
	// refusalsLogged is how many failed attempts to sign in are logged a second.
	refusalsLogged = 5
)

// policy is the Content-Security-Policy: no script, no frame, nothing from elsewhere, and forms that lead here.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Config is what a [Page] is made of.
type Config struct {
	// Connect opens a connection in memory to the gRPC server.
	Connect func(ctx context.Context) (net.Conn, error)
	// Callers and Certificates are those of the gRPC server. Without callers, everybody sees all but bodies, and can change
	// nothing. nil certificates: plaintext.
	Callers      *auth.Authority
	Certificates *auth.Certificates
	// Hosts are the names, beside localhost, addresses, and those of the certificate, by which browsers may call the page.
	Hosts []string
	// CallTimeout is how long a view waits for one call of the service. 0: 10 seconds.
	CallTimeout time.Duration
	// ShutdownTimeout is how long requests under way may go on once the page is to stop.
	ShutdownTimeout time.Duration
	Logger          *slog.Logger
	// Instrument goes around all that is done with a request. When that is over, the request's Pattern is the page's that it was
	// for; empty: none. nil: nothing does.
	Instrument func(http.Handler) http.Handler
}

// Page serves the page. Make one with [New].
type Page struct {
	cfg     Config
	hosts   auth.Hosts
	handler http.Handler
	conn    *grpc.ClientConn
	jobs    joboncev1.IdempotencyServiceClient
	admin   joboncev1.AdminServiceClient
	few     *rate.Limiter
	now     func() time.Time
	// counting is full while jobs are counted, counted what came of it last, a *counted for each prefix of callers.
	counting chan struct{}
	counted  sync.Map
}

// New makes a page. It starts nothing.
func New(cfg Config) (*Page, error) {
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = callTime
	}
	patience := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, cfg.CallTimeout)
		defer cancel()
		return call(ctx, method, req, reply, conn, opts...)
	}
	conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return cfg.Connect(ctx) }),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUnaryInterceptor(patience))
	if err != nil {
		return nil, err
	}
	p := &Page{
		cfg: cfg, hosts: auth.Hosts{Names: cfg.Hosts, Certificates: cfg.Certificates}, conn: conn,
		jobs: joboncev1.NewIdempotencyServiceClient(conn), admin: joboncev1.NewAdminServiceClient(conn),
		few: rate.NewLimiter(refusalsLogged, refusalsLogged), now: time.Now, counting: make(chan struct{}, 1),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /style.css", asset("text/css; charset=utf-8", style))
	mux.HandleFunc("GET /icon.svg", asset("image/svg+xml", icon))
	if cfg.Callers != nil {
		mux.HandleFunc("POST /sign-in", p.signIn)
		mux.HandleFunc("POST /sign-out", p.signOut)
	}
	for pattern, view := range map[string]view{
		"GET /{$}": p.overview, "GET /jobs": p.list, "GET /job": p.one, "GET /expected": p.expected,
		"POST /confirm": p.confirm, "POST /change": p.change,
		"/": func(*request) (*content, error) { return nil, noPage },
	} {
		mux.Handle(pattern, p.show(view))
	}
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.refuse(w, &request{Request: r}, &refusal{http.StatusForbidden, "The request comes from a page of another origin, and nothing was done.", ""})
	}))
	p.handler = p.greet(foreign.Handler(mux))
	if cfg.Instrument != nil {
		p.handler = cfg.Instrument(p.handler)
	}
	return p, nil
}

// greet does what every request gets, and refuses those that were meant for another server.
func (p *Page) greet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		// Ids stand in addresses. With no-referrer, forms would come from the origin "null".
		h.Set("Referrer-Policy", "same-origin")
		h.Set("X-Content-Type-Options", "nosniff")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if !p.hosts.Serve(r.Host) {
			http.Error(w, "this server is not called so; --http-hosts says how it is", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// asset serves what is the same for everybody.
func asset(kind string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(content)
	}
}

// Run serves on the listener and closes it. When ctx ends it takes no new requests, lets those under way finish within
// ShutdownTimeout, cuts what is left, and returns nil. The error is the listener's failure. It runs once.
func (p *Page) Run(ctx context.Context, lis net.Listener) error {
	defer p.conn.Close()
	srv := &http.Server{
		Handler: p.handler, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
	}
	address := lis.Addr()
	lis = netutil.LimitListener(lis, maxConnections)
	served := make(chan error, 1)
	go func() {
		if p.cfg.Certificates != nil {
			srv.TLSConfig = p.cfg.Certificates.HTTP()
			served <- srv.ServeTLS(lis, "", "")
		} else {
			served <- srv.Serve(lis)
		}
	}()
	select {
	case err := <-served:
		_ = srv.Close()
		return fmt.Errorf("the page: serve on %v: %w", address, err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.ShutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil && !errors.Is(err, http.ErrServerClosed) {
		p.cfg.Logger.Warn("requests of the page are still under way and are cut", "after", p.cfg.ShutdownTimeout)
		_ = srv.Close()
	}
	<-served // which says that it was stopped
	return nil
}
