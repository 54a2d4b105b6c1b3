// Package mongostore is the production store: one document per job in a MongoDB collection, written by the plain
// upsert of frontends without JobOnce, so that they and JobOnce agree on who was first. It is the only package
// that knows the driver.
package mongostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/internal/job"
)

// Store is a job.Store on a MongoDB collection.
type Store struct {
	opts   Options
	log    *slog.Logger
	client *mongo.Client // nil until the name of a mongodb+srv URI was looked up
	coll   *mongo.Collection
	linear *mongo.Collection // the same, read by confirm
	local  *mongo.Collection // the same, read for what may be claimed
	// expected holds the webhooks that are to come, pausedJobs the pauses of claims.
	expected, pausedJobs *mongo.Collection
	hosts                string

	// tls and direct are true when the URI asks for it.
	tls, direct bool

	clock *clock
	// deployment is what the database turned out to be.
	deployment atomic.Pointer[deployment]
	// unready is why the store does not serve, as far as preparing goes; nil once it is prepared.
	unready atomic.Pointer[error]
	ready   chan struct{} // closed when it is prepared for the first time
	// workUnready is why work cannot be claimed; nil once it can.
	workUnready atomic.Pointer[error]
	// listsUnready is why jobs cannot be listed, nor what is overdue claimed; nil once they can.
	listsUnready atomic.Pointer[error]
	// pauses are those that were read last, passed is what was found to be paused.
	pauses atomic.Pointer[pauses]
	passed atomic.Pointer[passed]
	// hint names the unique index, for every upsert to send; nil when the server takes none. It stays when the index is lost,
	// so that what is under way fails.
	hint   atomic.Pointer[string]
	doubts doubts

	stop    context.CancelFunc
	stopped chan struct{}
	keeping sync.WaitGroup // keepTime and keepWork
	// grouped is set once no work was found that lacks its group.
	grouped atomic.Bool
	// unclaimable is how much work is due that can never be claimed.
	unclaimable atomic.Int64

	// claiming is held by the one claim under way: two at once would want the same jobs, and one with the request id of the
	// other could miss what that gets. picker tells it what to try for.
	claiming chan struct{}
	picker   *picker

	// unlinear is set where the database does not take the read concern that confirms negative answers.
	unlinear atomic.Bool
	misses   singleflight.Group
	missRate *rate.Limiter

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
	// strange is when an error code that we do not know was last logged.
	strange map[int]time.Time
}

// What the names of the collections beside that of the jobs end in.
const (
	expectationsSuffix = "_expectations"
	pausesSuffix       = "_claim_pauses"
)

// errPreparing is the state before anything is known.
var errPreparing = errors.New("the database has not answered yet")

// Open returns a store that prepares itself in the background: it connects, looks at the collection and makes its
// indexes, and tries again until that succeeds; calls get job.ErrUnavailable until then. An error means that the options
// cannot be right; it never holds the URI's password.
func Open(opts Options) (*Store, error) {
	if err := opts.settle(); err != nil {
		return nil, err
	}
	co, err := clientOptions(&opts)
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, log: opts.Logger, clock: newClock(opts.Now), strange: map[int]time.Time{}, hosts: strings.Join(co.Hosts, ","),
		tls: co.TLSConfig != nil, direct: co.Direct != nil && *co.Direct,
		ready: make(chan struct{}), stopped: make(chan struct{}), claiming: make(chan struct{}, 1), picker: newPicker(),
		missRate: rate.NewLimiter(maxMisses, maxMisses),
	}
	s.doubts.wake = make(chan struct{}, 1)
	s.unready.Store(&errPreparing)
	s.workUnready.Store(&errPreparing)
	s.listsUnready.Store(&errPreparing)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	if !isSRV(opts.URI) {
		if err := s.connect(ctx, co); err != nil {
			stop()
			return nil, err
		}
	}
	go s.maintain(ctx)
	return s, nil
}

// connect makes the client, which connects by itself, and begins what goes on beside the calls.
func (s *Store) connect(ctx context.Context, co *options.ClientOptions) error {
	client, err := mongo.Connect(co.SetServerMonitor(&event.ServerMonitor{TopologyDescriptionChanged: s.clock.topology}))
	if err != nil {
		return fmt.Errorf("MongoDB URI: %w", err)
	}
	s.client = client
	read := options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	db := client.Database(s.opts.Database)
	s.coll = db.Collection(s.opts.Collection, read)
	s.linear = linearCollection(s.coll)
	s.local = s.coll.Clone(options.Collection().SetReadConcern(readconcern.Local()))
	s.expected, s.pausedJobs = db.Collection(s.opts.Collection+expectationsSuffix, read), db.Collection(s.opts.Collection+pausesSuffix, read)
	s.keeping.Go(func() { s.keepTime(ctx) })
	s.keeping.Go(func() { s.keepWork(ctx) })
	s.keeping.Go(func() { s.keepPauses(ctx) })
	return nil
}

// lookUp connects to the hosts that the name of a mongodb+srv URI stands for.
func (s *Store) lookUp(ctx, life context.Context) error {
	// The driver looks it up too, and cannot be interrupted.
	if _, _, err := net.DefaultResolver.LookupSRV(ctx, serviceOf(s.opts.URI), "tcp", s.hosts); err != nil {
		return fmt.Errorf("the name in the MongoDB URI cannot be looked up: %w", err)
	}
	quiet := s.opts
	quiet.Logger = slog.New(slog.DiscardHandler) // all was said when the store was opened
	co := options.Client().ApplyURI(s.opts.URI)
	if err := co.Validate(); err != nil {
		return fmt.Errorf("what the name in the MongoDB URI stands for cannot be used: %w", err)
	}
	if err := complete(co, &quiet); err != nil {
		return err
	}
	return s.connect(life, co)
}

// String names the database and the collection, without credentials.
func (s *Store) String() string {
	return fmt.Sprintf("MongoDB %s.%s on %s", s.opts.Database, s.opts.Collection, s.hosts)
}

// Ready is closed once the store has prepared itself for the first time.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// errNoPrimary: with directConnection the driver takes any member for the primary.
var errNoPrimary = errors.New("the server takes no writes, since it is not the primary of its replica set: name the set in the URI, " +
	"with replicaSet and without directConnection")

// Check implements [job.Store]: the store is prepared and its primary answers.
func (s *Store) Check(ctx context.Context) error {
	done, err := s.enter()
	if err != nil {
		return err
	}
	defer done()
	var reply struct {
		Writable bool `bson:"isWritablePrimary"`
	}
	err = s.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&reply)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", job.ErrUnavailable, s.explain(err))
	case !reply.Writable:
		return fmt.Errorf("%w: %w", job.ErrUnavailable, errNoPrimary)
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
		return nil, unready(*err)
	}
	s.calls.Add(1)
	return s.calls.Done, nil
}

// begin is enter for a call that is not to be made once its context has ended.
func (s *Store) begin(ctx context.Context) (done func(), err error) {
	if done, err = s.enter(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		done()
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	return done, nil
}

// unready is an error for whoever calls a store that is not ready.
func unready(err error) error {
	if errors.As(err, new(*schemaError)) {
		return fmt.Errorf("%w: %w", job.ErrUnready, err)
	}
	return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
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
	s.keeping.Wait()
	s.calls.Wait()
	if s.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.client.Disconnect(ctx)
}
