package chaostest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/testenv"
)

// process is a service in a process of its own, perhaps under a tracer.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   *tail
	addr  string
	pid   int // of the service; cmd's own may be the tracer's
}

// startTimeout is when a service that does not become ready is ended.
const startTimeout = 30 * time.Second

// startProcess starts the test binary as a service and returns once that is ready; tracer is a command that runs it, or
// empty. The error says what the service wrote when it ended before.
func startProcess(tracer, env, args []string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := append(append(append([]string{}, tracer...), self), args...)
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: &tail{}}
	// Not the whole environment of whoever runs the tests: it may set flags.
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), envRole + "=" + roleService,
		"GORACE=halt_on_error=1"}, env...) // A race ends the service, which whoever kills it then finds.
	p.cmd.Stderr = p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(startTimeout, func() { _ = p.stdin.Close() })
	line, err := bufio.NewReader(out).ReadString('\n')
	timer.Stop()
	if err == nil {
		_, err = fmt.Sscanf(line, "serving %s %d", &p.addr, &p.pid)
	}
	if err != nil {
		_ = p.stdin.Close()
		return nil, fmt.Errorf("the service did not start: %w, %v: %s", err, p.cmd.Wait(), p.log)
	}
	return p, nil
}

// kill ends the service as a crash does and waits until it is gone. It fails when the service had ended by itself.
func (p *process) kill() error {
	// The tracer ends with what it traces; if it does not, the pipe's end does it.
	killed := syscall.Kill(p.pid, syscall.SIGKILL)
	_ = p.stdin.Close()
	err := p.cmd.Wait()
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if killed != nil || !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("the service had ended before it was killed: %v: %s", err, p.log)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailBytes = 16 << 10

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = append(w.end, b...)
	if len(w.end) > 2*tailBytes {
		w.end = append([]byte(nil), w.end[len(w.end)-tailBytes:]...)
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.end)
}

// instance is a service that is killed and started again, behind a relay with one address.
type instance struct {
	*testenv.Relay
	name string
	env  []string
	args []string
	proc *process // nil when it does not run
	log  string   // the end of what the processes before wrote
}

func newInstance(t *testing.T, name string, env []string, args ...string) *instance {
	t.Helper()
	i := &instance{Relay: testenv.StartRelay(t, ""), name: name, env: env, args: args}
	if err := i.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of %s's log:\n%s", name, i.log)
		}
	})
	return i
}

func (i *instance) start(tracer ...string) error {
	p, err := startProcess(tracer, i.env, i.args)
	if err != nil {
		i.log = err.Error()
		return err
	}
	i.proc = p
	i.To(p.addr)
	return nil
}

func (i *instance) kill() error {
	if i.proc == nil {
		return nil
	}
	err := i.proc.kill()
	i.log = i.proc.log.String()
	i.proc = nil
	i.To("")
	return err
}
