package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// holdUp has a peer that reads no answers, one whose request stays half, and one that says nothing at all.
func holdUp(t *testing.T, s *running) (slow *rawPeer) {
	t.Helper()
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), text("large", strings.Repeat("x", 900<<10))))
	slow = dial(t, s.conn.Target())
	slow.call(t, getPath, encode(t, &joboncev1.GetJobRequest{JobId: "large", View: joboncev1.JobView_JOB_VIEW_FULL}))
	half := dial(t, s.conn.Target())
	half.send(t, half.headers(t, recordPath, false), false, append(prefix(0, 1<<20), make([]byte, 1000)...))
	dial(t, s.conn.Target())
	eventually(t, "the calls are in the server", func() bool {
		calls, bytes := s.server.door.room.held()
		return calls == 1 && bytes > 0 && s.server.answers.held() > 0
	})
	return slow
}

// Peers that hold streams open hold up a stop for as long as calls under way may go on, and no longer.
func TestStopIsBounded(t *testing.T) {
	s := start(t, Config{ShutdownTimeout: 50 * time.Millisecond}, new(memoryJobs))
	holdUp(t, s)
	s.stop()
	testenv.OK(t, <-s.stopped)
	if n := len(s.log.lines(t, "calls still run and are cut")); n != 1 {
		t.Errorf("the log says %d times that calls were cut", n)
	}
	s.atRest(t)
}

// Without the bound those peers do hold it up: the test above is about something.
func TestStopIsBoundedBites(t *testing.T) {
	s := start(t, Config{ShutdownTimeout: time.Hour}, new(memoryJobs))
	slow := holdUp(t, s)
	s.stop()
	if e := slow.event(t); e.isEnd || e.closed { // It is told that the server goes, and stays.
		t.Fatalf("got %+v", e)
	}
	select {
	case <-s.stopped:
		t.Error("the server stopped while a peer had not read its answer")
	default:
	}
	s.server.grpc.Stop()
	<-s.stopped
}

// Waits end by themselves, long before the bound.
func TestStopEndsWaits(t *testing.T) {
	s := start(t, Config{ShutdownTimeout: time.Hour}, idleJobs{new(memoryJobs)})
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	testenv.Must(t, err)
	must[*grpc_health_v1.HealthCheckResponse](t)(watch.Recv())
	ended := make(chan error, 20)
	for range cap(ended) {
		go func() {
			_, err := s.work().ClaimWork(context.Background(), &joboncev1.ClaimWorkRequest{
				LeaseDuration: minute(), Wait: durationpb.New(time.Minute)})
			ended <- err
		}()
	}
	eventually(t, "the calls wait", func() bool { calls, _ := s.server.door.room.held(); return calls == int64(cap(ended)) })
	s.stop()
	for range cap(ended) {
		<-ended
	}
	testenv.OK(t, <-s.stopped)
}
