package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	serving    = grpc_health_v1.HealthCheckResponse_SERVING
	notServing = grpc_health_v1.HealthCheckResponse_NOT_SERVING
)

type watch = grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse]

// watchAll watches the server as a whole and its service.
func watchAll(t *testing.T, s *running) []watch {
	t.Helper()
	var watches []watch
	for _, name := range []string{"", joboncev1.IdempotencyService_ServiceDesc.ServiceName} {
		w, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		testenv.Must(t, err)
		watches = append(watches, w)
	}
	return watches
}

func expect(t *testing.T, watches []watch, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	for i, w := range watches {
		got, err := w.Recv()
		testenv.Must(t, err)
		if got.GetStatus() != want {
			t.Errorf("watch %d: got %v, want %v", i, got.GetStatus(), want)
		}
	}
}

func TestHealthFollowsTheStore(t *testing.T) {
	answers := make(chan error)
	s := start(t, Config{HealthInterval: time.Millisecond}, &memoryJobs{onCheck: func(ctx context.Context) error {
		select {
		case err := <-answers:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	away, damaged := errors.New("away"), errors.New("damaged")
	answers <- away
	watches := watchAll(t, s)
	// Not before the store said so.
	expect(t, watches, notServing)
	answers <- away
	select {
	case <-s.server.Ready():
		t.Error("ready before the store is")
	default:
	}
	answers <- nil
	<-s.server.Ready()
	expect(t, watches, serving)
	answers <- nil
	answers <- damaged
	expect(t, watches, notServing)
	answers <- damaged
	answers <- away
	answers <- nil
	expect(t, watches, serving)
	answers <- away
	expect(t, watches, notServing)

	// Each change is logged once. The store is asked again only when the answer before was dealt with.
	answers <- away
	var reasons []any
	for _, line := range s.log.lines(t, "not serving: the store is not ready") {
		reasons = append(reasons, line["reason"])
	}
	if len(reasons) != 4 || reasons[0] != "away" || reasons[1] != "damaged" || reasons[2] != "away" || reasons[3] != "away" {
		t.Errorf("logged %v", reasons)
	}
	if n := len(s.log.lines(t, "serving: the store is ready")); n != 2 {
		t.Errorf("logged %d times that the store is ready, want 2", n)
	}
}

// TestHealthHearsOfReadiness: a store that has prepared itself is asked at once.
func TestHealthHearsOfReadiness(t *testing.T) {
	prepared := make(chan struct{})
	var ready atomic.Bool
	s := start(t, Config{HealthInterval: time.Hour, StoreReady: prepared}, &memoryJobs{onCheck: func(context.Context) error {
		if !ready.Load() {
			return errors.New("preparing")
		}
		return nil
	}})
	watches := watchAll(t, s)
	expect(t, watches, notServing)
	ready.Store(true)
	close(prepared)
	expect(t, watches, serving)
	<-s.server.Ready()
}

// TestHealthOfWork: WorkService alone does not serve while work cannot be claimed.
func TestHealthOfWork(t *testing.T) {
	jobs := new(memoryJobs)
	missing := errors.New("an index is missing")
	jobs.workUnready.Store(&missing)
	s := start(t, Config{HealthInterval: time.Millisecond}, jobs)
	general := watchAll(t, s)
	expect(t, general, serving)
	w, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: workHealth})
	testenv.Must(t, err)
	work := []watch{w}
	expect(t, work, notServing)
	jobs.workUnready.Store(nil)
	expect(t, work, serving)
	jobs.workUnready.Store(&missing)
	expect(t, work, notServing)
	s.stop()
	expect(t, general, notServing) // and nothing before
}

// TestHealthGivesTheStartTime: a store that is not ready yet is an error only when it takes long.
func TestHealthGivesTheStartTime(t *testing.T) {
	var log strings.Builder
	var failure error
	h := newHealthService(&memoryJobs{onCheck: func(context.Context) error { return failure }}, time.Hour,
		slog.New(slog.NewTextHandler(&log, nil)))
	ask := func(err error, level string) {
		t.Helper()
		log.Reset()
		failure = err
		h.ask(t.Context())
		if said := log.String(); level == "" && said != "" || !strings.Contains(said, level) {
			t.Errorf("want %q, logged %q", level, said)
		}
	}
	preparing, away := errors.New("preparing"), errors.New("away")
	ask(preparing, "level=INFO")
	ask(preparing, "")
	ask(away, "level=INFO")
	h.began = h.began.Add(-startGrace)
	ask(away, "level=ERROR")
	ask(away, "")
	ask(nil, "level=INFO")
	h.began = time.Now()
	ask(away, "level=ERROR") // it was ready once
}

func TestHealthWhenStopping(t *testing.T) {
	jobs, entered, release := held()
	s := start(t, Config{}, jobs)
	watches := watchAll(t, s)
	// The store is ready from the start, so the first answer says so.
	expect(t, watches, serving)
	call := record(t.Context(), s, text("a", "{}"))
	<-entered
	s.stop()
	// Clients hear of it while the last calls still run, and the watches end, since they would hold up the stop.
	expect(t, watches, notServing)
	for _, w := range watches {
		var err error
		for err == nil {
			var resp *grpc_health_v1.HealthCheckResponse
			if resp, err = w.Recv(); err == nil && resp.GetStatus() != notServing {
				t.Errorf("got %v after NOT_SERVING", resp.GetStatus())
			}
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the watch ends with %v", err)
		}
	}
	close(release)
	testenv.OK(t, <-call)
	testenv.OK(t, <-s.stopped)
}

func TestHealthOfUnknownService(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	_, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "no.such"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}
