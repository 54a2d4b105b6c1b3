package failuretest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// process is a process of its own: the test binary in a role.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	stderr bytes.Buffer
	ended  sync.Once
	err    error
}

// start starts a process, which the test's end kills if nobody did.
func start(t *testing.T, role string, env []string, args ...string) *process {
	t.Helper()
	p := &process{}
	var err error
	if p.cmd, p.stdin, err = command(role, args...); err != nil {
		t.Fatal(err)
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.kill()
		if t.Failed() {
			t.Logf("%s %v on standard error:\n%s", role, args, &p.stderr)
		}
	})
	return p
}

// wait waits for the process to end by itself. What it printed must have been read.
func (p *process) wait() error {
	p.ended.Do(func() {
		p.err = p.cmd.Wait()
		_ = p.stdin.Close()
	})
	return p.err
}

// kill ends the process as a crash does: it cannot do anything about it. It fails when the process ended by itself before.
func (p *process) kill() error {
	_ = p.cmd.Process.Kill()
	_ = p.wait()
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		return fmt.Errorf("it ended before it was killed: %v", p.cmd.ProcessState)
	}
	return nil
}

var readyLine = regexp.MustCompile(`^jobonce serving on (\S+), `)

// serving is a "jobonce serve" that is killed and started again, behind a relay with one address.
type serving struct {
	*testenv.Relay
	env    []string
	args   []string
	proc   *process
	direct string // the process's own address
}

// embeddedServe and mongodbServe say where the service keeps its jobs.
func embeddedServe(t *testing.T) *serving {
	return startServing(t, nil, "--data-dir", t.TempDir())
}

func mongodbServe(t *testing.T) *serving {
	uri := testenv.MongoURI(t)
	return startServing(t, []string{"MONGODB_URI=" + uri}, "--mongodb-database", testenv.Database(t))
}

func startServing(t *testing.T, env []string, args ...string) *serving {
	t.Helper()
	s := &serving{env: env, args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...), Relay: testenv.StartRelay(t, "")}
	s.start(t)
	return s
}

// start starts the service and returns once it is ready.
func (s *serving) start(t *testing.T) {
	t.Helper()
	s.proc = start(t, "jobonce", s.env, s.args...)
	line, err := s.proc.stdout.ReadString('\n')
	match := readyLine.FindStringSubmatch(line)
	if err != nil || match == nil {
		t.Fatalf("serve printed %q, %v", line, err)
	}
	s.direct = match[1]
	s.To(s.direct)
}

// crash kills the service. It fails if it had ended by itself.
func (s *serving) crash(t *testing.T) {
	t.Helper()
	if err := s.proc.kill(); err != nil {
		t.Fatal(err)
	}
	s.To("")
}
