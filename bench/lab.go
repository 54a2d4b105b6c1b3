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
	cfg   config
	dir   string
	now   programs
	old   programs // with -before
	notes io.Writer
	noted map[string]bool
	runs  int
	undo  cleanup

	node string // the directory of the frontend in Node, once it is installed

	db      *database
	servers map[string]place // echo, Redis and PostgreSQL, by kind
}

// place is where the callers of a cell find what they call.
type place struct {
	spec spec
	// bench is the program whose load child the callers are.
	bench string
	// collection is the name of what is called or written to, on MongoDB.
	collection string
	// claims are where the instances tell how many leases they won and tried; none unless that is asked for.
	claims claims
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
func (l *lab) place(ctx context.Context, g group, kind string, others map[string]place, undo *cleanup) (p place, err error) {
	base, old := older(kind)
	version := l.now
	if old {
		version = l.old
	}
	if g.node {
		if err := haveNode(); err != nil {
			return place{}, err
		}
	}
	switch base {
	case kindEcho, kindPostgres, kindRedis:
		p, err = l.server(ctx, base)
	case kindFrontend, kindBareHTTP:
		p, err = l.frontend(ctx, base, version, undo)
	case kindRiver:
		p, err = l.server(ctx, kindPostgres)
	case kindAsynq:
		p, err = l.server(ctx, kindRedis)
	case kindDirect, kindBulk, kindBulkOnce, kindBulkFull:
		p, err = l.collection(ctx, g, kind, undo)
	case kindByHand:
		p, err = l.emptyCollection(ctx, g, kind, undo)
	case kindRelay:
		p, err = l.relay(ctx, g, undo)
	default:
		p, err = l.service(ctx, g, kind, version, others, undo)
	}
	p.bench, p.spec.Kind = version.bench, base
	switch base {
	case kindService, kindSmall, kindLarge, kindSecure, kindNoLists, kindTwo, kindFour:
		p.spec.Kind = kindService
		if g.work {
			p.spec.Kind = kindWorkers
		}
	}
	return p, err
}

// service is the service of a version, on a store of its own or on that of the group.
func (l *lab) service(
	ctx context.Context, g group, kind string, version programs, others map[string]place, undo *cleanup,
) (place, error) {
	if p, ok := others[strings.Replace(kind, kindBatching, kindService, 1)]; ok {
		return p, nil
	}
	jobs := l.cfg.seed
	if kind == kindLarge {
		jobs = l.cfg.large
	}
	if g.store == mongodb {
		return l.mongoService(ctx, g, kind, version, jobs, undo)
	}
	return l.embeddedService(ctx, kind, version, jobs, undo)
}

// secure is how a service of the kind is reached, and the flags for that.
func (l *lab) secure(kind string, version programs) (secured, []string, error) {
	if base, _ := older(kind); base != kindSecure {
		return secured{}, nil, nil
	}
	return secure(l.dir, version.jobonce)
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
	p := place{spec: spec{Address: address}, pids: []int{server.pid()}}
	l.servers[kind] = p
	return p, nil
}

// embeddedService is a service on a new embedded store that holds some jobs.
func (l *lab) embeddedService(ctx context.Context, kind string, version programs, jobs int, undo *cleanup) (place, error) {
	reach, flags, err := l.secure(kind, version)
	if err != nil {
		return place{}, err
	}
	data, err := os.MkdirTemp(l.dir, "embedded-")
	if err != nil {
		return place{}, err
	}
	undo.add(func() { _ = os.RemoveAll(data) })
	if kind == kindNoLists {
		if err := l.fileWithoutLists(ctx, version, data); err != nil {
			return place{}, err
		}
	}
	p, address, err := startServe(ctx, l.dir, version.jobonce, nil, append(flags, "--data-dir", data)...)
	if err != nil {
		return place{}, err
	}
	undo.add(p.stop)
	reached := spec{Address: address, secured: reach}
	if err := seedService(ctx, reached, jobs, seedBody); err != nil {
		return place{}, err
	}
	return place{spec: reached, pids: []int{p.pid()}}, nil
}

// mongoService is a service, of so many instances, on a new collection that holds some jobs.
func (l *lab) mongoService(
	ctx context.Context, g group, kind string, version programs, jobs int, undo *cleanup,
) (place, error) {
	if err := l.openDatabase(ctx); err != nil {
		return place{}, err
	}
	reach, flags, err := l.secure(kind, version)
	if err != nil {
		return place{}, err
	}
	instances := instances(kind)
	p := place{collection: l.newCollection(g.cell(kind), undo)}
	if kind == kindNoLists {
		if err := l.db.withoutLists(ctx, p.collection); err != nil {
			return place{}, err
		}
	}
	var addresses []string
	var pids []int
	for range instances {
		args := append([]string{"--mongodb-database", l.db.name, "--mongodb-collection", p.collection}, flags...)
		if instances > 2 { // to count costs a little, and one and two are compared with each other
			ops, err := freeAddress()
			if err != nil {
				return place{}, err
			}
			args, p.claims = append(args, "--ops-listen", ops), append(p.claims, ops)
		}
		// In the environment, where the URI may hold a password.
		server, address, err := startServe(ctx, l.dir, version.jobonce, []string{"MONGODB_URI=" + l.db.uri}, args...)
		if err != nil {
			return place{}, err
		}
		undo.add(server.stop)
		addresses, pids = append(addresses, address), append(pids, server.pid())
	}
	opts, err := reach.options()
	if err != nil {
		return place{}, err
	}
	c, err := client.New(addresses[0], opts...)
	if err != nil {
		return place{}, err
	}
	defer c.Close()
	if _, err := c.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{
		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: firstSeed()},
	}); err != nil {
		return place{}, fmt.Errorf("seed: %w", err)
	}
	if err := l.db.seedCopies(ctx, p.collection, jobs); err != nil {
		return place{}, err
	}
	if kind == kindNoLists {
		if err := l.db.hasNoLists(ctx, p.collection); err != nil {
			return place{}, err
		}
	}
	p.spec, p.pids = spec{Address: strings.Join(addresses, ","), secured: reach}, l.withDatabase(pids...)
	return p, nil
}

// collection is one that callers without the service write to, with as many jobs as the service's.
func (l *lab) collection(ctx context.Context, g group, kind string, undo *cleanup) (place, error) {
	p, err := l.emptyCollection(ctx, g, kind, undo)
	if err != nil {
		return place{}, err
	}
	coll := l.db.client.Database(l.db.name).Collection(p.collection)
	unique := mongo.IndexModel{Keys: bson.D{{Key: "job_id", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := coll.Indexes().CreateOne(ctx, unique); err != nil {
		return place{}, err
	}
	if _, err := (directTarget{coll: coll, decode: decodeRaw}).Record(ctx, "", firstSeed()); err != nil {
		return place{}, fmt.Errorf("seed: %w", err)
	}
	return p, l.db.seedCopies(ctx, p.collection, l.cfg.seed)
}

// emptyCollection is one without documents and indexes.
func (l *lab) emptyCollection(ctx context.Context, g group, kind string, undo *cleanup) (place, error) {
	if err := l.openDatabase(ctx); err != nil {
		return place{}, err
	}
	name := l.newCollection(g.cell(kind), undo)
	return place{
		spec: spec{Address: l.db.uri, Database: l.db.name, Collection: name}, collection: name, pids: l.withDatabase(),
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
	return place{spec: spec{Address: address}, pids: l.withDatabase(server.pid())}, nil
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
