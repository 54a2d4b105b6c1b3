package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/load"
	"github.com/jobonce/jobonce/internal/testenv"
)

// scripted is a service that has no jobs and answers deliveries as a test wants.
type scripted struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	calls  atomic.Int64
	record func(call int64) (*joboncev1.RecordDeliveryResponse, error)
}

func (*scripted) GetJob(context.Context, *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
	st, err := status.New(codes.NotFound, "no such job").
		WithDetails(&errdetails.ErrorInfo{Domain: "jobonce", Reason: "JOB_NOT_FOUND"})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

func (s *scripted) RecordDelivery(context.Context, *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	return s.record(s.calls.Add(1))
}

// serveScripted returns the address of the service, which ends with the test.
func serveScripted(t *testing.T, s *scripted) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	srv := grpc.NewServer()
	joboncev1.RegisterIdempotencyServiceServer(srv, s)
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

func TestBenchEndsEarly(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	addr := serveScripted(t, &scripted{record: func(call int64) (*joboncev1.RecordDeliveryResponse, error) {
		if call == 10 {
			interrupt()
		}
		return &joboncev1.RecordDeliveryResponse{FirstDelivery: true}, nil
	}})
	var stdout, stderr bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"bench", "--server", addr, "--callers", "1", "--duration", "1h", "-o", "json"})
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	testenv.Must(t, root.ExecuteContext(ctx))
	var got benchSummary
	testenv.Must(t, json.Unmarshal(stdout.Bytes(), &got))
	// The tenth call was under way when the run ended.
	if got.Answered < 9 || got.Answered > 10 || got.Failed != 0 || stderr.Len() > 0 {
		t.Errorf("%s%s", &stdout, &stderr)
	}
}

// TestBenchChecksTheAnswers holds the service to one first delivery for each job.
func TestBenchChecksTheAnswers(t *testing.T) {
	addr := serveScripted(t, &scripted{record: func(call int64) (*joboncev1.RecordDeliveryResponse, error) {
		return &joboncev1.RecordDeliveryResponse{FirstDelivery: call != 3}, nil
	}})
	code, stdout, stderr := run("bench", "--server", addr, "--callers", "1", "--count", "5")
	if code != 1 || !strings.Contains(stdout, "first: 4\n") || stderr != "the service answered 4 first deliveries for 5 jobs\n" {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestBenchCountsErrors(t *testing.T) {
	addr := serveScripted(t, &scripted{record: func(call int64) (*joboncev1.RecordDeliveryResponse, error) {
		if call%2 == 0 {
			return nil, status.Error(codes.Unavailable, "later")
		}
		return &joboncev1.RecordDeliveryResponse{FirstDelivery: true}, nil
	}})
	code, stdout, stderr := run("bench", "--server", addr, "--callers", "1", "--count", "6")
	if code != 0 || !strings.Contains(stdout, "first: 3\n") || !strings.Contains(stdout, "errors: 3\n  UNAVAILABLE: 3\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestBenchProgress(t *testing.T) {
	for _, tc := range []struct {
		w    load.Workload
		r    load.Result
		want float64
	}{
		{load.Workload{Duration: 4 * time.Second}, load.Result{Ops: 9, Elapsed: time.Second}, 0.25},
		{load.Workload{Count: 10}, load.Result{Ops: 4, Errors: map[string]int64{"OVERLOADED": 1}, Elapsed: time.Second}, 0.5},
		{load.Workload{Count: 10, Duration: 4 * time.Second}, load.Result{Ops: 1, Elapsed: 3 * time.Second}, 0.75},
	} {
		if got := progress(tc.w, tc.r); got != tc.want {
			t.Errorf("%+v of %+v is %v, want %v", tc.r, tc.w, got, tc.want)
		}
	}
}
