package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/load"
)

// The environment that names a MongoDB, as for the tests of the service.
const (
	envURI = "JOBONCE_TEST_MONGODB_URI"
	envDir = "JOBONCE_TEST_DB_DIR"
)

// installTimeout bounds the first start on a machine, which downloads and builds the database.
const installTimeout = 40 * time.Minute

// database is the MongoDB that the direct callers and the service share.
type database struct {
	uri    string
	dir    string // testdb's directory; empty when it was not testdb that started the database
	name   string
	client *mongo.Client
	script *process // nil when it was there before
}

// startDatabase takes the MongoDB that the environment names, or starts one with the tests' script.
func startDatabase(ctx context.Context, dir string) (*database, error) {
	d := &database{uri: os.Getenv(envURI), dir: os.Getenv(envDir), name: fmt.Sprintf("jobonce_bench_%d", time.Now().UnixNano())}
	if d.uri == "" {
		const hold = `echo "$` + envURI + ` $` + envDir + `" && exec cat >/dev/null`
		cmd := exec.Command("bash", "../internal/testenv/testdb", "run", "sh", "-c", hold)
		p, err := startHeld(dir, "testdb", cmd)
		if err != nil {
			return nil, err
		}
		d.script = p
		line, err := p.line(ctx, installTimeout)
		if err != nil {
			p.stop()
			return nil, err
		}
		d.uri, d.dir, _ = strings.Cut(line, " ")
	}
	var err error
	if d.client, err = mongo.Connect(options.Client().ApplyURI(d.uri)); err != nil {
		d.stop()
		return nil, err
	}
	return d, nil
}

// stop drops what this run has written and ends the database if this run has started it.
func (d *database) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if d.client != nil {
		if d.script == nil {
			_ = d.client.Database(d.name).Drop(ctx)
		}
		_ = d.client.Disconnect(ctx)
	}
	if d.script != nil {
		d.script.stop()
	}
}

// pids are the database's processes; none when they are not known.
func (d *database) pids() []int {
	if d.dir == "" {
		return nil
	}
	var pids []int
	for _, name := range []string{"gateway.pid", "postgres.pid"} {
		text, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			return nil
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return nil
		}
		pids = append(pids, pid)
	}
	return pids
}

// analyze lets the database look at what it holds: DocumentDB plans badly for a collection that was empty a moment ago.
// A real MongoDB needs no such thing.
func (d *database) analyze(ctx context.Context) error {
	if d.dir == "" {
		return nil
	}
	var at [2]string // the root directory that it runs in, and its port
	for i, name := range []string{"root", "port"} {
		text, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			return fmt.Errorf("ANALYZE: %w", err)
		}
		at[i] = strings.TrimSpace(string(text))
	}
	cfg, err := pgx.ParseConfig("user=postgres dbname=postgres")
	if err != nil {
		return fmt.Errorf("ANALYZE: %w", err)
	}
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = filepath.Join(at[0], "var/lib/postgresql", "db-"+at[1]), 5432, nil, nil
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("ANALYZE: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "ANALYZE"); err != nil {
		return fmt.Errorf("ANALYZE: %w", err)
	}
	return nil
}

// seedCopies fills a collection with copies of its one document, up to n, that differ in the job's id. They are what
// whoever wrote that document writes, and this is several times faster than upserts. The copies keep the body's own id.
func (d *database) seedCopies(ctx context.Context, collection string, n int) error {
	coll := d.client.Database(d.name).Collection(collection)
	var document bson.D
	if err := coll.FindOne(ctx, bson.D{}).Decode(&document); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	const size, writers = 500, 4
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for from := 1; from < n && ctx.Err() == nil; from += size {
		group.Go(func() error {
			copies := make([]bson.D, 0, size)
			for i := from; i < min(from+size, n); i++ {
				copies = append(copies, withJobID(document, load.Key(seedRun, int64(i))))
			}
			if _, err := coll.InsertMany(ctx, copies, options.InsertMany().SetOrdered(false)); err != nil {
				return fmt.Errorf("seed: %w", err)
			}
			return nil
		})
	}
	return group.Wait()
}

func withJobID(document bson.D, id string) bson.D {
	copied := make(bson.D, 0, len(document))
	for _, e := range document {
		switch e.Key {
		case "_id":
			continue
		case "job_id":
			e.Value = id
		}
		copied = append(copied, e)
	}
	return copied
}

func (d *database) drop(collection string) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = d.client.Database(d.name).Collection(collection).Drop(ctx)
}

// sizes returns what tells, once more jobs were written to a collection, how large the document of one is on average: by
// itself, and on disk without indexes. The seeded jobs do not count.
func (d *database) sizes(ctx context.Context, collection string) (func(context.Context) (bytes, disk float64, err error), error) {
	coll := d.client.Database(d.name).Collection(collection)
	look := func(ctx context.Context) (stats struct{ StorageSize float64 }, jobs int64, err error) {
		err = coll.Database().RunCommand(ctx, bson.D{{Key: "collStats", Value: collection}}).Decode(&stats)
		if err == nil {
			jobs, err = coll.CountDocuments(ctx, bson.D{})
		}
		return stats, jobs, err
	}
	before, seeded, err := look(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (bytes, disk float64, err error) {
		after, jobs, err := look(ctx)
		if err != nil {
			return 0, 0, err
		}
		found, err := coll.Aggregate(ctx, bson.A{
			bson.D{{Key: "$match", Value: bson.D{{Key: "job_id", Value: bson.D{{Key: "$lt", Value: load.Key(seedRun, 0)}}}}}},
			bson.D{{Key: "$limit", Value: 1000}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil},
				{Key: "bytes", Value: bson.D{{Key: "$avg", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}}}}},
		})
		if err != nil {
			return 0, 0, err
		}
		var average []struct{ Bytes float64 }
		if err := found.All(ctx, &average); err != nil {
			return 0, 0, err
		}
		if len(average) == 0 || jobs <= seeded {
			return 0, 0, errors.New("there are no jobs but the seeded ones")
		}
		return average[0].Bytes, (after.StorageSize - before.StorageSize) / float64(jobs-seeded), nil
	}, nil
}
