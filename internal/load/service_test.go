package load_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/load"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

// serve runs the real service on the embedded store until the test ends, and returns a client of it.
func serve(t *testing.T) *client.Client {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	srv := embedded.Start(t, lis, server.Config{}, sqlitestore.Options{})
	<-srv.Ready()
	c, err := client.New(lis.Addr().String(), client.WithoutRetry())
	testenv.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestService(t *testing.T) {
	c := serve(t)
	for _, mode := range []joboncev1.WorkMode{
		joboncev1.WorkMode_WORK_MODE_UNTRACKED, joboncev1.WorkMode_WORK_MODE_LEASED, joboncev1.WorkMode_WORK_MODE_QUEUED,
	} {
		w := load.Workload{Run: mode.String()[len("WORK_MODE_"):], Callers: 8, Count: 200, Duplicates: 30, BodyBytes: 512}
		l, err := load.New(load.Service{Client: c, Mode: mode, Lease: time.Minute}, w, load.Reason)
		testenv.Must(t, err)
		r := l.Run(t.Context())
		if r.Ops != 200 || r.Failed() != 0 || r.Firsts != r.Keys || r.Duplicates == 0 {
			t.Errorf("%v: %+v", mode, r)
		}
		job, err := c.GetJob(t.Context(), load.Key(w.Run, 0), joboncev1.JobView_JOB_VIEW_FULL)
		testenv.Must(t, err)
		if job.GetWork().GetMode() != mode || job.GetPayload() != load.NewBody(w.Run, 512).Of(job.GetJobId()) {
			t.Errorf("%v: stored %v", mode, job)
		}
	}
}

func TestServiceErrors(t *testing.T) {
	c := serve(t)
	// Half a second is no lease.
	l, err := load.New(load.Service{Client: c, Mode: joboncev1.WorkMode_WORK_MODE_LEASED, Lease: time.Second / 2},
		load.Workload{Run: "bad", Callers: 2, Count: 4, BodyBytes: 512}, load.Reason)
	testenv.Must(t, err)
	if r := l.Run(t.Context()); r.Ops != 0 || r.Errors["INVALID_FIELD"] != 4 {
		t.Errorf("%+v", r)
	}
}

func TestReason(t *testing.T) {
	dead, err := client.New("passthrough:///nowhere", client.WithoutRetry(), client.WithInsecure(), client.WithDialOptions(
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, status.Error(codes.Unavailable, "no such place")
		})))
	testenv.Must(t, err)
	defer dead.Close()
	_, err = load.Service{Client: dead}.Record(t.Context(), "", "x")
	if got := load.Reason(err); got != "UNAVAILABLE" {
		t.Errorf("a dead service's reason is %q (%v)", got, err)
	}
	if got := load.Reason(context.Canceled); got != "UNKNOWN" {
		t.Errorf("another error's reason is %q", got)
	}
}
