package mongostore

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobonce/jobonce/internal/job"
)

// The names used when none are configured.
const (
	DefaultDatabase   = "app"
	DefaultCollection = "sume_jobs"
)

// Options configure a store.
type Options struct {
	// URI is MongoDB's connection string. Required. What it says about the pool, timeouts and TLS is kept; where it is
	// silent see docs/mongodb.md.
	URI string
	// Database defaults to the one in the URI's path, unless that is one of MongoDB's own, and then to DefaultDatabase.
	Database string
	// Collection defaults to DefaultCollection.
	Collection string
	// MaxAttempts is how many leases a job is granted before it counts as dead; 0 is no limit.
	MaxAttempts int
	// TextOnly keeps JSON bodies as text alone, and not as embedded documents.
	TextOnly bool
	// TextToo keeps the text also of bodies that the embedded document gives back byte for byte.
	TextToo bool
	// MaxClockSkew is how far apart the clocks of the members of a replica set, or of several mongos, are assumed to be at
	// most: nobody takes a lease over before it is due by that much. 0: not at all. See DefaultMaxClockSkew.
	MaxClockSkew time.Duration
	// AllowWeakWriteConcern takes a URI whose write concern is weaker than a journaled majority; it is refused otherwise.
	AllowWeakWriteConcern bool
	// PausesEvery is how often the store reads which claims are paused; at most twice as long after that is known, it is so here.
	// 0: once a second.
	PausesEvery time.Duration
	// Now replaces the database's clock, NewPause the pauses between the tries of an operation, and Dialer how servers are
	// connected to. They are for tests.
	Now      func() time.Time
	NewPause func() backoff.BackOff
	Dialer   options.ContextDialer
	// Watch is told of work that dies or whose leases lapse; nil for nobody.
	Watch job.Watch
	// Tracer makes a span of each command that is sent for a caller who has one; nil for none.
	Tracer trace.Tracer
	// Logger hears of every change of the store's state. Default slog.Default().
	Logger *slog.Logger
}

// settle fills in what is left open, and refuses what cannot be right. It looks no name up.
func (o *Options) settle() error {
	if o.Collection == "" {
		o.Collection = DefaultCollection
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.PausesEvery == 0 {
		o.PausesEvery = pausesEvery
	}
	if o.NewPause == nil {
		o.NewPause = defaultPause
	}
	uri, err := connstring.ParseAndValidate(standIn(o.URI))
	if err != nil {
		return uriError(o.URI, err)
	}
	if unknown := slices.Sorted(maps.Keys(uri.UnknownOptions)); len(unknown) > 0 {
		return fmt.Errorf("MongoDB URI: the driver does not know the option %q, which would have no effect; correct it or take it out", unknown)
	}
	if uri.SocketTimeoutSet {
		return errors.New("MongoDB URI: the option socketTimeoutMS has no effect on this driver; take it out, or give timeoutMS instead")
	}
	if isSRV(o.URI) && (len(uri.Hosts) != 1 || strings.Contains(uri.Hosts[0], ":") || uri.DirectConnection || uri.Connect == connstring.SingleConnect) {
		return errors.New("MongoDB URI: mongodb+srv takes one name, without a port, and no direct connection")
	}
	switch {
	case o.Database == "" && uri.Database != "" && !systemDatabases[uri.Database]:
		o.Database = uri.Database
	case o.Database == "":
		o.Database = DefaultDatabase
	case uri.Database != "" && uri.Database != o.Database && uri.Database != uri.AuthSource:
		return fmt.Errorf("MongoDB URI: its path names the database %q, and --mongodb-database %q; leave one out", uri.Database, o.Database)
	}
	return checkNames(o.Database, o.Collection)
}

// embedding is how the options want bodies stored.
func (s *Store) embedding() embedding {
	switch {
	case s.opts.TextOnly:
		return textAlone
	case s.opts.TextToo:
		return besideText
	}
	return insteadOfText
}

// systemDatabases are MongoDB's own. A URI names admin to say who knows the user, and what is in local is not replicated.
var systemDatabases = map[string]bool{"admin": true, "config": true, "local": true}

// checkNames refuses names that MongoDB takes in no version: its limits are those of src/mongo/db/namespace_string.h and
// database_name.h.
func checkNames(database, collection string) error {
	const maxDatabase, maxNamespace = 63, 255
	switch {
	case systemDatabases[database]:
		return fmt.Errorf("the database %q is MongoDB's own; name another with --mongodb-database", database)
	case len(database) > maxDatabase:
		return fmt.Errorf("the database %q has a name of %d bytes; at most %d are possible: give another with --mongodb-database", database, len(database), maxDatabase)
	case strings.ContainsAny(database, "/\\. \"$\x00"):
		return fmt.Errorf("--mongodb-database %q has a character that MongoDB does not take there: one of /\\. \"$, or NUL", database)
	case len(database)+1+len(collection) > maxNamespace:
		return fmt.Errorf("--mongodb-collection %q is %d bytes long; in the database %q at most %d are possible",
			collection, len(collection), database, maxNamespace-1-len(database))
	case strings.ContainsAny(collection, "$\x00"):
		return fmt.Errorf("--mongodb-collection %q has a character that MongoDB does not take there: $ or NUL", collection)
	case strings.HasPrefix(collection, "system.") || strings.HasPrefix(collection, "."):
		return fmt.Errorf("--mongodb-collection %q begins with what MongoDB does not take there: system. or a dot", collection)
	}
	return nil
}

func isSRV(uri string) bool { return strings.HasPrefix(uri, connstring.SchemeMongoDBSRV+"://") }

// standIn is the URI itself, but for mongodb+srv, of which it is one that says the same and can be read without looking a
// name up.
func standIn(uri string) string {
	if !isSRV(uri) {
		return uri
	}
	front, query := strings.TrimPrefix(uri, connstring.SchemeMongoDBSRV+"://"), ""
	hosts := strings.LastIndexByte(front, '@') + 1
	if i := strings.IndexByte(front[hosts:], '?'); i >= 0 {
		front, query = front[:hosts+i], front[hosts+i+1:]
	} else if !strings.Contains(front[hosts:], "/") {
		front += "/"
	}
	kept := []string{"tls=true"}
	for _, pair := range optionsOf(query) {
		switch name, _, _ := strings.Cut(pair, "="); strings.ToLower(name) {
		case "srvservicename", "srvmaxhosts":
			continue
		case "tls", "ssl":
			kept[0] = pair
		default:
			kept = append(kept, pair)
		}
	}
	return connstring.SchemeMongoDB + "://" + front + "?" + strings.Join(kept, "&")
}

// serviceOf is the service under which the name of a mongodb+srv URI is looked up.
func serviceOf(uri string) string {
	_, query, _ := strings.Cut(uri[strings.LastIndexByte(uri, '@')+1:], "?")
	for _, pair := range optionsOf(query) {
		if name, value, _ := strings.Cut(pair, "="); strings.EqualFold(name, "srvServiceName") {
			return value
		}
	}
	return "mongodb"
}

func optionsOf(query string) []string {
	return strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
}

// clientOptions reads the URI and fills in what it leaves open.
func clientOptions(opts *Options) (*options.ClientOptions, error) {
	co := options.Client().ApplyURI(standIn(opts.URI))
	if err := co.Validate(); err != nil {
		return nil, uriError(opts.URI, err)
	}
	return co, complete(co, opts)
}

func complete(co *options.ClientOptions, opts *Options) error {
	wc, err := writeConcern(co.WriteConcern, opts)
	if err != nil {
		return err
	}
	co.SetWriteConcern(wc)
	if mode := co.ReadPreference; mode != nil && mode.Mode() != readpref.PrimaryMode {
		opts.Logger.Warn("the readPreference in the MongoDB URI is not used: a read that may be old would be a wrong answer, so all go to the primary",
			"readPreference", mode.Mode())
	}
	if rc := co.ReadConcern; rc != nil && rc.Level != "majority" && rc.Level != "linearizable" {
		opts.Logger.Warn("the readConcernLevel in the MongoDB URI is not used: what is read at less than a majority may yet be undone",
			"readConcernLevel", rc.Level)
	}
	co.SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Majority())
	if co.ServerSelectionTimeout == nil {
		co.SetServerSelectionTimeout(3 * time.Second) // the driver's own 30 s would outlast most callers
	}
	if co.ConnectTimeout == nil {
		co.SetConnectTimeout(5 * time.Second)
	}
	if co.AppName == nil {
		co.SetAppName("jobonce")
	}
	if opts.Dialer != nil {
		co.SetDialer(opts.Dialer)
	}
	co.SetMonitor(trackers())
	if opts.Tracer != nil {
		co.SetMonitor(commandSpans(opts.Tracer, trackers()))
	}
	return nil
}

// writeConcern completes that of the URI. One that is weaker than ours is refused, or accepted with a warning.
func writeConcern(uri *writeconcern.WriteConcern, opts *Options) (*writeconcern.WriteConcern, error) {
	journaled := true
	wc := writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journaled}
	if uri != nil && uri.W != nil {
		wc.W = uri.W
	}
	if uri != nil && uri.Journal != nil {
		wc.Journal = uri.Journal
	}
	weak := ""
	switch {
	case wc.W == 0:
		return nil, errors.New("MongoDB URI: w=0 asks for no acknowledgement, and without one nobody can be told that it was first; take it out")
	case wc.W != writeconcern.WCMajority:
		weak = fmt.Sprintf("w=%v", wc.W)
	case !*wc.Journal:
		weak = "journal=false"
	default:
		return &wc, nil
	}
	if !opts.AllowWeakWriteConcern {
		return nil, fmt.Errorf("MongoDB URI: %s weakens the write concern: an answered delivery can be lost in a failover, and its job be "+
			"FIRST twice; take it out, or accept that with --allow-weak-write-concern", weak)
	}
	opts.Logger.Warn("the MongoDB URI weakens the write concern: an answered delivery can be lost in a failover, and its job be FIRST twice",
		"weakened_by", weak)
	return &wc, nil
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
	bare := options.Client().ApplyURI(standIn(scheme + "://" + rest[at+1:])).Validate()
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
