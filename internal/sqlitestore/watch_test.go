package sqlitestore_test

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
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

// blockedLog is a log that nobody reads: its first line never ends by itself.
type blockedLog struct {
	slog.Handler
	blocks     atomic.Bool
	told, goOn chan struct{}
}

func (*blockedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *blockedLog) Handle(context.Context, slog.Record) error {
	if l.blocks.CompareAndSwap(false, true) {
		close(l.told)
		<-l.goOn
	}
	return nil
}

// TestLogThatBlocks holds up only the call that has something to log, whatever that is.
func TestLogThatBlocks(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"a job that cannot be used": func(t *testing.T, path string) { execSQL(t, path, "UPDATE jobs SET work_attempts = 5000000000") },
		"a write that fails":        func(t *testing.T, path string) { execSQL(t, path, "ALTER TABLE jobs RENAME TO elsewhere") },
		"a file that is gone": func(t *testing.T, path string) {
			testenv.Must(t, os.Remove(path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := &blockedLog{Handler: slog.DiscardHandler, told: make(chan struct{}), goOn: make(chan struct{})}
			dir, clock := t.TempDir(), testenv.NewClock()
			s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: slog.New(log), Now: clock.Now})
			testenv.Must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			s.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", false)})
			clock.Advance(time.Hour)
			spoil(t, sqlitestore.File(dir))
			claimed, recorded := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(claimed)
				_, _ = s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 1, Lease: time.Minute})
			}()
			<-log.told
			go func() {
				defer close(recorded)
				s.Record(t.Context(), []job.Delivery{delivery(t, "other", "e", true)})
			}()
			select {
			case <-recorded:
			case <-time.After(10 * time.Second):
				t.Error("another call waits for the log")
			}
			close(log.goOn)
			<-claimed
			<-recorded
		})
	}
}
