package sqlitestore_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
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

// TestGetThatMeetsClose: a read that found the store open, and comes to its statements when they are closed, hears that the
// store is away. That the record cannot be used would be a lie.
func TestGetThatMeetsClose(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	record(t, s, "j")
	testenv.Must(t, s.Close())
	for _, withBody := range []bool{false, true} {
		if _, err := s.GetOpen(t.Context(), "j", withBody); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrRecordUnusable) {
			t.Errorf("told %v", err)
		}
	}
}

// BenchmarkRecord records new jobs with 1 KiB bodies from 64 callers, through the lane.
func BenchmarkRecord(b *testing.B) {
	s, err := sqlitestore.Open(b.Context(), b.TempDir(), sqlitestore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	jobs := batch.New(s, batch.Config{})
	defer func() { _ = jobs.Close() }()
	body := job.Body{Kind: job.BodyText, Data: `{"s":"` + strings.Repeat("x", 1010) + `"}`}
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		run := rand.Text()
		for n := 0; pb.Next(); n++ {
			d, err := job.Input{JobID: fmt.Sprintf("%s-%d", run, n), Body: body}.Delivery(1 << 20)
			if err != nil {
				b.Fatal(err)
			}
			if o := jobs.RecordOne(b.Context(), d); o.Err != nil || !o.Verdict.StartWork {
				b.Fatalf("%+v", o)
			}
		}
	})
}
