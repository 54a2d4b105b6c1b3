package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

//lint:file-ignore SA1019 grpcurl still asks for v1alpha, deprecated or not

func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		cfg   Config
		field string
	}{
		{Config{MaxBodyBytes: -1}, "MaxBodyBytes"},
		{Config{MaxBodyBytes: job.MaxBodyBytes + 1}, "MaxBodyBytes"},
		{Config{MaxCallTime: -1}, "MaxCallTime"},
		{Config{ShutdownTimeout: -1}, "ShutdownTimeout"},
		{Config{HealthInterval: -1}, "HealthInterval"},
		{Config{SlowCall: -1}, "SlowCall"},
	} {
		if _, err := New(tc.cfg, new(memoryJobs)); err == nil || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: got %v", tc.field, err)
		}
	}
	if _, err := New(Config{MaxBodyBytes: job.MaxBodyBytes}, new(memoryJobs)); err != nil {
		t.Error(err)
	}
}

// held is a store whose writes wait.
func held() (jobs *memoryJobs, entered, release chan struct{}) {
	entered, release = make(chan struct{}), make(chan struct{})
	return &memoryJobs{onRecord: func(ctx context.Context, _ job.Delivery) error {
		close(entered)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return errors.Join(job.ErrOutcomeUnknown, ctx.Err())
		}
	}}, entered, release
}

// record makes a call in the background.
func record(ctx context.Context, s *running, req *joboncev1.RecordDeliveryRequest) <-chan error {
	done := make(chan error, 1)
	go func() {
		resp, err := s.RecordDelivery(ctx, req)
		if err == nil && resp.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST {
			err = errors.New(resp.String())
		}
		done <- err
	}()
	return done
}

func TestGracefulStopFinishesCalls(t *testing.T) {
	jobs, entered, release := held()
	s := start(t, Config{}, jobs)
	call := record(t.Context(), s, text("a", "{}"))
	<-entered
	s.stop()
	select {
	case err := <-s.stopped:
		t.Fatalf("Run returned %v while a call runs", err)
	case err := <-call:
		t.Fatalf("the call was cut: %v", err)
	default:
	}
	close(release)
	if err := <-call; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-s.stopped; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := s.RecordDelivery(t.Context(), text("b", "{}")); status.Code(err) != codes.Unavailable {
		t.Errorf("after the stop: got %v", err)
	}
}

func TestStopCutsCallsThatLast(t *testing.T) {
	jobs, entered, _ := held()
	s := start(t, Config{ShutdownTimeout: time.Millisecond}, jobs)
	call := record(t.Context(), s, text("a", "{}"))
	<-entered
	s.stop()
	if err := <-s.stopped; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := <-call; status.Code(err) != codes.Unavailable {
		t.Errorf("the call: got %v", err)
	}
	if len(s.log.lines(t, "calls still run and are cut")) != 1 {
		t.Errorf("the log does not say so: %s", s.log)
	}
}

func TestRunEnds(t *testing.T) {
	s, err := New(Config{}, new(memoryJobs))
	testenv.Must(t, err)
	// A listener that fails.
	lis := listen(t)
	lis.Close()
	if err := s.Run(t.Context(), lis); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want the listener's error", err)
	}
	// A second run; its listener is closed as well.
	lis = listen(t)
	if err := s.Run(t.Context(), lis); err == nil {
		t.Error("the server runs twice")
	}
	if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is left open: %v", err)
	}
	// A context that ended before.
	s, err = New(Config{}, new(memoryJobs))
	testenv.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx, listen(t)); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestPanicIsInternal(t *testing.T) {
	s := start(t, Config{}, &memoryJobs{onRecord: func(_ context.Context, d job.Delivery) error {
		if d.JobID == "bad" {
			panic(secret)
		}
		return nil
	}})
	_, err := s.RecordDelivery(t.Context(), text("bad", "{}"))
	if status.Code(err) != codes.Internal || details(t, err) != (told{reason: "INTERNAL"}) || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v %+v", err, details(t, err))
	}
	if _, err := s.RecordDelivery(t.Context(), text("good", "{}")); err != nil {
		t.Errorf("the next call: %v", err)
	}
	lines := s.log.lines(t, "panic")
	if len(lines) != 1 || !strings.Contains(lines[0]["stack"].(string), "harness_test.go") || lines[0]["panic"] != secret {
		t.Errorf("logged %v", lines)
	}
	if lines := s.log.lines(t, "call failed"); len(lines) != 1 || lines[0]["code"] != "Internal" {
		t.Errorf("the outer interceptors see %v", lines)
	}
}

func TestDeadlineIsCapped(t *testing.T) {
	s := start(t, Config{MaxCallTime: time.Millisecond}, &memoryJobs{onRecord: func(ctx context.Context, _ job.Delivery) error {
		<-ctx.Done()
		return errors.Join(job.ErrOutcomeUnknown, ctx.Err())
	}})
	// Neither a call without a deadline nor one with a late one waits for ever.
	late, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), late} {
		req := text("a", "{}")
		req.RequestId = "r"
		_, err := s.RecordDelivery(ctx, req)
		if status.Code(err) != codes.DeadlineExceeded || details(t, err) != (told{reason: "OUTCOME_UNKNOWN", requestID: "r"}) {
			t.Errorf("got %v %+v", err, details(t, err))
		}
	}
}

// waiting is a request that asks the server to wait.
type waiting struct{ wait time.Duration }

func (w waiting) GetWait() *durationpb.Duration { return durationpb.New(w.wait) }

func TestCapDeadline(t *testing.T) {
	const limit = time.Minute
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	soonest, _ := soon.Deadline()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		req  any
		want time.Duration // 0: the context's own
	}{
		{"none", t.Context(), nil, limit},
		{"own", soon, nil, 0},
		{"wait", t.Context(), waiting{20 * time.Second}, limit + 20*time.Second},
		{"wait too long", t.Context(), waiting{time.Hour}, limit + maxWait},
		{"wait before now", t.Context(), waiting{-time.Hour}, limit},
	} {
		before := time.Now()
		var got time.Time
		_, _ = capDeadline(limit)(tc.ctx, tc.req, nil, func(ctx context.Context, _ any) (any, error) {
			got, _ = ctx.Deadline()
			return nil, nil
		})
		if tc.want == 0 && !got.Equal(soonest) ||
			tc.want != 0 && (got.Before(before.Add(tc.want)) || got.After(time.Now().Add(tc.want))) {
			t.Errorf("%s: the deadline is %v from now, want %v", tc.name, got.Sub(before), tc.want)
		}
	}
}

func TestReflection(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	v1 := reflected(t, reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo,
		&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	v1alpha := reflected(t, reflectionv1alpha.NewServerReflectionClient(s.conn).ServerReflectionInfo,
		&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}})
	var names, alphaNames []string
	for _, svc := range v1.GetListServicesResponse().GetService() {
		names = append(names, svc.GetName())
	}
	for _, svc := range v1alpha.GetListServicesResponse().GetService() {
		alphaNames = append(alphaNames, svc.GetName())
	}
	const want = "grpc.health.v1.Health grpc.reflection.v1.ServerReflection grpc.reflection.v1alpha.ServerReflection jobonce.v1.AdminService jobonce.v1.ExpectationService jobonce.v1.IdempotencyService jobonce.v1.WorkService"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("v1 lists %s", got)
	}
	if got := strings.Join(alphaNames, " "); got != want {
		t.Errorf("v1alpha lists %s", got)
	}
	// The schema is there, too.
	schema := reflected(t, reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo,
		&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "jobonce.v1.IdempotencyService",
		}})
	if len(schema.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("got %v", schema)
	}
}

// reflected asks the reflection service one question.
func reflected[Req, Resp any](
	t *testing.T, open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Resp], error), req *Req,
) *Resp {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := open(ctx)
	testenv.Must(t, err)
	testenv.Must(t, stream.Send(req))
	resp, err := stream.Recv()
	testenv.Must(t, err)
	return resp
}

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

// TestStopLeavesTheSilent: a peer that has not spoken yet does not hold up the others, who are told to go.
func TestStopLeavesTheSilent(t *testing.T) {
	jobs, entered, release := held()
	s := start(t, Config{ShutdownTimeout: time.Hour}, jobs)
	silent, err := net.Dial("tcp", s.conn.Target())
	testenv.Must(t, err)
	defer silent.Close()
	call := record(t.Context(), s, text("a", "{}")) // Its connection is accepted later.
	<-entered
	s.stop()
	testenv.Must(t, silent.SetReadDeadline(time.Now().Add(connectTimeout/2)))
	if _, err := io.ReadAll(silent); err != nil {
		t.Errorf("the silent peer: %v", err)
	}
	close(release)
	testenv.OK(t, <-call)
	testenv.OK(t, <-s.stopped)
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

// BenchmarkRecord is a call through all of the server to a store in memory, over a connection of its own.
func BenchmarkRecord(b *testing.B) {
	for _, tc := range []struct {
		name string
		size int
	}{{"1KiB", 1 << 10}, {"16KiB", 16 << 10}, {"1MiB", 1 << 20}} {
		b.Run(tc.name, func(b *testing.B) {
			s := start(b, Config{}, new(memoryJobs))
			body := strings.Repeat("x", tc.size)
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.RecordDelivery(b.Context(), text("job", body)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
