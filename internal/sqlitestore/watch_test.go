package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestWatchThatBlocks holds up only the call whose work it is told of.
func TestWatchThatBlocks(t *testing.T) {
	told, goOn := make(chan struct{}), make(chan struct{})
	clock := testenv.NewClock()
	s, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Logger: testenv.Logger(t), Now: clock.Now, MaxAttempts: 1,
		Watch: func(string, job.Work) { close(told); <-goOn }})
	testenv.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	s.Record(t.Context(), []job.Delivery{delivery(t, "dies", "e", false)})
	clock.Advance(time.Hour)
	claimed := make(chan error)
	go func() {
		_, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 1, Lease: time.Minute})
		claimed <- err
	}()
	<-told
	recorded := make(chan error)
	go func() { recorded <- s.Record(t.Context(), []job.Delivery{delivery(t, "other", "e", true)})[0].Err }()
	select {
	case err := <-recorded:
		testenv.OK(t, err)
		close(goOn)
	case <-time.After(10 * time.Second):
		t.Error("another call waits for whoever is told")
		close(goOn)
		<-recorded
	}
	testenv.OK(t, <-claimed)
}
