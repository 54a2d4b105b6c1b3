package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envRole makes a test binary something else than tests.
const envRole = "JOBONCE_TEST_ROLE"

// RaceOptions has the race detector end a process at the first race, which whoever waits for the process then finds. Without
// the rest, a process that was built with the detector sleeps for a second before it ends, to see whether there is one more.
const RaceOptions = "halt_on_error=1 atexit_sleep_ms=0"

// Roles are what a test binary can be instead of tests: functions that take the arguments and return the exit code.
type Roles map[string]func(args []string) int

// play plays the role that the environment names. Such a process ends when its input does, so that it never outlives the
// test that started it.
func (r Roles) play(role string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	return r[role](os.Args[1:])
}

// Program is what a [Process] runs.
type Program struct {
	// Role is what the test binary is to be, one of those that its package gives to [Main]; Path is another program instead.
	Role, Path string
	Args       []string
	// Env is the environment besides PATH and TMPDIR. Others may set flags, so they are not passed on.
	Env []string
	Dir string
	// Under is a command that runs the program, such as a tracer.
	Under []string
}

// Process is a process that a test started.
type Process struct {
	Cmd *exec.Cmd
	// Pid is the program's, which is not Cmd's when it runs under another one and [Process.Ready] said so.
	Pid   int
	Stdin io.WriteCloser
	// Lines are what it writes to its standard output, closed at its end.
	Lines <-chan string
	// Log has the end of what it writes to its standard error.
	Log Tail

	read  chan struct{} // closed once Lines is
	ended sync.Once
	err   error
}

// Start starts the program. The caller must see to its end.
func (p Program) Start() (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), "GORACE=" + RaceOptions}
	path := p.Path
	if path == "" {
		path, env = self, append(env, envRole+"="+p.Role)
	}
	argv := append(append(append([]string{}, p.Under...), path), p.Args...)
	r := &Process{Cmd: exec.Command(argv[0], argv[1:]...), read: make(chan struct{})}
	r.Cmd.Dir, r.Cmd.Env, r.Cmd.Stderr = p.Dir, append(env, p.Env...), &r.Log
	if r.Stdin, err = r.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.Cmd.Start(); err != nil {
		return nil, err
	}
	r.Pid = r.Cmd.Process.Pid
	lines := make(chan string, 1<<16) // more than any of them writes, so that none waits for its reader
	r.Lines = lines
	go func() {
		defer close(r.read)
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			lines <- in.Text()
		}
	}()
	return r, nil
}

// readyTimeout is when a process that lives and does not become ready is ended. On a busy machine one may take a minute.
const readyTimeout = 5 * time.Minute

// Ready waits for the first line of the process, which must match, and returns what matched: the line, and the
// groups, of which the first is the address where it serves, and a second one its pid. A process that does not say so is
// ended.
func (p *Process) Ready(line *regexp.Regexp) (match []string, err error) {
	var said string
	select {
	case said = <-p.Lines:
	case <-time.After(readyTimeout):
	}
	match = line.FindStringSubmatch(said)
	if match == nil {
		_ = p.Stdin.Close()
		_ = p.Cmd.Process.Kill()
		return nil, fmt.Errorf("it is not ready: it printed %q, and ended with %w: %s", said, errors.Join(p.Wait()), &p.Log)
	}
	if len(match) > 2 {
		_, err = fmt.Sscan(match[2], &p.Pid)
	}
	return match, err
}

// Rest is what is left of Lines when the process has ended.
func (p *Process) Rest() string {
	var rest strings.Builder
	for line := range p.Lines {
		rest.WriteString(line + "\n")
	}
	return rest.String()
}

// Wait waits until the process has ended.
func (p *Process) Wait() error {
	p.ended.Do(func() {
		<-p.read
		p.err = p.Cmd.Wait()
		_ = p.Stdin.Close()
	})
	return p.err
}

// Kill ends the process as a crash does: it cannot do anything about it. It fails when the process had ended before.
func (p *Process) Kill() error {
	var killed error
	if p.Pid == p.Cmd.Process.Pid {
		killed = p.Cmd.Process.Kill()
	} else {
		// The tracer ends with what it traces; if it does not, the pipe's end does it.
		killed = syscall.Kill(p.Pid, syscall.SIGKILL)
	}
	_ = p.Stdin.Close()
	err := p.Wait()
	if killed != nil || p.EndedBy() != syscall.SIGKILL {
		return fmt.Errorf("it had ended before it was killed: %v: %s", err, &p.Log)
	}
	return nil
}

// Stop asks the process to end, and fails unless it does so in order.
func (p *Process) Stop() error {
	err := p.Cmd.Process.Signal(syscall.SIGTERM)
	if err := errors.Join(err, p.Wait()); err != nil {
		return fmt.Errorf("it did not stop in order: %w: %s", err, &p.Log)
	}
	return nil
}

// EndedBy is the signal that ended the process; 0 when it ended by itself.
func (p *Process) EndedBy() syscall.Signal {
	if s, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return s.Signal()
	}
	return 0
}

// Service is a program that serves, is killed and started again, behind a relay with one address.
type Service struct {
	*Relay
	Process *Process // nil when it does not run
	Direct  string   // the process's own address

	program Program
	ready   *regexp.Regexp
	log     string // the end of what the process before wrote
}

// StartService starts a program that says that it is ready as [Process.Ready] takes it. The test's end kills it, and fails
// the test if it had ended before.
func StartService(t testing.TB, program Program, ready *regexp.Regexp) *Service {
	t.Helper()
	s := &Service{Relay: StartRelay(t, ""), program: program, ready: ready}
	Must(t, s.Start())
	t.Cleanup(func() {
		OK(t, s.Kill())
		if t.Failed() {
			t.Logf("the end of the log of %v:\n%s", program.Args, s.log)
		}
	})
	return s
}

// Start starts the service again, under a command or by itself, and returns once it is ready.
func (s *Service) Start(under ...string) error {
	s.program.Under = under
	p, err := s.program.Start()
	var match []string
	if err == nil {
		match, err = p.Ready(s.ready)
	}
	if err != nil {
		s.log = err.Error()
		return err
	}
	s.Process, s.Direct = p, match[1]
	s.To(s.Direct)
	return nil
}

// Kill kills the service if it runs, and fails when it had ended by itself.
func (s *Service) Kill() error { return s.end((*Process).Kill) }

// Stop asks the service to end, and fails unless it does so in order.
func (s *Service) Stop() error { return s.end((*Process).Stop) }

// Log is the end of the log of the process that runs, or else of the last one.
func (s *Service) Log() string {
	if s.Process != nil {
		return s.Process.Log.String()
	}
	return s.log
}

func (s *Service) end(how func(*Process) error) error {
	if s.Process == nil {
		return nil
	}
	err := how(s.Process)
	s.log = s.Process.Log.String()
	s.Process = nil
	s.To("")
	return err
}

// Serving is the line by which jobonce serve says that it is ready, and where.
var Serving = regexp.MustCompile(`^jobonce serving on (\S+), `)

// StoreFlags are the flags that have a program keep jobs in either store, a new one each time.
var StoreFlags = map[string]func(t *testing.T) []string{
	"embedded": func(t *testing.T) []string { return []string{"--data-dir", t.TempDir()} },
	"MongoDB": func(t *testing.T) []string {
		return []string{"--mongodb-uri", MongoURI(t), "--mongodb-database", Database(t)}
	},
}
