// Package chaostest runs the service in processes of its own, puts it and its clients under random faults, and checks what
// the clients were told against each other and against what is stored when all is quiet again. docs/reliability.md has
// what is injected and what is checked.
package chaostest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

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

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, testenv.Roles{roleService: serviceMain})) }

// envLong makes the runs last so long each, such as 30m.
const envLong = "JOBONCE_TEST_CHAOS"

// Rounds of a short run, and faults of each round that strike once, beside those that last.
const (
	shortEmbedded, shortMongoDB = 12, 4
	faultsPerRound              = 2
)

// chaos runs rounds: so many, or for as long as the environment says.
func chaos(t *testing.T, w *world, rounds int) {
	t.Helper()
	var limit time.Duration
	if s := os.Getenv(envLong); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil || limit <= 0 {
			t.Fatalf("%s is %q; it must be a duration such as 30m", envLong, s)
		}
		rounds, w.leastCalls = 0, leastCallsLong
	}
	for _, f := range w.run(rounds, limit, faultsPerRound) {
		t.Error(f)
	}
	if names := w.missing(); len(names) > 0 && !t.Failed() {
		t.Errorf("never struck, so the run was too short: %v", names)
	}
}

// clock is a clock in a file that several processes have mapped. Only the test moves it.
type clock struct {
	path  string
	nanos *atomic.Int64 // since 1970
}

// newClock makes a clock that stands at the time of its making.
func newClock(t *testing.T) *clock {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clock")
	testenv.Must(t, os.WriteFile(path, make([]byte, 8), 0o600))
	c, unmap, err := openClock(path)
	testenv.Must(t, err)
	t.Cleanup(unmap)
	c.nanos.Store(time.Now().UnixNano())
	return c
}

// openClock maps a clock that newClock made.
func openClock(path string) (c *clock, unmap func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	page, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	// A mapping begins at a page, so the number is aligned.
	nanos := (*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(page)))
	return &clock{path, nanos}, func() { _ = syscall.Munmap(page) }, nil
}

func (c *clock) now() time.Time { return time.Unix(0, c.nanos.Load()).UTC() }

func (c *clock) advance(d time.Duration) { c.nanos.Add(int64(d)) }
