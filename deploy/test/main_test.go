// Package deploy_test holds what is under deploy to what it is for: manifests to the types of Kubernetes, queries to the metrics of
// a running service, units to systemd, the image to a process with nothing but its files.
package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", path))
	must(t, err)
	return string(b)
}

var built struct {
	once sync.Once
	dir  string
	path string
	err  error
	out  []byte
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

// binary is the program as the Dockerfile builds it.
func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "jobonce-deploy"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "jobonce")
		cmd := exec.Command("go", "build", "-trimpath", "-o", built.path, "./cmd/jobonce")
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		built.out, built.err = cmd.CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("%v: %s", built.err, built.out)
	}
	return built.path
}

// skip skips a test for want of something that CI has.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// process is a command that serves, and its first line.
type process struct {
	cmd  *exec.Cmd
	line string
}

// start starts a command, and waits for its first line. The test's end asks it to end, which it must do in order.
func start(t *testing.T, env []string, argv ...string) *process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	p := &process{cmd, lines.Text()}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil && p.line != "" {
			t.Errorf("%v: %v: %s", argv, err, log.String())
		}
	})
	if p.line == "" {
		_ = cmd.Wait()
		t.Fatalf("%v does not serve: %s", argv, log.String())
	}
	return p
}

// address is where the service says that it serves.
func (p *process) address() string { return strings.TrimSuffix(strings.Fields(p.line)[3], ",") }

// run runs a command to its end and returns what it wrote.
func run(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// onSocket asks an HTTP server on a Unix socket.
func onSocket(t *testing.T, socket, path string) []byte {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Get("http://localhost" + path)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", path, resp.Status, body)
	}
	return body
}
