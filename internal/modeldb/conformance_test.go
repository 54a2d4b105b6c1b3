package modeldb_test

import (
	"context"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestConformance: on the model, the store passes the suite that it passes on a real database.
func TestConformance(t *testing.T) {
	for name, kind := range map[string]modeldb.Deployment{"standalone": modeldb.Standalone, "replica set": modeldb.ReplicaSet} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Env {
				db, clock, watched := modeldb.New(kind), testenv.NewClock(), &storetest.Watched{}
				t.Cleanup(func() {
					for _, what := range db.Strange() {
						t.Error(what)
					}
				})
				opts := mongostore.Options{URI: db.URI(), Dialer: db.Dialer(0), Now: clock.Now, MaxAttempts: storetest.MaxAttempts,
					Watch: watched.Tell, Logger: testenv.Logger(t)}
				return storetest.Env{Store: open(t, opts), Clock: clock, Watched: watched, Shared: true, Reopen: func() job.Store { return open(t, opts) }}
			})
		})
	}
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
