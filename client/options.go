package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// The defaults of a client.
const (
	// DefaultTimeout bounds a call, its retries included, whose context has no deadline.
	DefaultTimeout = 10 * time.Second
	// DefaultKeepaliveTime is how long a connection may be silent before it is pinged.
	DefaultKeepaliveTime = 30 * time.Second
	// DefaultKeepaliveTimeout is how long the answer to a ping may take before the connection counts as dead.
	DefaultKeepaliveTimeout = 10 * time.Second
)

// The service closes connections that ping more often than this.
const minKeepaliveTime = 10 * time.Second

// Option changes a default of [New]. Of two options that set the same thing the later one holds.
type Option func(*options)

type options struct {
	useTLS           bool
	tlsConfig        *tls.Config
	clientCert       *certificateFiles
	insecure         bool
	token            func(context.Context) (string, error)
	tokenVaries      bool // The token can differ from caller to caller.
	plaintextToken   bool
	keepaliveTime    time.Duration
	keepaliveTimeout time.Duration
	policy           RetryPolicy
	timeout          time.Duration
	batching         *bool // Nil: unless there are dial options.
	userAgent        string
	dial             []grpc.DialOption
	invalid          error // The first option that cannot be.
}

func defaultOptions() options {
	return options{
		keepaliveTime:    DefaultKeepaliveTime,
		keepaliveTimeout: DefaultKeepaliveTimeout,
		timeout:          DefaultTimeout,
		userAgent:        "jobonce-go",
	}
}

// WithTLS encrypts the connection, to whatever target. A nil config means the system's roots and no client
// certificate. The config is copied.
func WithTLS(config *tls.Config) Option {
	return func(o *options) { o.useTLS, o.tlsConfig = true, config }
}

// WithoutBatching sends every delivery, and every change of a lease, in a call of its own. Otherwise deliveries that are
// recorded at the same time, and more than a few, share calls: each keeps its deadline, its request_id and its error, one
// alone is sent at once either way, and a busy program does several times as many. So do renewals, and so do completions
// and releases, where the service takes them together.
//
// Nothing goes out as somebody else's. Only what has the same token shares a call, what comes with outgoing metadata in its
// context goes alone, and all goes alone when there are [WithDialOptions]: see [WithBatching].
func WithoutBatching() Option {
	return func(o *options) { o.batching = new(false) }
}

// WithBatching lets calls be shared, as without [WithDialOptions], also when there are some. A call that is shared
// has none of its callers' contexts, so say this only where no interceptor, stats handler or credentials among those
// options reads a caller's context: they would take all callers for one.
func WithBatching() Option {
	return func(o *options) { o.batching = new(true) }
}

// WithInsecure leaves the connection in plaintext, to whatever target. Together with [WithTLS] it is an error.
func WithInsecure() Option {
	return func(o *options) { o.insecure = true }
}

// WithToken sends "authorization: Bearer token" with every call. The token must not be empty and holds printable ASCII
// without spaces. It is refused on a plaintext connection to another machine; see [WithTokenOverPlaintext].
func WithToken(token string) Option {
	return func(o *options) {
		if err := checkToken(token); err != nil && o.invalid == nil {
			o.invalid = fmt.Errorf("WithToken: %w", err)
		}
		o.token, o.tokenVaries = func(context.Context) (string, error) { return token, nil }, false
	}
}

// WithTokenSource is [WithToken] with a token that can change: source is asked at every attempt of every call, from
// many goroutines at once, and should keep what it got. It gets the context of the call, so that it can give each caller
// a token of its own; what shares a call has the same token. Where there may be several instances, gRPC asks for their
// health in the context of no caller, and goes without a token when source has none for that. When source fails, the call
// fails with UNAUTHENTICATED and is not retried; an error made by gRPC's status.Error with codes.Unavailable is.
func WithTokenSource(source func(ctx context.Context) (string, error)) Option {
	return func(o *options) {
		if source == nil && o.invalid == nil {
			o.invalid = errors.New("WithTokenSource: the source is nil")
		}
		o.token, o.tokenVaries = source, true
	}
}

// WithTokenOverPlaintext lets a token travel unencrypted to another machine, where whoever listens can read and use it:
// for networks that encrypt by themselves.
func WithTokenOverPlaintext() Option {
	return func(o *options) { o.plaintextToken = true }
}

// WithKeepalive pings a connection that was silent for interval, and gives it up when no answer comes within timeout,
// so that calls do not wait on a peer that vanished. Defaults: [DefaultKeepaliveTime], [DefaultKeepaliveTimeout]. The
// interval is at least 10 s; 0 turns pings off.
func WithKeepalive(interval, timeout time.Duration) Option {
	return func(o *options) { o.keepaliveTime, o.keepaliveTimeout = interval, timeout }
}

// WithRetry changes how failed calls are repeated. Zero fields keep their defaults.
func WithRetry(policy RetryPolicy) Option {
	return func(o *options) { o.policy = policy }
}

// WithoutRetry makes one attempt only. Then the caller repeats what fails, with [Error.RequestID] as its request_id.
func WithoutRetry() Option {
	return WithRetry(RetryPolicy{MaxAttempts: 1})
}

// WithTimeout bounds a call, its retries included, whose context has no deadline. Default [DefaultTimeout]; 0 sets no
// bound.
func WithTimeout(d time.Duration) Option {
	return func(o *options) { o.timeout = d }
}

// WithUserAgent names the calling program to the service, before gRPC's own name. Default "jobonce-go".
func WithUserAgent(name string) Option {
	return func(o *options) { o.userAgent = name }
}

// WithDialOptions hands options on to gRPC, such as interceptors and stats handlers. They come last and beat this
// package's own. What they read of a caller's context nobody can tell, so nothing then shares a call, unless [WithBatching]
// says that they read nothing.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, opts...) }
}

// validate completes the options and says what about them cannot be.
func (o *options) validate(t target) error {
	if o.invalid != nil {
		return o.invalid
	}
	if err := o.policy.complete(); err != nil {
		return fmt.Errorf("WithRetry: %w", err)
	}
	switch {
	case o.useTLS && o.insecure:
		return errors.New("WithTLS and WithInsecure exclude each other")
	case o.clientCert != nil && o.plaintext(t):
		return errors.New("WithClientCertificateFiles needs TLS, which is not the default to this machine: add WithTLS")
	case o.clientCert != nil && o.tlsConfig != nil && (len(o.tlsConfig.Certificates) > 0 || o.tlsConfig.GetClientCertificate != nil):
		return errors.New("WithClientCertificateFiles, and WithTLS with a client certificate, exclude each other")
	case o.timeout < 0:
		return fmt.Errorf("WithTimeout: %v is negative", o.timeout)
	case o.keepaliveTime != 0 && o.keepaliveTime < minKeepaliveTime:
		return fmt.Errorf("WithKeepalive: the interval %v is below %v", o.keepaliveTime, minKeepaliveTime)
	case o.keepaliveTime != 0 && o.keepaliveTimeout <= 0:
		return fmt.Errorf("WithKeepalive: the timeout %v is not positive", o.keepaliveTimeout)
	case o.token != nil && o.plaintext(t) && !o.tokenMayBeSeen(t):
		return errors.New("a token would travel in plaintext to another machine: use TLS, or allow it with WithTokenOverPlaintext")
	}
	return nil
}

func (o *options) plaintext(t target) bool {
	return o.insecure || !o.useTLS && t.loopback()
}

func (o *options) tokenMayBeSeen(t target) bool {
	return o.plaintextToken || t.loopback()
}

// shared says whether deliveries may share calls.
func (o *options) shared() bool {
	if o.batching != nil {
		return *o.batching
	}
	return len(o.dial) == 0
}

// bearer is the credentials that send the token, nil when there is none.
func (o *options) bearer(t target) *bearer {
	if o.token == nil {
		return nil
	}
	return &bearer{source: o.token, mayBeSeen: o.tokenMayBeSeen(t)}
}

func (o *options) dialOptions(t target, token *bearer) []grpc.DialOption {
	var transport credentials.TransportCredentials
	switch {
	case o.plaintext(t):
		transport = namedSecurity{insecure.NewCredentials(), mendPlaintext}
	case o.useTLS:
		transport = namedSecurity{credentials.NewTLS(o.clientTLS()), mendTLS}
	default:
		transport = namedSecurity{credentials.NewTLS(o.clientTLS()), mendDefaultTLS}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(serviceConfig(t)),
		grpc.WithDisableRetry(), // One layer retries, and it is ours: it knows the reasons.
		grpc.WithConnectParams(connectParams(o.policy)),
		grpc.WithUserAgent(o.userAgent),
	}
	if o.keepaliveTime != 0 {
		opts = append(opts, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: o.keepaliveTime, Timeout: o.keepaliveTimeout, PermitWithoutStream: true,
		}))
	}
	if token != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(token))
	}
	opts = append(opts, o.dial...)
	return append(opts, grpc.WithChainUnaryInterceptor(limitMetadata)) // Last: it sees what the others add.
}
