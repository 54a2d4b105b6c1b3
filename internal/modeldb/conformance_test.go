package modeldb_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestConformance: on the model, the store passes the suite that it passes on a real database. The model has nothing that the store
// does not send.
func TestConformance(t *testing.T) {
	shapes := strings.Join(slices.Collect(maps.Keys(sentByStore(t))), "\n")
	for _, name := range modeldb.Modelled() {
		if !strings.Contains(shapes, name+": ") && !slices.Contains(connectionCommands, name) {
			t.Errorf("modelled, and never sent: %s", name)
		}
	}
}

// sentInSuite has a store pass the suite, on a single server and on a replica set, and keeps what it sends.
func sentInSuite(t *testing.T) *sent {
	s := &sent{examples: map[string]bson.D{}}
	for _, kind := range []modeldb.Deployment{modeldb.Standalone, modeldb.ReplicaSet} {
		t.Run(kind.String(), func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Env {
				db, clock, watched := modeldb.New(kind), testenv.NewClock(), &storetest.Watched{}
				t.Cleanup(func() {
					for _, what := range db.Strange() {
						t.Error(what)
					}
				})
				opts := mongostore.Options{URI: db.URI(), Dialer: dialer{db.Dialer(0), t, s}, Now: clock.Now, MaxAttempts: storetest.MaxAttempts,
					Watch: watched.Tell, Logger: testenv.Logger(t)}
				return storetest.Env{Store: open(t, opts), Clock: clock, Watched: watched, Shared: true, Reopen: func() job.Store { return open(t, opts) }}
			})
		})
	}
	return s
}

func open(t *testing.T, opts mongostore.Options) *mongostore.Store {
	t.Helper()
	s, err := mongostore.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatalf("not ready: %v", s.Check(t.Context()))
	}
	return s
}
