package sqlitestore_test

import (
	"os"
	"testing"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{roleWriter: writerMain}))
}

// open opens a store in dir and closes it when the test ends.
func open(t *testing.T, dir string, clock *testenv.Clock) *sqlitestore.Store {
	t.Helper()
	return openWatched(t, dir, clock, nil)
}

func openWatched(t *testing.T, dir string, clock *testenv.Clock, watched *storetest.Watched) *sqlitestore.Store {
	t.Helper()
	opts := sqlitestore.Options{Logger: testenv.Logger(t), MaxAttempts: storetest.MaxAttempts}
	if watched != nil {
		opts.Watch = watched.Tell
	}
	if clock != nil {
		opts.Now = clock.Now
	}
	s, err := sqlitestore.Open(t.Context(), dir, opts)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Env {
		dir, clock, watched := t.TempDir(), testenv.NewClock(), &storetest.Watched{}
		return storetest.Env{
			Store:   openWatched(t, dir, clock, watched),
			Clock:   clock,
			Watched: watched,
			Reopen:  func() job.Store { return open(t, dir, clock) },
		}
	})
}

// TestConformanceBatched runs the suite as the service runs the store: behind the lanes.
func TestConformanceBatched(t *testing.T) { storetest.Run(t, batched) }

func TestModel(t *testing.T) { storetest.RunModel(t, batched) }

func TestLinearizability(t *testing.T) { storetest.RunLinearizability(t, batched) }

func batched(t *testing.T) storetest.Env {
	dir, clock, watched := t.TempDir(), testenv.NewClock(), &storetest.Watched{}
	wrap := func() job.Store { return batch.New(openWatched(t, dir, clock, watched), batch.Config{Lanes: 2}) }
	return storetest.Env{Store: wrap(), Clock: clock, Watched: watched, Reopen: wrap}
}
