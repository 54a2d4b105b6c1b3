package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

const storeHelp = `Without a MongoDB, jobs are kept in one local file in the data directory, which is made if it is missing and serves one
process at a time.

` + mongoHelp + ` Of these and --data-dir, a flag beats
the environment, which beats the configuration file; two of them in the same place are an error. The service waits for a
MongoDB that cannot be reached, and answers calls with UNAVAILABLE meanwhile.`

const mongoHelp = `A MongoDB is named by MONGODB_URI in the environment, by --mongodb-uri-file, a file that holds the URI, or by
--mongodb-uri, which takes none with a password: the list of processes shows it.`

// mongoLanes is how many batches are on their way to MongoDB at once: the next is sent while one is answered.
const mongoLanes = 2

// storeConfig is what the flags say about the store.
type storeConfig struct {
	dataDir         string
	uri, uriFile    string
	database        string
	collection      string
	payloadDocument bool
	payloadOnce     bool
	allowWeak       bool
	maxAttempts     config.IntRange
	maxClockSkew    time.Duration
	// mongo is set when the store is a MongoDB, and uri its URI then. [storeConfig.choose] sets both.
	mongo bool
}

func (c *storeConfig) declare(keys *pflag.FlagSet) {
	c.declareDataDir(keys)
	c.declareMongoDB(keys)
	c.maxAttempts = config.IntRange{Value: job.DefaultMaxAttempts, Min: 0, Max: math.MaxInt32}
	keys.Var(&c.maxAttempts, "max-attempts", "how many leases a job is granted before it counts as dead; 0 is no limit")
	keys.DurationVar(&c.maxClockSkew, "max-clock-skew", mongostore.DefaultMaxClockSkew, "how far apart the clocks of MongoDB's members may be; a lease is\n"+
		"taken over that much after its end")
}

func (c *storeConfig) declareDataDir(keys *pflag.FlagSet) {
	keys.StringVar(&c.dataDir, "data-dir", "./jobonce-data", "`directory` of the embedded store")
}

func (c *storeConfig) declareMongoDB(keys *pflag.FlagSet) {
	keys.StringVar(&c.uri, "mongodb-uri", "", "`URI` of a MongoDB, without a password; from the environment, as MONGODB_URI, with one")
	keys.StringVar(&c.uriFile, "mongodb-uri-file", "", "`file` that holds the URI of a MongoDB")
	keys.StringVar(&c.database, "mongodb-database", "", "`name` of the database; if it is not given, the one in the URI's path, or "+mongostore.DefaultDatabase)
	keys.StringVar(&c.collection, "mongodb-collection", mongostore.DefaultCollection, "`name` of the collection")
	keys.BoolVar(&c.payloadDocument, "payload-document", true, "keep JSON payloads as documents too, so that MongoDB can query them")
	keys.BoolVar(&c.payloadOnce, "payload-once", true, "keep no text of a JSON payload that its document gives back byte for byte")
	keys.BoolVar(&c.allowWeak, "allow-weak-write-concern", false, "take a MongoDB URI with a write concern below a journaled majority, which can\n"+
		"lose answered deliveries in a failover")
}

// choose settles which store it is: the one that the highest layer names.
func (c *storeConfig) choose(flags *pflag.FlagSet) error {
	flag, from, err := highest(flags, "data-dir", "mongodb-uri", "mongodb-uri-file")
	if err != nil {
		return err
	}
	if flag != "" && flag != "data-dir" {
		return c.readURI(flag, from)
	}
	for _, name := range []string{"mongodb-database", "mongodb-collection", "payload-document", "payload-once", "allow-weak-write-concern", "max-clock-skew"} {
		if flags.Lookup(name) == nil { // not every command has them all
			continue
		}
		if o := config.OriginOf(flags.Lookup(name)); o.Layer == config.FromCommandLine {
			return usagef("%s is for MongoDB, but jobs would be kept in %s; set MONGODB_URI, or leave it out", o.Name, c.dataDir)
		}
	}
	return nil
}

// highest returns the flag that the highest layer sets, of flags that exclude each other; none when no layer sets any.
func highest(flags *pflag.FlagSet, names ...string) (flag string, from config.Origin, err error) {
	rival := ""
	for _, name := range names {
		switch o := config.OriginOf(flags.Lookup(name)); {
		case o.Layer > from.Layer:
			flag, from, rival = name, o, ""
		case o.Layer == from.Layer:
			rival = o.Name
		}
	}
	if flag != "" && rival != "" {
		return "", from, usagef("%s and %s both say where jobs are kept; leave one out", from.Name, rival)
	}
	return flag, from, nil
}

// readURI takes the URI from the flag that holds it, or that names a file which does.
func (c *storeConfig) readURI(flag string, from config.Origin) error {
	if flag == "mongodb-uri-file" {
		content, err := os.ReadFile(c.uriFile)
		if err != nil {
			return fmt.Errorf("cannot read the MongoDB URI: %w", err)
		}
		if c.uri = strings.TrimSpace(string(content)); c.uri == "" {
			return fmt.Errorf("%s: %s is empty", from.Name, c.uriFile)
		}
		if strings.ContainsAny(c.uri, " \t\r\n") {
			return fmt.Errorf("%s: %s must hold one URI and nothing else", from.Name, c.uriFile)
		}
	} else {
		if from.Layer == config.FromCommandLine && holdsSecret(c.uri) {
			return usagef("--mongodb-uri holds a password, which others can read in the list of processes; " +
				"set MONGODB_URI in the environment, or use --mongodb-uri-file")
		}
		if c.uri = strings.TrimSpace(c.uri); c.uri == "" {
			return usagef("%s is empty", from.Name)
		}
	}
	c.mongo = true
	return nil
}

// holdsSecret tells whether a URI has a password in it, or something like one. In doubt it does.
func holdsSecret(uri string) bool {
	_, rest, ok := strings.Cut(uri, "://")
	if !ok {
		rest = uri
	}
	// The last @, because that of a password which should have been encoded comes before it.
	if at := strings.LastIndex(rest, "@"); at >= 0 && strings.Contains(rest[:at], ":") {
		return true
	}
	options := strings.ToLower(rest)
	return strings.Contains(options, "password=") || strings.Contains(options, "aws_session_token")
}

// openStore is an open store and what serve wants to know of it.
type openStore struct {
	// Store is what was opened, not embedded and not wrapped: that would hide what it can do beyond a job.Store, such as
	// [job.EachRecorder].
	Store job.Store
	// name is for people.
	name string
	// ready is closed once it is ready; nil when it is from the start.
	ready <-chan struct{}
	// lanes is how many batches the store takes at once.
	lanes int
	// clockOffset is how far its clock is ahead of ours; nil when it has none of its own.
	clockOffset func() time.Duration
	// unclaimable is how much work is due that nobody can claim; nil when the store has no such work.
	unclaimable func() int64
	// leases is how many leases claims tried to get, and how many they got; nil when no other instance can be in the way.
	leases func() (tried, won int64)
	// broken is closed when the store is out of service for as long as the process lives; nil when that cannot be.
	broken <-chan struct{}
}

func (c *storeConfig) open(ctx context.Context, watch job.Watch, tracer trace.Tracer, logger *slog.Logger) (*openStore, error) {
	if !c.mongo {
		store, err := sqlitestore.Open(ctx, c.dataDir, sqlitestore.Options{MaxAttempts: c.maxAttempts.Value, Watch: watch, Logger: logger})
		if err != nil {
			return nil, err
		}
		name, err := describeEmbedded(ctx, store, c.dataDir)
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
		return &openStore{Store: store, name: name, lanes: 1, unclaimable: store.Unclaimable, broken: store.Broken()}, nil
	}
	store, err := c.openMongoDB(watch, tracer, logger)
	if err != nil {
		return nil, err
	}
	return &openStore{Store: store, name: store.String(), ready: store.Ready(), lanes: mongoLanes, clockOffset: store.ClockOffset,
		unclaimable: store.Unclaimable, leases: store.Leases}, nil
}

// mostCounted is how many jobs are counted at the start: enough to tell a store from another, and soon done.
const mostCounted = 100_000

// describeEmbedded says which store it is, so that somebody who gave the wrong directory sees it.
func describeEmbedded(ctx context.Context, store *sqlitestore.Store, dir string) (string, error) {
	jobs, err := store.CountTo(ctx, mostCounted+1)
	if err != nil {
		return "", err
	}
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	holds := fmt.Sprintf("%d jobs", jobs)
	switch {
	case jobs == 0:
		holds = "new store"
	case jobs == 1:
		holds = "1 job"
	case jobs > mostCounted:
		holds = fmt.Sprintf("over %d jobs", mostCounted)
	}
	return fmt.Sprintf("embedded store %s (%s)", dir, holds), nil
}

func (c *storeConfig) openMongoDB(watch job.Watch, tracer trace.Tracer, logger *slog.Logger) (*mongostore.Store, error) {
	store, err := mongostore.Open(mongostore.Options{
		URI: c.uri, Database: c.database, Collection: c.collection, MaxAttempts: c.maxAttempts.Value, MaxClockSkew: c.maxClockSkew, Watch: watch,
		TextOnly: !c.payloadDocument, TextToo: !c.payloadOnce, AllowWeakWriteConcern: c.allowWeak, Tracer: tracer, Logger: logger,
	})
	if err != nil {
		return nil, &usageError{err}
	}
	return store, nil
}
