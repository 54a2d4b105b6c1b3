package mongostore_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// open opens a store, waits until it is ready, and closes it when the test ends.
func open(t *testing.T, opts mongostore.Options) *mongostore.Store {
	t.Helper()
	s := openUnready(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.Ready():
	case <-ctx.Done():
		t.Fatalf("not ready: %v", s.Check(t.Context()))
	}
	return s
}

// openUnready opens a store that may never become ready.
func openUnready(t *testing.T, opts mongostore.Options) *mongostore.Store {
	t.Helper()
	opts.Logger = testenv.Logger(t)
	s, err := mongostore.Open(opts)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	return s
}

// TestConformance runs the suite on the bare store. It is a part of the long mode: internal/modeldb always does the same on a
// MongoDB in memory, and [TestConformanceBatched] on the database, as the service does.
func TestConformance(t *testing.T) {
	if !testenv.Long() {
		t.Skip("a part of the long mode")
	}
	uri := testenv.MongoURI(t)
	storetest.Run(t, func(t *testing.T) storetest.Env {
		clock := testenv.NewClock()
		watched := &storetest.Watched{}
		opts := mongostore.Options{URI: uri, Database: testenv.Database(t), Now: clock.Now, MaxAttempts: storetest.MaxAttempts, Watch: watched.Tell}
		return storetest.Env{
			Watched: watched,
			Shared:  true,
			Store:   open(t, opts),
			Clock:   clock,
			Reopen:  func() job.Store { return open(t, opts) },
		}
	})
}

// TestConformanceBatched runs the suite as the service runs the store: behind the lanes.
func TestConformanceBatched(t *testing.T) { storetest.Run(t, batched) }

func TestModel(t *testing.T) { storetest.RunModel(t, batched) }

func TestLinearizability(t *testing.T) { storetest.RunLinearizability(t, batched) }

func batched(t *testing.T) storetest.Env {
	clock := testenv.NewClock()
	watched := &storetest.Watched{}
	opts := mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Now: clock.Now, MaxAttempts: storetest.MaxAttempts, Watch: watched.Tell}
	wrap := func() job.Store { return batch.New(open(t, opts), batch.Config{Lanes: 2}) }
	return storetest.Env{Store: wrap(), Clock: clock, Watched: watched, Shared: true, Reopen: wrap}
}
