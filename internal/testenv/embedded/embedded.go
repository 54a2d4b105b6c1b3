// Package embedded runs the service over an embedded store in a test's own process.
package embedded

import (
	"context"
	"net"
	"testing"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

// Start serves on the listener until the test ends, from a directory of its own.
func Start(t testing.TB, lis net.Listener, cfg server.Config, opts sqlitestore.Options) *server.Server {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), t.TempDir(), opts)
	testenv.Must(t, err)
	return Serve(t, lis, cfg, store)
}

// Serve is Start over a store that is there, which it closes.
func Serve(t testing.TB, lis net.Listener, cfg server.Config, store job.Store) *server.Server {
	t.Helper()
	jobs := batch.New(store, batch.Config{})
	srv, err := server.New(cfg, jobs)
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Run(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		testenv.OK(t, <-stopped)
		testenv.OK(t, jobs.Close())
	})
	return srv
}
