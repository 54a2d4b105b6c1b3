package runner

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m))
}

// service is the real service over an embedded store, and a client of it.
type service struct {
	t *testing.T
	*client.Client
}

func startService(t *testing.T) *service {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	embedded.Start(t, lis, server.Config{Logger: testenv.Logger(t)}, sqlitestore.Options{MaxAttempts: 40, Logger: testenv.Logger(t)})
	c, err := client.New(lis.Addr().String())
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, c.Close()) })
	return &service{t, c}
}

// queue records jobs for workers.
func (s *service) queue(reqs ...*joboncev1.RecordDeliveryRequest) {
	s.t.Helper()
	for _, req := range reqs {
		req.WorkMode = joboncev1.WorkMode_WORK_MODE_QUEUED
		if _, err := s.RecordDelivery(s.t.Context(), req); err != nil {
			s.t.Fatal(err)
		}
	}
}

// job is a job as it is stored.
func (s *service) job(id string) *joboncev1.Job {
	s.t.Helper()
	j, err := s.GetJob(s.t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC)
	testenv.Must(s.t, err)
	return j
}

// work runs a worker until stop is called, which returns when it has told the service of all that it did.
func (s *service) work(cfg client.WorkerConfig, fn client.WorkFunc) (stop func()) {
	s.t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = testenv.Logger(s.t)
	}
	w, err := client.NewWorker(s.Client, cfg, fn)
	testenv.Must(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		testenv.OK(s.t, <-ended)
	}
	s.t.Cleanup(stop)
	return stop
}

// receive starts a receiver that ends with the test.
func receive(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	r := httptest.NewServer(handler)
	t.Cleanup(r.Close)
	return r
}

func newLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
