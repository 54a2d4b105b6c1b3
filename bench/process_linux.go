package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end before it is killed.
const stopTimeout = 20 * time.Second

// process is one that this run started, and that it ends. It is in a process group of its own, so that Ctrl-C reaches
// it through us alone. When we are killed, it is killed too, or ends with its input.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	log    string
	// ask asks it to end.
	ask func()
}

// start starts a command whose standard error goes to a log in dir. SIGTERM asks it to end, and the kernel kills it
// when we die.
func start(dir, name string, cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return startCommand(dir, name, cmd)
}

// startHeld starts a command that ends with its input, and so also when we die, in whatever way: for one that has to
// clean up then.
func startHeld(dir, name string, cmd *exec.Cmd) (*process, error) {
	p, err := startCommand(dir, name, cmd)
	if err != nil {
		return nil, err
	}
	p.ask = func() { _ = p.stdin.Close() }
	return p, nil
}

func startCommand(dir, name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd}
	p.ask = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	log, err := os.CreateTemp(dir, name+".*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p.log = log.Name()
	cmd.Stderr = log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdout = bufio.NewReader(stdout)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// line reads a line of its output, within a time.
func (p *process) line(ctx context.Context, within time.Duration) (string, error) {
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		line, err := p.stdout.ReadString('\n')
		got <- read{line, err}
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case r := <-got:
		if r.err != nil {
			return "", p.failed(errors.New("it has ended"))
		}
		return strings.TrimSuffix(r.line, "\n"), nil
	case <-timer.C:
		return "", p.failed(fmt.Errorf("no answer within %v", within))
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// failed adds the end of the process's log to what went wrong with it.
func (p *process) failed(err error) error {
	text, _ := os.ReadFile(p.log)
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return fmt.Errorf("%s: %w; the end of its log:\n%s", p.name, err, text)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process: it is asked to, and killed when that takes too long.
func (p *process) stop() {
	p.ask()
	kill := time.AfterFunc(stopTimeout, func() { _ = syscall.Kill(-p.pid(), syscall.SIGKILL) })
	defer kill.Stop()
	_ = p.cmd.Wait()
}

// environment is what the processes of ours get: not all of ours, which may set flags of JobOnce.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "GOMAXPROCS"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
