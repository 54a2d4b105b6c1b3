package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/load"
)

// lab is what the groups share: the servers, each started when it is first needed.
type lab struct {
	cfg    config
	dir    string
	binary string // jobonce
	notes  io.Writer
	noted  map[string]bool
	runs   int
	undo   cleanup

	db      *database
	servers map[string]place // echo, Redis and PostgreSQL, by kind
}

// place is where the callers of a cell find what they call.
type place struct {
	spec spec
	// pids are the processes whose CPU time counts, beside the callers; nil when they are not known.
	pids []int
}

// seedBody is the length of the bodies that stores are seeded with, whatever is measured then.
const seedBody = 1 << 10

func (l *lab) close() { l.undo.run() }

// note tells people something, once.
func (l *lab) note(text string) {
	if text != "" && !l.noted[text] {
		l.noted[text] = true
		fmt.Fprintln(l.notes, "bench:", text)
	}
}

// place starts and seeds what the callers of a kind call. others are the group's places so far: kinds that both call the
// service share one.
func (l *lab) place(ctx context.Context, g group, kind string, others map[string]place, undo *cleanup) (place, error) {
	switch kind {
	case kindEcho, kindPostgres, kindRedis:
		return l.server(ctx, kind)
	case kindDirect, kindBulk, kindBulkFull:
		return l.collection(ctx, g, kind, undo)
	case kindRelay:
		return l.relay(ctx, g, undo)
	case kindBatching:
		if p, ok := others[kindService]; ok {
			p.spec.Kind = kind
			return p, nil
		}
	}
	jobs := l.cfg.seed
	if kind == kindLarge {
		jobs = l.cfg.large
	}
	var p place
	var err error
	if g.store == mongodb {
		p, err = l.mongoService(ctx, g.cell(kind), jobs, undo)
	} else {
		p, err = l.embeddedService(ctx, jobs, undo)
	}
	p.spec.Kind = kindService
	if kind == kindBatching {
		p.spec.Kind = kind
	}
	return p, err
}

// server is one that all groups share.
func (l *lab) server(ctx context.Context, kind string) (place, error) {
	if p, ok := l.servers[kind]; ok {
		return p, nil
	}
	begin := map[string]func(context.Context, string) (*process, string, error){
		kindEcho: startEcho, kindPostgres: startPostgres, kindRedis: startRedis,
	}[kind]
	server, address, err := begin(ctx, l.dir)
	if err != nil {
		return place{}, err
	}
	l.undo.add(server.stop)
	p := place{spec: spec{Kind: kind, Address: address}, pids: []int{server.pid()}}
	l.servers[kind] = p
	return p, nil
}

// embeddedService is a service on a new embedded store that holds some jobs.
func (l *lab) embeddedService(ctx context.Context, jobs int, undo *cleanup) (place, error) {
	data, err := os.MkdirTemp(l.dir, "embedded-")
	if err != nil {
		return place{}, err
	}
	undo.add(func() { _ = os.RemoveAll(data) })
	p, address, err := startServe(ctx, l.dir, l.binary, nil, "--data-dir", data)
	if err != nil {
		return place{}, err
	}
	undo.add(p.stop)
	if err := seedService(ctx, address, jobs, seedBody); err != nil {
		return place{}, err
	}
	return place{spec: spec{Address: address}, pids: []int{p.pid()}}, nil
}

// mongoService is a service on a new collection that holds some jobs.
func (l *lab) mongoService(ctx context.Context, cell string, jobs int, undo *cleanup) (place, error) {
	if err := l.openDatabase(ctx); err != nil {
		return place{}, err
	}
	collection := l.newCollection(cell, undo)
	// In the environment, where the URI may hold a password.
	p, address, err := startServe(ctx, l.dir, l.binary, []string{"MONGODB_URI=" + l.db.uri},
		"--mongodb-database", l.db.name, "--mongodb-collection", collection)
	if err != nil {
		return place{}, err
	}
	undo.add(p.stop)
	c, err := client.New(address)
	if err != nil {
		return place{}, err
	}
	defer c.Close()
	if _, err := c.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{
		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: firstSeed()},
	}); err != nil {
		return place{}, fmt.Errorf("seed: %w", err)
	}
	if err := l.db.seedCopies(ctx, collection, jobs); err != nil {
		return place{}, err
	}
	return place{spec: spec{Address: address}, pids: l.withDatabase(p.pid())}, nil
}

// collection is one that callers without the service write to, with as many jobs as the service's.
func (l *lab) collection(ctx context.Context, g group, kind string, undo *cleanup) (place, error) {
	if err := l.openDatabase(ctx); err != nil {
		return place{}, err
	}
	name := l.newCollection(g.cell(kind), undo)
	coll := l.db.client.Database(l.db.name).Collection(name)
	unique := mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := coll.Indexes().CreateOne(ctx, unique); err != nil {
		return place{}, err
	}
	if _, err := (directTarget{coll: coll, decode: decodeRaw}).Record(ctx, "", firstSeed()); err != nil {
		return place{}, fmt.Errorf("seed: %w", err)
	}
	if err := l.db.seedCopies(ctx, name, l.cfg.seed); err != nil {
		return place{}, err
	}
	return place{
		spec: spec{Kind: kind, Address: l.db.uri, Database: l.db.name, Collection: name},
		pids: l.withDatabase(),
	}, nil
}

// relay is a bare service on a collection of its own.
func (l *lab) relay(ctx context.Context, g group, undo *cleanup) (place, error) {
	p, err := l.collection(ctx, g, kindRelay, undo)
	if err != nil {
		return place{}, err
	}
	p.spec.Callers, p.spec.BodyBytes = g.callers, g.bodyBytes
	server, address, err := startRelay(ctx, l.dir, p.spec)
	if err != nil {
		return place{}, err
	}
	undo.add(server.stop)
	return place{spec: spec{Kind: kindRelay, Address: address}, pids: l.withDatabase(server.pid())}, nil
}

// firstSeed is the body of the job that the others are copied from.
func firstSeed() string { return load.NewBody(seedRun, seedBody).Of(load.Key(seedRun, 0)) }

func (l *lab) openDatabase(ctx context.Context) error {
	if l.db != nil {
		return nil
	}
	l.note("looking for the MongoDB of the tests; to install it, once on a machine, takes minutes")
	db, err := startDatabase(ctx, l.dir)
	if err != nil {
		return err
	}
	l.db = db
	l.undo.add(db.stop)
	if db.pids() == nil {
		l.note("the processes of the database are not known, so CPU figures are left out where it takes part")
	}
	return nil
}

// newCollection names a collection that the end of the group drops.
func (l *lab) newCollection(cell string, undo *cleanup) string {
	l.runs++
	name := fmt.Sprintf("%s_%d", strings.ReplaceAll(cell, ".", "_"), l.runs)
	undo.add(func() { l.db.drop(name) })
	return name
}

// withDatabase adds the database's processes; nil when they are not known.
func (l *lab) withDatabase(pids ...int) []int {
	database := l.db.pids()
	if database == nil {
		return nil
	}
	return append(pids, database...)
}
