package testenv

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The environment that names a database for the tests; `testdb run` sets both. The directory is testdb's for that database.
const (
	envURI = "JOBONCE_TEST_MONGODB_URI"
	envDir = "JOBONCE_TEST_DB_DIR"
)

// server is a database that tests may use.
type server struct {
	uri  string
	dir  string // testdb's directory, when this process had it start the database
	stop func() // nil when this process did not start it
}

// The one that all tests of this process share.
var shared struct {
	once   sync.Once
	server *server
	err    error
}

// MongoURI returns the client URI of the database that this process's tests share, and starts one on first use when
// there is none. It looks at JOBONCE_TEST_MONGODB_URI, then for a mongod on PATH, then at the script testdb beside this
// file, which needs root on Debian and, the first time on a machine, several minutes. Other packages' tests use it at the same
// time: a test that kills its database has one of its own, by [PrivateMongo].
//
// Without any, the test is skipped; it fails when CI is set in the environment, so that a run that was to test the
// database cannot pass without one.
func MongoURI(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = findServer() })
	if shared.err != nil {
		unavailable(t, shared.err)
	}
	return shared.server.uri
}

func findServer() (*server, error) {
	if uri := os.Getenv(envURI); uri != "" {
		return &server{uri: uri}, nil
	}
	if mongod, err := exec.LookPath("mongod"); err == nil {
		return startMongod(mongod)
	}
	return startTestdb()
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("no test database, and CI is set: %v", err)
	}
	t.Skipf("NOT TESTED, because there is no test database (name one in %s): %v", envURI, err)
}

// Database returns a new name for a database on MongoURI's server, and drops the database at the end of the test.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseAt(t, MongoURI(t))
}

// DatabaseAt is Database on the server at uri, such as that of [PrivateMongo].
func DatabaseAt(t testing.TB, uri string) string {
	t.Helper()
	name := fmt.Sprintf("jobonce_test_%08x", rand.Uint32())
	t.Cleanup(func() {
		if err := drop(uri, name); err != nil {
			t.Logf("the test database %s stays behind: %v", name, err)
		}
	})
	return name
}

func drop(uri, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(10 * time.Second))
	if err != nil {
		return err
	}
	err = client.Database(name).Drop(ctx)
	return cmp.Or(err, client.Disconnect(ctx))
}
