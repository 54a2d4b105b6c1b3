package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// TestDiskFails lets the disk of a service fail to flush: the call that it was for has an unknown outcome, all others are
// refused, health says so, and a service that is started again without the fault goes on.
func TestDiskFails(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.Command(strace, "-o", os.DevNull, "true").Run() // it may not be allowed to trace
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI is set, and strace, which lets the disk fail, is missing: %v", err)
		}
		t.Skipf("NOT TESTED, because strace, which lets the disk fail, is missing: %v", err)
	}
	dir := t.TempDir()
	args := []string{"--listen", "127.0.0.1:0", "--data-dir", "data"}
	first, err := startServe(dir, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	recordWant(t, first.addr, nil)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}

	// Nothing is written to the log before the first delivery, so that the service starts. With -D strace is no parent of
	// the service, which so gets the signals and is waited for.
	log := filepath.Join(dir, "data", "jobonce.db-wal")
	p, err := startServeUnder([]string{strace, "-D", "-f", "-q", "-o", os.DevNull, "-P", log, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"}, dir, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	wantHealth(t, p.addr, grpc_health_v1.HealthCheckResponse_SERVING)
	recordWant(t, p.addr, client.ErrOutcomeUnknown)
	recordWant(t, p.addr, client.ErrStoreUnavailable)
	wantHealth(t, p.addr, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if err := p.stop(); err != nil {
		t.Error(err)
	}

	last, err := startServe(dir, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	recordWant(t, last.addr, nil)
	got, err := newCrashClient(t, last.addr).GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
	if err != nil || got.GetDeliveries() < 2 || got.GetDeliveries() > 3 {
		t.Errorf("%d deliveries, %v; two were acknowledged, and one may have been written", got.GetDeliveries(), err)
	}
	if err := last.stop(); err != nil {
		t.Error(err)
	}
}

// recordWant records a delivery and wants it to end so.
func recordWant(t *testing.T, addr string, want error) {
	t.Helper()
	_, err := newCrashClient(t, addr).RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j"})
	if !errors.Is(err, want) || want != nil && status.Code(err) != codes.Unavailable {
		t.Errorf("record: %v, want %v", err, want)
	}
}

// wantHealth waits until the health service says so: it looks at the store from time to time.
func wantHealth(t *testing.T, addr string, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), new(grpc_health_v1.HealthCheckRequest))
	if err != nil {
		t.Fatal(err)
	}
	for {
		answer, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetStatus() == want {
			return
		}
	}
}
