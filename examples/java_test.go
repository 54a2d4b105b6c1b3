package examples_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// java returns what runs the example in Java.
func java(t *testing.T) func(args ...string) string {
	testenv.Need(t, "java", "javac", "mvn")
	protos, err := filepath.Abs("../sdk/java/proto")
	testenv.Must(t, err)
	project, err := filepath.Abs("java")
	testenv.Must(t, err)
	inputs, err := filepath.Glob(protos + "/jobonce/v1/*.proto")
	testenv.Must(t, err)
	testenv.Must(t, filepath.WalkDir("java", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "target" {
			return filepath.SkipDir // of somebody who has built it there
		}
		if err == nil && !d.IsDir() {
			inputs = append(inputs, path)
		}
		return err
	}))
	built := testenv.Cached(t, "example-java", inputs, func(dir string) error {
		return testenv.Script(t, dir, `
			cp -R '`+project+`/pom.xml' '`+project+`/src' .
			mvn -B -q -Dprotos='`+protos+`' process-classes`)
	})
	class := filepath.Join(built, "target", "classes") + ":" + filepath.Join(built, "target", "dependency", "*")
	return func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "java", append([]string{"-cp", class, "com.example.Main"}, args...)...)
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s%s", args, err, out, exit.Stderr)
		}
		testenv.Must(t, err)
		return strings.TrimSpace(string(out))
	}
}

// losing stands before a service and passes its calls on. It loses as many answers as it has errors, and gives those instead.
type losing struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	joboncev1.UnimplementedWorkServiceServer
	jobs joboncev1.IdempotencyServiceClient
	work joboncev1.WorkServiceClient

	mu   sync.Mutex
	lost []error
	// ids are those of the calls that were made, as they came.
	ids      []string
	renewals int
	noMore   bool // no renewal gets through
}

// proxyError is a code and nothing else, as of a proxy or a connection.
func proxyError(code codes.Code) error { return status.Error(code, "lost") }

// newerError is what a newer service may say.
func newerError(t *testing.T, code codes.Code) error {
	st, err := status.New(code, "lost").WithDetails(&errdetails.ErrorInfo{Domain: "jobonce", Reason: "MOON_PHASE"})
	testenv.Must(t, err)
	return st.Err()
}

// lose loses an answer. The id is that of its call.
func lose[T proto.Message](l *losing, id string, resp T, err error) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
	if err == nil && len(l.lost) > 0 {
		err = l.lost[0]
		l.lost = l.lost[1:]
	}
	return resp, err
}

func (l *losing) RecordDelivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	resp, err := l.jobs.RecordDelivery(ctx, req)
	return lose(l, req.GetRequestId(), resp, err)
}

func (l *losing) ClaimWork(ctx context.Context, req *joboncev1.ClaimWorkRequest) (*joboncev1.ClaimWorkResponse, error) {
	resp, err := l.work.ClaimWork(ctx, req)
	return lose(l, req.GetRequestId(), resp, err)
}

func (l *losing) RenewLease(ctx context.Context, req *joboncev1.RenewLeaseRequest) (*joboncev1.RenewLeaseResponse, error) {
	l.mu.Lock()
	l.renewals++
	noMore := l.noMore
	l.mu.Unlock()
	if noMore {
		return nil, proxyError(codes.Unavailable)
	}
	return l.work.RenewLease(ctx, req)
}

func (l *losing) CompleteWork(ctx context.Context, req *joboncev1.CompleteWorkRequest) (*joboncev1.CompleteWorkResponse, error) {
	resp, err := l.work.CompleteWork(ctx, req)
	return lose(l, req.GetLeaseToken(), resp, err)
}

func (l *losing) ReleaseWork(ctx context.Context, req *joboncev1.ReleaseWorkRequest) (*joboncev1.ReleaseWorkResponse, error) {
	resp, err := l.work.ReleaseWork(ctx, req)
	return lose(l, req.GetLeaseToken(), resp, err)
}

// loses has the next answers lost, and returns a check that their calls came again, all by one id, until they were heard.
func (l *losing) loses(t *testing.T, lost ...error) (check func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost, l.ids = lost, nil
	n := len(lost) + 1
	return func() {
		t.Helper()
		l.mu.Lock()
		defer l.mu.Unlock()
		same := 0
		for _, id := range l.ids {
			if id != "" && id == l.ids[0] {
				same++
			}
		}
		if same != n {
			t.Errorf("%d of the calls %q have the id of the first; want %d", same, l.ids, n)
		}
	}
}

// TestJava records and works off with the example in Java, through lost answers.
func TestJava(t *testing.T) {
	run := java(t)
	service := testenv.StartService(t, testenv.Program{
		Role: "jobonce", Args: []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir()},
	}, testenv.Serving)
	conn, err := grpc.NewClient(service.Direct, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(t, err)
	defer conn.Close()
	l := &losing{jobs: joboncev1.NewIdempotencyServiceClient(conn), work: joboncev1.NewWorkServiceClient(conn)}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	srv := grpc.NewServer()
	joboncev1.RegisterIdempotencyServiceServer(srv, l)
	joboncev1.RegisterWorkServiceServer(srv, l)
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	address := lis.Addr().String()

	check := l.loses(t, proxyError(codes.Unavailable), proxyError(codes.DeadlineExceeded), proxyError(codes.Canceled), newerError(t, codes.Unavailable))
	if out := run(address, "record", "j", "body"); out != "DISPOSITION_FIRST 5" {
		t.Errorf("record: %s", out)
	}
	check()
	if out := run(address, "record", "j", "body"); out != "DISPOSITION_PENDING 6" {
		t.Errorf("record again: %s", out)
	}
	if out := run(address, "record", "", "body"); out != "error INVALID_ARGUMENT INVALID_FIELD" {
		t.Errorf("record without an id: %s", out)
	}
	l.loses(t, newerError(t, codes.FailedPrecondition))
	if out := run(address, "record", "k", "bad"); out != "error FAILED_PRECONDITION MOON_PHASE" {
		t.Errorf("record with an error that is not to be retried: %s", out)
	}

	// The work takes longer than the lease, and the answer to the claim is lost.
	check = l.loses(t, proxyError(codes.Unavailable))
	if out := run(address, "work", "3", "4"); out != "did j body\nworked" {
		t.Errorf("work: %s", out)
	}
	check()
	if l.renewals == 0 {
		t.Error("the lease was not renewed")
	}
	job := func(id string) *joboncev1.Job {
		resp, err := l.jobs.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: id})
		testenv.Must(t, err)
		return resp.GetJob()
	}
	if w := job("j").GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED || w.GetResult() != "done" || w.GetAttempts() != 1 {
		t.Errorf("got %v", w)
	}

	// What fails is given back, and what becomes of it heard.
	if out := run(address, "work", "10", "0"); out != "worked" {
		t.Errorf("work that fails: %s", out)
	}
	if w := job("k").GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_QUEUED || w.GetLastError() != "INVALID_ARGUMENT: the body is bad" {
		t.Errorf("got %v", w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	claimed, err := l.work.ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(time.Minute), Wait: durationpb.New(30 * time.Second)})
	if err != nil || len(claimed.GetJobs()) != 1 {
		t.Errorf("the work that was given back: %v, %v", claimed, err)
	}

	// Work is told when its lease runs out, though nobody says that it is lost.
	l.mu.Lock()
	l.noMore = true
	l.mu.Unlock()
	run(address, "record", "l", "body")
	if out := run(address, "work", "1", "3"); out != "worked" {
		t.Errorf("work whose lease runs out: %s", out)
	}
	if w := job("l").GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_QUEUED || w.GetLastError() != "the lease is lost" {
		t.Errorf("got %v", w)
	}
}
