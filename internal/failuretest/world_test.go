// Package failuretest shows, over real connections and with the real client, server and stores, what becomes of a job
// when something fails. docs/failures.md has the list. Some tests run parts of themselves in processes of their own, to
// kill them.
package failuretest

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

// lease is how long leases run where a test moves the clock itself.
const lease = time.Minute

// patience bounds what must happen anyway. Only a test that fails gets there.
const patience = 2 * time.Minute

// world is a store with a service in front of it, whose clock only the test moves.
type world struct {
	t     *testing.T
	clock *testenv.Clock
	*testenv.Relay
	answers *answers

	// open opens the store once more, where that is possible; nil where one process has the store for itself.
	open func() job.Store
	// store is the store that is served.
	store job.Store
}

// onBothStores runs a test on each kind of store.
func onBothStores(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("embedded", func(t *testing.T) { test(t, embedded(t)) })
	t.Run("mongodb", func(t *testing.T) { test(t, mongodb(t, testenv.MongoURI(t))) })
}

func embedded(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: testenv.NewClock()}
	store, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{
		Now: w.clock.Now, MaxAttempts: job.DefaultMaxAttempts, Logger: testenv.Logger(t),
	})
	testenv.Must(t, err)
	w.store = store
	w.Relay = testenv.StartRelay(t, w.serve(store))
	return w
}

// mongodb is a world on the database at uri. It opens the store anew for each service, as each instance does.
func mongodb(t *testing.T, uri string) *world {
	t.Helper()
	w := &world{t: t, clock: testenv.NewClock()}
	database := testenv.Database(t)
	w.open = func() job.Store {
		t.Helper()
		store, err := mongostore.Open(mongostore.Options{
			URI: uri, Database: database, Now: w.clock.Now, MaxAttempts: job.DefaultMaxAttempts, Logger: testenv.Logger(t),
		})
		testenv.Must(t, err)
		await(t, "the store is ready", store.Ready())
		return store
	}
	w.store = w.open()
	w.Relay = testenv.StartRelay(t, w.serve(w.store))
	return w
}

// serve serves the store until the test ends, and returns the address.
func (w *world) serve(store job.Store) string {
	w.t.Helper()
	if w.answers == nil {
		w.answers = &answers{cut: func() { w.Cut() }}
	}
	log := testenv.Logger(w.t)
	jobs := batch.New(store, batch.Config{Lanes: 2, Logger: log})
	s, err := server.New(server.Config{Logger: log, UnaryInterceptors: []grpc.UnaryServerInterceptor{w.answers.intercept}}, jobs)
	testenv.Must(w.t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(w.t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx, lis) }()
	w.t.Cleanup(func() {
		stop()
		testenv.OK(w.t, <-stopped)
		testenv.OK(w.t, jobs.Close())
	})
	return lis.Addr().String()
}

// client makes a client of the service. Its calls last for as long as the test is patient.
func (w *world) client(opts ...client.Option) *client.Client {
	w.t.Helper()
	return newClient(w.t, w.Addr(), opts...)
}

func newClient(t *testing.T, addr string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(addr, append([]client.Option{client.WithTimeout(patience)}, opts...)...)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, c.Close()) })
	return c
}

// answers loses the answers of calls that the service has carried out.
type answers struct {
	cut func()

	mu     sync.Mutex
	method string
	left   int
}

// lose has the next n answers of a method lost: the connections are cut before the answer can be sent.
func (a *answers) lose(n int, method string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left, a.method = n, method
}

// unlost is how many answers are still to be lost.
func (a *answers) unlost() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left
}

func (a *answers) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil && a.left > 0 && strings.HasSuffix(info.FullMethod, "/"+a.method) {
		a.left--
		a.cut()
	}
	return resp, err
}

// await waits until the channel is closed or gives something.
func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v = <-c:
	case <-timer.C:
		t.Fatalf("it did not happen that %s", what)
	}
	return v
}

// delivery is a webhook's delivery of an event of the job, with the event in its body.
func delivery(jobID, event, status string) *joboncev1.RecordDeliveryRequest {
	return &joboncev1.RecordDeliveryRequest{
		Body:   &joboncev1.RecordDeliveryRequest_Payload{Payload: `{"job_id":"` + jobID + `","event":"` + event + `","status":"` + status + `"}`},
		Source: "webhook",
	}
}

func completed(jobID string) *joboncev1.RecordDeliveryRequest {
	return delivery(jobID, "job.completed", "OK")
}

// in sets the work mode, and for a leased one the lease.
func in(mode joboncev1.WorkMode, req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryRequest {
	req.WorkMode = mode
	if mode == joboncev1.WorkMode_WORK_MODE_LEASED {
		req.LeaseDuration = durationpb.New(lease)
	}
	return req
}

func leased(req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryRequest {
	return in(joboncev1.WorkMode_WORK_MODE_LEASED, req)
}

func queued(req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryRequest {
	return in(joboncev1.WorkMode_WORK_MODE_QUEUED, req)
}

func record(t *testing.T, c *client.Client, req *joboncev1.RecordDeliveryRequest) *joboncev1.RecordDeliveryResponse {
	t.Helper()
	resp, err := c.RecordDelivery(t.Context(), req)
	if err != nil {
		t.Fatalf("RecordDelivery: %v", err)
	}
	return resp
}

// want checks an answer, said in words: the disposition, then "start", "first", "lease", "conflict EVENT" or
// "conflict PAYLOAD" where they apply.
func want(t *testing.T, resp *joboncev1.RecordDeliveryResponse, words string) {
	t.Helper()
	if got := said(resp); got != words {
		t.Errorf("answered %q, want %q", got, words)
	}
}

func said(resp *joboncev1.RecordDeliveryResponse) string {
	words := []string{strings.TrimPrefix(resp.GetDisposition().String(), "DISPOSITION_")}
	if resp.GetStartWork() {
		words = append(words, "start")
	}
	if resp.GetFirstDelivery() {
		words = append(words, "first")
	}
	if resp.GetLease() != nil {
		words = append(words, "lease")
	}
	if c := resp.GetConflict(); c != nil {
		words = append(words, "conflict", strings.TrimPrefix(c.GetKind().String(), "CONFLICT_KIND_"))
	}
	return strings.Join(words, " ")
}

// stored reads a job with its payload.
func stored(t *testing.T, c *client.Client, jobID string) *joboncev1.Job {
	t.Helper()
	j, err := c.GetJob(t.Context(), jobID, joboncev1.JobView_JOB_VIEW_FULL)
	if err != nil {
		t.Fatalf("GetJob %s: %v", jobID, err)
	}
	return j
}

// wantState checks what a job has come to.
func wantState(t *testing.T, j *joboncev1.Job, state joboncev1.WorkState, deliveries int64) {
	t.Helper()
	if j.GetWork().GetState() != state || j.GetDeliveries() != deliveries {
		t.Errorf("%s: %v after %d deliveries, want %v after %d", j.GetJobId(), j.GetWork().GetState(), j.GetDeliveries(), state, deliveries)
	}
}

func complete(t *testing.T, c *client.Client, jobID string, l *joboncev1.Lease, result string) error {
	t.Helper()
	return c.CompleteWork(t.Context(), &joboncev1.CompleteWorkRequest{JobId: jobID, LeaseToken: l.GetToken(), Result: result})
}

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{
		"jobonce":  func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
		"frontend": frontendMain,
		"receiver": receiverMain,
	}))
}

// embeddedServe and mongodbServe say where the service keeps its jobs.
func embeddedServe(t *testing.T) *testenv.Service {
	return startServe(t, nil, "--data-dir", t.TempDir())
}

func mongodbServe(t *testing.T) *testenv.Service {
	uri := testenv.MongoURI(t)
	return startServe(t, []string{"MONGODB_URI=" + uri}, "--mongodb-database", testenv.Database(t))
}

// startServe runs "jobonce serve".
func startServe(t *testing.T, env []string, args ...string) *testenv.Service {
	t.Helper()
	return testenv.StartService(t, testenv.Program{
		Role: "jobonce", Env: env, Args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...),
	}, testenv.Serving)
}

// must ends a test in which what it needs fails.
func must(t *testing.T, err error) {
	t.Helper()
	testenv.Must(t, err)
}
