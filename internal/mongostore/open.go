// Package mongostore is the production store: one document per job in a MongoDB collection, written by the seed's own
// upsert, so that frontends which still run that themselves and JobOnce agree on who was first. It is the only package
// that knows the driver.
package mongostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/jobonce/jobonce/internal/job"
)

// The names used when none are configured: those of the seed's sample.
const (
	DefaultDatabase   = "app"
	DefaultCollection = "sume_jobs"
)

// Options configure a store.
type Options struct {
	// URI is MongoDB's connection string. Required. What it says about the pool, timeouts, TLS and concerns is kept;
	// where it is silent see docs/mongodb.md.
	URI string
	// Database and Collection default to DefaultDatabase and DefaultCollection.
	Database   string
	Collection string
	// MaxAttempts is how many leases a job is granted before it counts as dead; 0 is no limit.
	MaxAttempts int
	// TextOnly turns off the copy of JSON bodies as embedded documents.
	TextOnly bool
	// Now replaces the database's clock, for tests.
	Now func() time.Time
	// Logger hears of every change of the store's state. Default slog.Default().
	Logger *slog.Logger
}

// Store is a job.Store on a MongoDB collection.
type Store struct {
	opts   Options
	log    *slog.Logger
	client *mongo.Client
	coll   *mongo.Collection
	hosts  string

	// secret is what must not be logged; empty when there is nothing.
	secret string
	// tls is true when the URI asks for it.
	tls bool

	// offset is the database's clock less ours, in nanoseconds.
	offset atomic.Int64
	// deployment is what the database turned out to be.
	deployment atomic.Pointer[deployment]
	// unready is why the store does not serve, as far as preparing goes; nil once it is prepared.
	unready atomic.Pointer[error]
	ready   chan struct{} // closed when it is prepared for the first time

	stop    context.CancelFunc
	stopped chan struct{}

	// claiming is held by the one claim under way: two at once would want the same jobs.
	claiming chan struct{}

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// errPreparing is the state before anything is known.
var errPreparing = errors.New("the database has not answered yet")

// Open returns a store that prepares itself in the background: it connects, looks at the collection and makes its
// indexes, and tries again until that succeeds; calls get job.ErrUnavailable until then. An error means that the options
// cannot be right; it never holds the URI's password.
func Open(opts Options) (*Store, error) {
	if opts.Database == "" {
		opts.Database = DefaultDatabase
	}
	if opts.Collection == "" {
		opts.Collection = DefaultCollection
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	co, err := clientOptions(opts)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(co)
	if err != nil {
		return nil, fmt.Errorf("MongoDB URI: %s", redact(err.Error(), secretOf(co)))
	}
	s := &Store{
		opts: opts, log: opts.Logger, client: client, hosts: strings.Join(co.Hosts, ","), secret: secretOf(co), tls: co.TLSConfig != nil,
		ready: make(chan struct{}), stopped: make(chan struct{}), claiming: make(chan struct{}, 1),
	}
	s.unready.Store(&errPreparing)
	s.coll = client.Database(opts.Database).Collection(opts.Collection,
		options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.maintain(ctx)
	return s, nil
}

// clientOptions reads the URI and fills in what it leaves open.
func clientOptions(opts Options) (*options.ClientOptions, error) {
	co := options.Client().ApplyURI(opts.URI)
	if err := co.Validate(); err != nil {
		return nil, uriError(opts.URI, err)
	}
	wc := writeconcern.WriteConcern{}
	if co.WriteConcern != nil {
		wc = *co.WriteConcern
	}
	if wc.W == nil {
		wc.W = "majority"
	}
	if wc.Journal == nil {
		journaled := true
		wc.Journal = &journaled
	}
	if wc.W == 0 {
		return nil, errors.New("MongoDB URI: w=0 asks for no acknowledgement, and without one nobody can be told that it was first")
	} else if wc.W != "majority" || !*wc.Journal {
		opts.Logger.Warn("the MongoDB URI weakens the write concern: an answered delivery can be lost in a failover, and its job be first twice")
	}
	co.SetWriteConcern(&wc)
	if co.ServerSelectionTimeout == nil {
		co.SetServerSelectionTimeout(3 * time.Second) // the driver's own 30 s would outlast most callers
	}
	if co.ConnectTimeout == nil {
		co.SetConnectTimeout(5 * time.Second)
	}
	if co.AppName == nil {
		co.SetAppName("jobonce")
	}
	return co.SetMonitor(monitor()), nil
}

// uriError says what is wrong with a URI without repeating its user name and password, which the driver's own text may.
func uriError(uri string, err error) error {
	scheme, rest, _ := strings.Cut(uri, "://")
	if scheme != "mongodb" && scheme != "mongodb+srv" {
		return errors.New("MongoDB URI: it must begin with mongodb:// or mongodb+srv://")
	}
	authority := rest
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority = rest[:i]
	}
	at := strings.LastIndex(rest, "@")
	switch {
	case at < 0 && !portsAreNumbers(authority):
		return errors.New("MongoDB URI: a port is not a number; if it is a password, the @ and the host behind it are missing")
	case at < 0:
		return fmt.Errorf("MongoDB URI: %w", err)
	case at >= len(authority):
		return errors.New("MongoDB URI: a character in the user name or password must be percent-encoded")
	}
	bare := options.Client().ApplyURI(scheme + "://" + rest[at+1:]).Validate()
	if bare == nil {
		return errors.New("MongoDB URI: something is wrong with the user name, the password or how to authenticate; " +
			"special characters must be percent-encoded")
	}
	return fmt.Errorf("MongoDB URI: %w", bare)
}

func portsAreNumbers(hosts string) bool {
	for host := range strings.SplitSeq(hosts, ",") {
		i := strings.LastIndexByte(host, ':')
		if i < 0 || strings.HasSuffix(host, "]") { // the colons of an IPv6 address
			continue
		}
		if _, err := strconv.ParseUint(host[i+1:], 10, 16); err != nil {
			return false
		}
	}
	return true
}

func secretOf(co *options.ClientOptions) string {
	if co.Auth == nil {
		return ""
	}
	return co.Auth.Password
}

func redact(text, secret string) string {
	if secret == "" {
		return text
	}
	return strings.ReplaceAll(text, secret, "REDACTED")
}

// String names the database and the collection, without credentials.
func (s *Store) String() string {
	return fmt.Sprintf("MongoDB %s.%s on %s", s.opts.Database, s.opts.Collection, s.hosts)
}

// Ready is closed once the store has prepared itself for the first time.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// ClockOffset is how far the database's clock is ahead of this machine's, as measured last.
func (s *Store) ClockOffset() time.Duration { return time.Duration(s.offset.Load()) }

// now is the database's time.
func (s *Store) now() time.Time {
	if s.opts.Now != nil {
		return s.opts.Now()
	}
	return time.Now().Add(s.ClockOffset())
}

// Check implements [job.Store]: the store is prepared and its primary answers.
func (s *Store) Check(ctx context.Context) error {
	done, err := s.enter()
	if err != nil {
		return err
	}
	defer done()
	if err := s.client.Ping(ctx, readpref.Primary()); err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, s.explain(err))
	}
	return nil
}

// enter lets a call in, unless the store is closed or not prepared. done must be called when the call ends.
func (s *Store) enter() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: closed", job.ErrUnavailable)
	}
	if err := s.unready.Load(); err != nil {
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, *err)
	}
	s.calls.Add(1)
	return s.calls.Done, nil
}

// Close implements [job.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.stop()
	<-s.stopped
	s.calls.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.client.Disconnect(ctx)
}
