package chaostest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/storetest"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

// roleService is the role of a process that serves a store, put together as "jobonce serve" does, but for the clock.
const roleService = "service"

// envURI names the database to the service.
const envURI = "JOBONCE_CHAOSTEST_MONGODB_URI"

// serviceReady is what the service prints once it is ready.
var serviceReady = regexp.MustCompile(`^serving (\S+) (\d+)$`)

// startService starts a service with these flags.
func startService(t *testing.T, env []string, args ...string) *testenv.Service {
	t.Helper()
	return testenv.StartService(t, testenv.Program{Role: roleService, Env: env, Args: args}, serviceReady)
}

// serviceMain serves until it is killed.
func serviceMain(args []string) int {
	err := serveStore(args)
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func serveStore(args []string) error {
	flags := flag.NewFlagSet(roleService, flag.ContinueOnError)
	dir := flags.String("dir", "", "data directory of the embedded store; else the store is MongoDB")
	database := flags.String("database", "", "name of the database")
	clockFile := flags.String("clock", "", "file of the clock")
	broken := flags.String("broken", "", "what the store is to do wrong")
	if err := flags.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(400)
	clock, _, err := openClock(*clockFile)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx := context.Background()
	var store job.Store
	lanes := 1
	if *dir != "" {
		store, err = sqlitestore.Open(ctx, *dir, sqlitestore.Options{Now: clock.now, MaxAttempts: storetest.MaxAttempts, Logger: logger})
	} else {
		lanes = 2
		store, err = mongostore.Open(mongostore.Options{
			URI: os.Getenv(envURI), Database: *database, Now: clock.now, MaxAttempts: storetest.MaxAttempts, Logger: logger,
		})
	}
	if err != nil {
		return err
	}
	if *broken != "" {
		spoil, ok := brokenStores[*broken]
		if !ok {
			return fmt.Errorf("no such broken store: %q", *broken)
		}
		store = spoil.wrap(store)
	}
	jobs := batch.New(store, batch.Config{Lanes: lanes, Logger: logger})
	srv, err := server.New(server.Config{Logger: logger}, jobs)
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		<-srv.Ready()
		fmt.Printf("serving %s %d\n", lis.Addr(), os.Getpid())
	}()
	return errors.Join(srv.Run(ctx, lis), jobs.Close())
}
