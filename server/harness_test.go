package server

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryJobs is a store without durability and without work. The hooks are set before it serves.
type memoryJobs struct {
	job.Store // panics where it is not overridden

	mu      sync.Mutex
	records map[string]*job.Record
	writes  int // calls of Record

	onRecord func(ctx context.Context, d job.Delivery) error
	onGet    func(ctx context.Context) error
	onCheck  func(ctx context.Context) error
	// workUnready is why work cannot be claimed.
	workUnready atomic.Pointer[error]
}

func (m *memoryJobs) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	m.mu.Lock()
	m.writes++
	m.mu.Unlock()
	outcomes := make([]job.Outcome, len(ds))
	for i := range ds {
		outcomes[i] = m.one(ctx, &ds[i])
	}
	return outcomes
}

func (m *memoryJobs) RecordOne(ctx context.Context, d job.Delivery) job.Outcome {
	return m.Record(ctx, []job.Delivery{d})[0]
}

func (m *memoryJobs) one(ctx context.Context, d *job.Delivery) job.Outcome {
	if m.onRecord != nil {
		if err := m.onRecord(ctx, *d); err != nil {
			return job.Outcome{Err: err}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.records[d.JobID]
	if r == nil {
		fresh := d.NewRecord(now)
		r = &fresh
		m.put(r)
	}
	r.Deliveries++
	r.LastSeen = job.Millis(now)
	v := job.Decide(r, d, now)
	if v.Conflict != nil {
		r.Conflicts++
		r.LastConflict = v.Conflict
	}
	out := *r
	out.Body = job.Body{}
	return job.Outcome{Record: out, Verdict: v}
}

// put needs m.mu.
func (m *memoryJobs) put(r *job.Record) {
	if m.records == nil {
		m.records = make(map[string]*job.Record)
	}
	m.records[r.JobID] = r
}

func (m *memoryJobs) Get(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	if m.onGet != nil {
		if err := m.onGet(ctx); err != nil {
			return job.Record{}, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[jobID]
	if r == nil {
		return job.Record{}, job.ErrNotFound
	}
	out := *r
	if !withBody {
		out.Body = job.Body{}
	}
	return out, nil
}

func (m *memoryJobs) Standings(context.Context, []string) (map[string]job.Standing, error) {
	return nil, nil
}

func (m *memoryJobs) Resume(context.Context, job.Delivery) job.Outcome {
	return job.Outcome{Err: job.ErrNotFound}
}

func (m *memoryJobs) Check(ctx context.Context) error {
	if m.onCheck != nil {
		return m.onCheck(ctx)
	}
	return nil
}

func (m *memoryJobs) LongestDue(context.Context) (string, time.Duration, error) { return "", 0, nil }

func (m *memoryJobs) CheckWork(context.Context) error {
	if err := m.workUnready.Load(); err != nil {
		return *err
	}
	return nil
}

func (m *memoryJobs) Close() error { return nil }

// size is how many jobs are stored and how many writes there were.
func (m *memoryJobs) size() (records, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records), m.writes
}

// logBuffer collects log lines.
type logBuffer struct{ testenv.Tail }

// lines are the log lines with this message.
func (b *logBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range bytes.Lines([]byte(b.String())) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if m["msg"] == msg {
			found = append(found, m)
		}
	}
	return found
}

// running is a server under test.
type running struct {
	joboncev1.IdempotencyServiceClient
	server *Server
	conn   *grpc.ClientConn
	log    *logBuffer
	// stop ends the context of Run; stopped gives what Run returned.
	stop    context.CancelFunc
	stopped <-chan error
}

// start serves jobs on a port of the system's choice until the test ends.
func start(t testing.TB, cfg Config, jobs Jobs) *running {
	t.Helper()
	log := new(logBuffer)
	cfg.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg, jobs)
	testenv.Must(t, err)
	r := serve(t, s, listen(t))
	r.log = log
	return r
}

// serve has s serve on lis until the test ends.
func serve(t testing.TB, s *Server, lis net.Listener) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		stopped <- s.Run(ctx, lis)
	}()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	testenv.Must(t, err)
	t.Cleanup(func() {
		conn.Close()
		cancel()
		<-done
	})
	return &running{joboncev1.NewIdempotencyServiceClient(conn), s, conn, nil, cancel, stopped}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	return lis
}

// told is what the details of an error say.
type told struct {
	reason    string
	field     string
	retry     time.Duration
	requestID string
}

func details(t *testing.T, err error) told {
	t.Helper()
	var d told
	for _, detail := range status.Convert(err).Details() {
		switch m := detail.(type) {
		case *errdetails.ErrorInfo:
			if m.Domain != "jobonce" {
				t.Errorf("domain %q, want jobonce", m.Domain)
			}
			d.reason, d.requestID = m.Reason, m.Metadata["request_id"]
		case *errdetails.BadRequest:
			d.field = m.FieldViolations[0].Field
		case *errdetails.RetryInfo:
			d.retry = m.RetryDelay.AsDuration()
		default:
			t.Errorf("unexpected detail %T", m)
		}
	}
	return d
}

// text is a request with a text body.
func text(id, body string) *joboncev1.RecordDeliveryRequest {
	return &joboncev1.RecordDeliveryRequest{JobId: id, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: body}}
}

// raw is a request with a body of bytes.
func raw(id string, body []byte) *joboncev1.RecordDeliveryRequest {
	return &joboncev1.RecordDeliveryRequest{JobId: id, Body: &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: body}}
}
