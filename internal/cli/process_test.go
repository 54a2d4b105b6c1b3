package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"syscall"
)

// process is a "jobonce serve" of its own process: the test binary under that name, see TestMain.
type process struct {
	cmd    *exec.Cmd
	ready  string // The line that it printed.
	addr   string // The address in that line.
	stderr bytes.Buffer
	rest   chan string // What it printed after that line, once it ended.
}

var readyLine = regexp.MustCompile(`^jobonce serving on (\S+), (?:embedded store .+|MongoDB .+)\n$`)

// startServe starts the service in dir and returns once it says that it is ready. The caller must end it.
func startServe(dir string, env []string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command("jobonce", append([]string{"serve"}, args...)...), rest: make(chan string, 1)}
	p.cmd.Dir = dir
	// Not the whole environment of whoever runs the tests: it may set flags.
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, env...)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	out := bufio.NewReader(stdout)
	p.ready, err = out.ReadString('\n')
	match := readyLine.FindStringSubmatch(p.ready)
	if err != nil || match == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return nil, fmt.Errorf("serve is not ready: it printed %q (%v), and on standard error:\n%s", p.ready, err, &p.stderr)
	}
	p.addr = match[1]
	go func() {
		rest, _ := io.ReadAll(out)
		p.rest <- string(rest)
	}()
	return p, nil
}

// stop asks the service to end, and fails unless it does so in order and has printed nothing but its one line.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	rest := <-p.rest
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w; on standard error:\n%s", err, &p.stderr)
	}
	if rest != "" {
		return fmt.Errorf("serve printed more than one line: %q", rest)
	}
	return nil
}

// kill ends the service as a crash does: it cannot do anything about it. It fails when the service ended before.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.rest
	_ = p.cmd.Wait()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("serve ended before it was killed: %v; on standard error:\n%s", p.cmd.ProcessState, &p.stderr)
	}
	return nil
}
