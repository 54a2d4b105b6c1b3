package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// lists answers three pages of jobs and of expectations, and notes how much was printed when it is asked for each.
type lists struct {
	joboncev1.UnimplementedAdminServiceServer
	joboncev1.UnimplementedExpectationServiceServer
	mu      sync.Mutex
	out     bytes.Buffer
	printed []int // lines
}

func (l *lists) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

// page notes what was printed, and names the next page.
func (l *lists) page() (next string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.printed = append(l.printed, strings.Count(l.out.String(), "\n"))
	return map[int]string{1: "two", 2: "three"}[len(l.printed)]
}

func (l *lists) ListJobs(context.Context, *joboncev1.ListJobsRequest) (*joboncev1.ListJobsResponse, error) {
	next := l.page()
	return &joboncev1.ListJobsResponse{Jobs: []*joboncev1.Job{{JobId: "a job before " + next}, {JobId: "b"}}, NextPageToken: next}, nil
}

func (l *lists) ListExpectations(context.Context, *joboncev1.ListExpectationsRequest) (*joboncev1.ListExpectationsResponse, error) {
	next := l.page()
	return &joboncev1.ListExpectationsResponse{Expectations: []*joboncev1.Expectation{{JobId: "a job before " + next}, {JobId: "b"}}, NextPageToken: next}, nil
}

// TestListsArePrintedByPage: whatever is listed is printed before the next page is asked for, so that no more than a page is held, with one
// header.
func TestListsArePrintedByPage(t *testing.T) {
	for _, command := range []string{"list", "overdue"} {
		l := &lists{}
		code, stderr := l.run(t, command, "--limit", "0")
		out := l.out.String()
		if code != 0 || stderr != "" || fmt.Sprint(l.printed) != "[0 3 5]" || strings.Count(out, "\n") != 7 || strings.Count(out, "JOB_ID") != 1 || !strings.HasPrefix(out, "JOB_ID") {
			t.Errorf("%s ended with %d, %s; lines printed before each page: %v\n%s", command, code, stderr, l.printed, out)
		}
	}
}

// TestListsSayThatThereIsMore: a list that ends at its limit says so, and how to see the rest, apart from what a script reads.
func TestListsSayThatThereIsMore(t *testing.T) {
	for _, args := range [][]string{{"list"}, {"overdue"}, {"list", "-o", "json"}, {"overdue", "-o", "json"}} {
		l := &lists{}
		if code, stderr := l.run(t, append(args, "--limit", "4")...); code != 0 || stderr != "there may be more than these 4; --limit 0 lists all\n" || strings.Contains(l.out.String(), "limit") {
			t.Errorf("%v ended with %d: %q", args, code, stderr)
		}
	}
}

// run has the command ask for lists, and returns its exit code and what it says on standard error.
func (l *lists) run(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	s := grpc.NewServer()
	joboncev1.RegisterAdminServiceServer(s, l)
	joboncev1.RegisterExpectationServiceServer(s, l)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	var said bytes.Buffer
	code = Main(append(args, "--server", lis.Addr().String()), strings.NewReader(""), l, &said)
	s.Stop()
	testenv.OK(t, <-served)
	return code, said.String()
}
