package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// notes is an observer, and interceptors, that keep what they are told.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

// take returns the notes since the last time.
func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.lines
	n.lines = nil
	return lines
}

func (n *notes) Recorded(v job.Verdict) { n.add("recorded %d %t", v.Disposition, v.Conflict != nil) }
func (n *notes) Failed(reason string)   { n.add("failed %s", reason) }

func (n *notes) Unread(field string)   { n.add("unread %s", field) }
func (n *notes) Waited(time.Duration)  { n.add("waited") }
func (n *notes) Refused(reason string) { n.add("refused %s", reason) }
func (n *notes) GivenUp()              { n.add("given up") }

func (n *notes) Work(method string, jobs int, reason string) { n.add("%s %d %s", method, jobs, reason) }

func TestObserver(t *testing.T) {
	var n notes
	s := start(t, Config{Observer: &n}, &memoryJobs{onRecord: func(_ context.Context, d job.Delivery) error {
		if d.JobID == "away" {
			return job.ErrUnavailable
		}
		return nil
	}})
	first, duplicate := fmt.Sprint("recorded ", job.First, " false"), fmt.Sprint("recorded ", job.Duplicate, " true")
	for _, tc := range []struct {
		req  *joboncev1.RecordDeliveryRequest
		want string
	}{
		{text("a", "x"), first},
		{text("a", "y"), duplicate},
		{text("", "x"), "failed INVALID_FIELD"},
		{text("away", "x"), "failed STORE_UNAVAILABLE"},
	} {
		_, _ = s.RecordDelivery(t.Context(), tc.req)
		if got := n.take(); !slices.Equal(got, []string{tc.want}) {
			t.Errorf("%v: observed %q, want %q", tc.req, got, tc.want)
		}
	}
	_, err := s.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{
		Deliveries: []*joboncev1.RecordDeliveryRequest{text("b", "x"), text("", "x"), text("away", "x"), text("b", "y")},
	})
	testenv.Must(t, err)
	got := n.take()
	slices.Sort(got)
	if want := []string{"failed INVALID_FIELD", "failed STORE_UNAVAILABLE", first, duplicate}; !slices.Equal(got, want) {
		t.Errorf("of a batch: observed %q, want %q", got, want)
	}
}

// TestObserverOfUnreadFields: an event or status of the body that is left out is counted, once for each; one that the
// request sets instead is not, nor is a body that nobody reads.
func TestObserverOfUnreadFields(t *testing.T) {
	var n notes
	s := start(t, Config{Observer: &n}, new(memoryJobs))
	said := text("said", `{"event":1,"status":2}`)
	said.Event, said.Status = "e", "s"
	opaque := text("opaque", `{"event":1}`)
	opaque.OpaquePayload = true
	first := fmt.Sprint("recorded ", job.First, " false")
	reqs := []*joboncev1.RecordDeliveryRequest{
		text("number", `{"event":1}`), text("long", `{"event":"`+strings.Repeat("x", 129)+`","status":{}}`),
		text("null", `{"event":null}`), text("form", "event=e"), raw("bytes", []byte(`{"event":1}`)), said, opaque,
		text("", `{"event":1}`), {JobId: "trace", Traceparent: "00-1-2-3"},
	}
	want := [][]string{
		{"unread event", first}, {"unread event", "unread status", first}, {first}, {first}, {first}, {first}, {first},
		{"failed INVALID_FIELD"}, {"unread traceparent", first},
	}
	for i, req := range reqs {
		_, _ = s.RecordDelivery(t.Context(), req)
		if got := n.take(); !slices.Equal(got, want[i]) {
			t.Errorf("%v: observed %q, want %q", req, got, want[i])
		}
	}
	if _, err := s.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{Deliveries: reqs[:3]}); err != nil {
		t.Fatal(err)
	}
	if got, want := n.take()[:3], []string{"unread event", "unread event", "unread status"}; !slices.Equal(got, want) {
		t.Errorf("of a batch: observed %q, want %q at first", got, want)
	}
}

// TestOuterInterceptors shows what the interceptors of the configuration see: every call with the error that its caller
// gets, malformed requests and panics too.
func TestOuterInterceptors(t *testing.T) {
	var n notes
	unary := func(name string) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			n.add("%s %v", name, status.Code(err))
			return resp, err
		}
	}
	ended := make(chan struct{})
	s := start(t, Config{
		UnaryInterceptors: []grpc.UnaryServerInterceptor{unary("outer"), unary("inner")},
		StreamInterceptors: []grpc.StreamServerInterceptor{
			func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				defer close(ended)
				err := handler(srv, stream)
				n.add("%s %v", info.FullMethod, status.Code(err))
				return err
			},
		},
	}, &memoryJobs{onRecord: func(_ context.Context, d job.Delivery) error {
		if d.JobID == "panic" {
			panic("a fault")
		}
		return nil
	}})
	for _, tc := range []struct {
		req  *joboncev1.RecordDeliveryRequest
		want codes.Code
	}{
		{text("a", "x"), codes.OK},
		{text("panic", "x"), codes.Internal},
		{text("", "x"), codes.InvalidArgument},
	} {
		_, _ = s.RecordDelivery(t.Context(), tc.req)
		if got, want := n.take(), []string{"inner " + tc.want.String(), "outer " + tc.want.String()}; !slices.Equal(got, want) {
			t.Errorf("%v: saw %q, want %q", tc.req, got, want)
		}
	}
	_ = s.invokeRaw(t, joboncev1.IdempotencyService_RecordDelivery_FullMethodName, []byte{0xff})
	if got, want := n.take(), []string{"inner InvalidArgument", "outer InvalidArgument"}; !slices.Equal(got, want) {
		t.Errorf("of a malformed request: saw %q, want %q", got, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	w, err := grpc_health_v1.NewHealthClient(s.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	testenv.Must(t, err)
	expect(t, []watch{w}, serving)
	cancel()
	<-ended
	if got, want := n.take(), []string{"/grpc.health.v1.Health/Watch Canceled"}; !slices.Equal(got, want) {
		t.Errorf("of a stream: saw %q, want %q", got, want)
	}
}

// Interceptors of the configuration see responses as what they are, also large ones, and one that they do not let through
// does not count.
func TestOuterInterceptorsSeeResponses(t *testing.T) {
	var stop, seen atomic.Int64
	s := start(t, Config{UnaryInterceptors: []grpc.UnaryServerInterceptor{
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if got, ok := resp.(*joboncev1.GetJobResponse); ok {
				seen.Store(int64(len(got.GetJob().GetPayload())))
			}
			if stop.Load() != 0 {
				return nil, status.Error(codes.DataLoss, "not this one")
			}
			return resp, err
		},
	}}, new(memoryJobs))
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), text("j", strings.Repeat("x", 1<<20))))
	stop.Store(1)
	_, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL})
	if seen.Load() != 1<<20 || status.Code(err) != codes.DataLoss {
		t.Errorf("it sees a payload of %d bytes, the caller gets %v", seen.Load(), err)
	}
	eventually(t, "an answer counts that is not sent", func() bool { return s.server.answers.held() == 0 })
}
