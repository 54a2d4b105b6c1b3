package cli

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestDiskFails lets the disk of a service fail to flush: the call that it was for has an unknown outcome, health says so,
// and the service ends by itself, saying why. One that is started again without the fault goes on.
func TestDiskFails(t *testing.T) {
	testenv.NeedStrace(t)
	dir := t.TempDir()
	first := serveEmbedded(t, dir)
	recordWant(t, first.addr, nil)
	testenv.Must(t, first.stop())

	p := serveEmbedded(t, dir)
	// From now on the log cannot be flushed.
	tracer := exec.Command("strace", "-f", "-o", os.DevNull, "-P", filepath.Join(dir, "data", "jobonce.db-wal"), "-e", "trace=fsync",
		"-e", "inject=fsync:error=EIO", "-p", strconv.Itoa(p.Cmd.Process.Pid))
	stderr, err := tracer.StderrPipe()
	testenv.Must(t, err)
	testenv.Must(t, tracer.Start())
	defer func() { _ = tracer.Wait() }() // it ends with the service
	said := bufio.NewReader(stderr)
	for line := ""; !strings.Contains(line, "attached"); {
		if line, err = said.ReadString('\n'); err != nil {
			t.Fatalf("strace does not attach: %v", err)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	health := watchHealth(t, p.addr)
	wantHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
	recordWant(t, p.addr, client.ErrOutcomeUnknown)
	wantHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	p.wantBroken(t, "out of service: commit: the disk fails: ")

	last := serveEmbedded(t, dir)
	recordWant(t, last.addr, nil)
	got, err := newClient(t, last.addr).GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC)
	if err != nil || got.GetDeliveries() < 2 || got.GetDeliveries() > 3 {
		t.Errorf("%d deliveries, %v; two were acknowledged, and one may have been written", got.GetDeliveries(), err)
	}
	testenv.OK(t, last.stop())
}

// recordWant records a delivery and wants it to end so.
func recordWant(t *testing.T, addr string, want error) {
	t.Helper()
	_, err := newClient(t, addr).RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j"})
	if !errors.Is(err, want) || want != nil && status.Code(err) != codes.Unavailable {
		t.Errorf("record: %v, want %v", err, want)
	}
}

// newClient makes a client that never retries: each call must count once.
func newClient(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.New(addr, client.WithoutRetry())
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, c.Close()) })
	return c
}

// wantBroken waits until the service has ended because of its store.
func (p *process) wantBroken(t *testing.T, why string) {
	t.Helper()
	_ = p.Wait()
	lines := strings.Split(strings.TrimSpace(p.Log.String()), "\n")
	last := lines[len(lines)-1]
	if code := p.Cmd.ProcessState.ExitCode(); code != exitBroken || !strings.Contains(last, why) || !strings.Contains(last, "a restart may mend") {
		t.Errorf("exit code %d, and its last line is %q; want %d, and %q", code, last, exitBroken, why)
	}
}

func watchHealth(t *testing.T, addr string) grpc_health_v1.Health_WatchClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, conn.Close()) })
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), new(grpc_health_v1.HealthCheckRequest))
	testenv.Must(t, err)
	return watch
}

// wantHealth waits until the health service says so.
func wantHealth(t *testing.T, watch grpc_health_v1.Health_WatchClient, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	for {
		answer, err := watch.Recv()
		testenv.Must(t, err)
		if answer.GetStatus() == want {
			return
		}
	}
}

// TestServedDirectoryIsGone removes the data directory of a service, or puts another file into it: it acknowledges nothing
// more and says why, also when nobody calls it. It does not end: started again it would take known jobs for first ones.
func TestServedDirectoryIsGone(t *testing.T) {
	for _, c := range []struct {
		name, why string
		do        func(dir string) error
		call      bool
	}{
		{"removed", "was removed or moved while it was served", os.RemoveAll, true},
		{"removed, and no call comes", "was removed or moved while it was served", os.RemoveAll, false},
		{"replaced", "was replaced by another file while it was served", func(dir string) error {
			other := filepath.Join(dir, "other")
			return errors.Join(os.WriteFile(other, nil, 0o600), os.Rename(other, filepath.Join(dir, "jobonce.db")))
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p := serveEmbedded(t, dir)
			recordWant(t, p.addr, nil)
			health := watchHealth(t, p.addr)
			wantHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
			testenv.Must(t, c.do(filepath.Join(dir, "data")))
			if c.call {
				_, err := newClient(t, p.addr).RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j"})
				if status.Code(err) != codes.Unavailable {
					t.Errorf("record: %v", err)
				}
			}
			wantHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			if err := p.stop(); err != nil { // which it could not be any more if it had ended
				t.Error(err)
			}
			if !strings.Contains(p.Log.String(), c.why) {
				t.Errorf("logged %s, want %q", &p.Log, c.why)
			}
		})
	}
}
