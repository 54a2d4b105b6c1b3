// Package httpdoor is the HTTP/JSON door. It turns HTTP requests into gRPC calls, by the rules of proto/jobonce/v1/http.yaml, and
// sends them over connections in memory, one for each connection of its own. The door of gRPC decides who calls and what
// they may, as for any call.
package httpdoor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/klauspost/compress/gzhttp"
	"golang.org/x/time/rate"

	rules "github.com/jobonce/jobonce/gen/http/jobonce/v1"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
)

const (
	// maxBody bounds the JSON of a request, also when it is inflated. The largest message that the service takes, 8 MiB of a
	// batch, is larger as JSON: quotes and control characters are escaped, and bytes are base64.
	maxBody = 16 << 20
	// maxMessage bounds the message that a body is made into: it is what the gRPC server takes.
	maxMessage = 9 << 20
	// maxBodies bounds what is held of bodies that were not made messages yet, all together. The last quarter is for those of
	// smallBody at most, so that a few large ones that come slowly keep no delivery out.
	maxBodies = 128 << 20
	smallBody = 64 << 10
	// maxAnswers is what is held of answers that were not read yet, all together, from where on no more calls are made. An answer is
	// always sent: what it tells of has been done.
	maxAnswers = 128 << 20
	// maxHeader is what is read of a request's headers.
	maxHeader = 64 << 10
	// headerTime is how long the headers may take to come, bodyTime the body.
	headerTime = 10 * time.Second
	bodyTime   = 30 * time.Second
	// idleTime is how long a connection is kept on which nothing is asked.
	idleTime = 75 * time.Second
	// requestTime bounds a request from its first byte to the last of its answer: the body, the longest wait, a call of the
	// service, and then as long for the answer as for the body.
	requestTime = bodyTime + 60*time.Second + 30*time.Second + bodyTime
	// maxRefusals is after how many requests in a row that were refused for their caller's sake a connection ends.
	maxRefusals = 100
	// refusalsLogged is how many requests a second are logged that did not become a call.
	refusalsLogged = 20
)

// Config is what a [Door] is made of.
type Config struct {
	// Connect opens a connection in memory to the gRPC server, for a peer at addr whose own connection is secured as secured says;
	// nil in plaintext.
	Connect func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error)
	// Callers and Certificates are those of the gRPC server. nil: there are none. The bodies of strangers are not read.
	Callers      *auth.Authority
	Certificates *auth.Certificates
	// Hosts are the names, beside localhost, addresses, and those of the certificate, by which requests may call the server.
	Hosts []string
	// MaxConnections bounds the connections. More are closed at once. MaxConnectionAge is how long one is used.
	MaxConnections   int
	MaxConnectionAge time.Duration
	// ShutdownTimeout is how long requests under way may go on once the door is to stop.
	ShutdownTimeout time.Duration
	Logger          *slog.Logger
	// Refused is told the reason, without its prefix, why a request did not become a call. nil: nobody is.
	Refused func(reason string)
	// Instrument goes around all that is done with a request. When that is over, the request's Pattern is the path of the API that
	// it was for; empty: none. nil: nothing does.
	Instrument func(http.Handler) http.Handler
}

// Door serves the API over HTTP. Make one with [New].
type Door struct {
	cfg     Config
	hosts   auth.Hosts
	handler http.Handler
	bodies  room
	answers room
	peers   peers
	few     *rate.Limiter
	// bodyTime is how long a body may take to come.
	bodyTime time.Duration
}

// New makes a door. It starts nothing.
func New(cfg Config) (*Door, error) {
	d := &Door{
		cfg: cfg, hosts: auth.Hosts{Names: cfg.Hosts, Certificates: cfg.Certificates}, bodies: room{most: maxBodies}, answers: room{most: maxAnswers},
		few: rate.NewLimiter(refusalsLogged, refusalsLogged), bodyTime: bodyTime,
	}
	d.peers.cfg = &d.cfg
	none := func(string) (string, bool) { return "", false }
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newMarshaler()),
		runtime.WithIncomingHeaderMatcher(passes), runtime.WithOutgoingHeaderMatcher(none), runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithErrorHandler(d.failed), runtime.WithRoutingErrorHandler(d.unrouted), runtime.WithMiddlewares(d.enter),
		runtime.WithDisablePathLengthFallback(), runtime.WithDisableHTTPMethodOverride(), runtime.WithWriteContentLength(),
	)
	ctx := context.Background()
	err := errors.Join(
		rules.RegisterIdempotencyServiceHandlerClient(ctx, mux, joboncev1.NewIdempotencyServiceClient(calls{d})),
		rules.RegisterWorkServiceHandlerClient(ctx, mux, joboncev1.NewWorkServiceClient(calls{d})),
		rules.RegisterExpectationServiceHandlerClient(ctx, mux, joboncev1.NewExpectationServiceClient(calls{d})),
	)
	if err != nil {
		return nil, err
	}
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.refuse(w, r, refusal{status: http.StatusForbidden, reason: reasonDenied, message: "the request comes from a page of another origin"})
	}))
	compress, err := gzhttp.NewWrapper(gzhttp.EnableZstd(false))
	if err != nil {
		return nil, err
	}
	d.handler = compress(d.greet(foreign.Handler(mux)))
	if cfg.Instrument != nil {
		d.handler = cfg.Instrument(d.handler)
	}
	return d, nil
}

// passes says which headers become metadata of the call. The gateway passes Authorization and the deadline (Grpc-Timeout) itself.
func passes(header string) (string, bool) {
	return strings.ToLower(header), header == "Traceparent" || header == "Tracestate"
}

// mendHeaders takes out of headers what cannot be metadata. The gateway would leave it out, and log most of it as an error. A
// credential is not left out: the call would be somebody else's.
func mendHeaders(h http.Header) {
	bad := func(value string) bool {
		return strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
	}
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if slices.ContainsFunc(h[name], bad) {
			delete(h, name)
		}
	}
	for i, value := range h["Authorization"] {
		if bad(value) {
			h["Authorization"][i] = "unreadable"
		}
	}
}

// greet does what every request gets, and refuses those that were meant for another server: a page can have its own name lead
// here, and would then be of the same origin.
func (d *Door) greet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		mendHeaders(r.Header)
		if p := peerOf(r.Context()); p.tired(d.cfg.MaxConnectionAge) {
			h.Set("Connection", "close")
		}
		if r.ContentLength != 0 {
			// Also for what is refused: net/http reads on before it answers. Where it cannot be set, WriteTimeout bounds it.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.bodyTime))
		}
		defer d.recovered()
		if !d.hosts.Serve(r.Host) {
			d.refuse(w, r, refusal{status: http.StatusMisdirectedRequest, reason: reasonDenied,
				message: fmt.Sprintf("this server is not called %q; --http-hosts says how it is", clip(r.Host))})
			return
		}
		call := &request{asked: r, room: &d.answers}
		defer call.release()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, call)))
	})
}

// recovered logs a panic, and has the connection end: nobody knows what became of the call.
func (d *Door) recovered() {
	if p := recover(); p != nil {
		d.cfg.Logger.Error("panic", "panic", p, "stack", string(debug.Stack()))
		panic(http.ErrAbortHandler)
	}
}

// stranger is why the request has no caller; nil when it has one, or when no callers are configured.
func (d *Door) stranger(r *http.Request) error {
	if d.cfg.Callers == nil {
		return nil
	}
	shown := auth.Shown{Authorization: r.Header.Values("Authorization")}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if err := d.cfg.Certificates.Vouch(&peerOf(r.Context()).vouched, r.TLS.PeerCertificates); err != nil {
			return err
		}
		shown.Certificate = r.TLS.PeerCertificates[0]
	}
	_, err := d.cfg.Callers.Who(r.Context(), shown)
	return err
}

// Run serves on the listener and closes it. When ctx ends it takes no new requests, lets those under way finish within
// ShutdownTimeout, cuts what is left, and returns nil. The error is the listener's failure.
func (d *Door) Run(ctx context.Context, lis net.Listener) error {
	srv := &http.Server{
		Handler: d.handler, ReadHeaderTimeout: headerTime, WriteTimeout: requestTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true,
		ConnContext:                  d.peers.began, ConnState: d.peers.changed, ErrorLog: slog.NewLogLogger(d.cfg.Logger.Handler(), slog.LevelDebug),
	}
	if d.cfg.Certificates != nil {
		srv.TLSConfig = d.cfg.Certificates.HTTPWithClients()
	}
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			served <- srv.ServeTLS(loud{lis, &d.peers}, "", "")
		} else {
			served <- srv.Serve(loud{lis, &d.peers})
		}
	}()
	defer d.peers.close()
	select {
	case err := <-served:
		_ = srv.Close()
		return fmt.Errorf("HTTP: serve on %v: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.ShutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		d.cfg.Logger.Warn("HTTP requests are still under way and are cut", "after", d.cfg.ShutdownTimeout)
		_ = srv.Close()
	}
	<-served // which says that it was stopped
	return nil
}
