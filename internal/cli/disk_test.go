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
)

// TestDiskFails lets the disk of a service fail to flush: the call that it was for has an unknown outcome, health says so,
// and the service ends by itself, saying why. One that is started again without the fault goes on.
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

	p, err := startServe(dir, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	// From now on the log cannot be flushed.
	tracer := exec.Command(strace, "-f", "-o", os.DevNull, "-P", filepath.Join(dir, "data", "jobonce.db-wal"), "-e", "trace=fsync",
		"-e", "inject=fsync:error=EIO", "-p", strconv.Itoa(p.cmd.Process.Pid))
	stderr, err := tracer.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
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

// wantBroken waits until the service has ended because of its store.
func (p *process) wantBroken(t *testing.T, why string) {
	t.Helper()
	<-p.rest
	_ = p.cmd.Wait()
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	last := lines[len(lines)-1]
	if code := p.cmd.ProcessState.ExitCode(); code != exitBroken || !strings.Contains(last, why) || !strings.Contains(last, "a restart may mend") {
		t.Errorf("exit code %d, and its last line is %q; want %d, and %q", code, last, exitBroken, why)
	}
}

func watchHealth(t *testing.T, addr string) grpc_health_v1.Health_WatchClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), new(grpc_health_v1.HealthCheckRequest))
	if err != nil {
		t.Fatal(err)
	}
	return watch
}

// wantHealth waits until the health service says so.
func wantHealth(t *testing.T, watch grpc_health_v1.Health_WatchClient, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
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
			p, err := startServe(dir, nil, "--listen", "127.0.0.1:0", "--data-dir", "data")
			if err != nil {
				t.Fatal(err)
			}
			recordWant(t, p.addr, nil)
			health := watchHealth(t, p.addr)
			wantHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
			if err := c.do(filepath.Join(dir, "data")); err != nil {
				t.Fatal(err)
			}
			if c.call {
				_, err := newCrashClient(t, p.addr).RecordDelivery(t.Context(), &joboncev1.RecordDeliveryRequest{JobId: "j"})
				if status.Code(err) != codes.Unavailable {
					t.Errorf("record: %v", err)
				}
			}
			wantHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			if err := p.stop(); err != nil { // which it could not be any more if it had ended
				t.Error(err)
			}
			if !strings.Contains(p.stderr.String(), c.why) {
				t.Errorf("logged %s, want %q", &p.stderr, c.why)
			}
		})
	}
}
