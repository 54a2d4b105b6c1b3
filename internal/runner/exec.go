package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jobonce/jobonce/client"
)

// ExecConfig says how a command is run for a job.
type ExecConfig struct {
	// Command is the program and its arguments. No shell reads it.
	Command []string
	// Timeout is how long it may run.
	Timeout time.Duration
	// KillAfter is how long it may go on after the SIGTERM that asks it to end, when it is to be killed.
	KillAfter time.Duration
	// DeadExit are the exit codes that say that the job will never be done.
	DeadExit []int
}

// command runs a program for each job.
type command struct {
	ExecConfig
	path string
	env  []string
}

// NewExec makes the function that runs a command for each job: exit code 0 completes it. docs/worker.md says what the command
// gets, and what its end does.
func NewExec(cfg ExecConfig) (client.WorkFunc, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("the command is empty")
	}
	path, err := exec.LookPath(cfg.Command[0])
	if err != nil {
		return nil, fmt.Errorf("the command cannot be run: %w", err)
	}
	return whole((&command{cfg, path, environment(os.Environ())}).work), nil
}

// environment is what a command may know of ours: nothing that could hold a secret of JobOnce's, and no fact about another job.
func environment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "JOBONCE_") || name == "MONGODB_URI" || name == "TRACEPARENT"
	})
}

// work runs the command for one job.
func (c *command) work(ctx context.Context, w *client.Work) error {
	timed, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	input, _ := body(w.Job)
	stdout, stderr := &head{limit: maxResultBytes + moreBytes}, &tail{limit: maxErrorBytes - 256} // room for what happened
	cmd := exec.Command(c.path, c.Command[1:]...)
	cmd.Args[0] = c.Command[0]
	cmd.Env = c.env
	for _, v := range about(w) {
		// No variable can hold a NUL. A command that does not start because of one would be taken for one that is missing.
		cmd.Env = append(slices.Clip(cmd.Env), v.variable+"="+strings.ReplaceAll(v.value, "\x00", "\uFFFD"))
	}
	if trace := traceparent(w.Job); trace != "" {
		cmd.Env = append(slices.Clip(cmd.Env), "TRACEPARENT="+trace)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	// A child that was left behind and keeps the output open does not hold up the job.
	cmd.WaitDelay = c.KillAfter
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return client.Unavailable(&failure{happened: "the command could not be started: " + err.Error()})
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-timed.Done():
		c.end(cmd, ended)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &failure{fmt.Sprintf("the command did not end within %v", c.Timeout), stderr.text()}
	}
	// A child that keeps the output open, or an input that is not read to its end, is no failure of the command.
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return w.SetResult(clean(stdout.kept, maxResultBytes))
	}
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		return &failure{happened: "the command could not be followed: " + err.Error()}
	}
	err = &failure{"the command ended with " + cmd.ProcessState.String(), stderr.text()}
	if slices.Contains(c.DeadExit, cmd.ProcessState.ExitCode()) {
		return client.Permanent(err)
	}
	return err
}

// end asks the command, and all that it has started in its process group, to end, and then kills what is left.
func (c *command) end(cmd *exec.Cmd, ended <-chan error) {
	askGroup(cmd)
	timer := time.NewTimer(c.KillAfter)
	defer timer.Stop()
	select {
	case <-ended:
		killGroup(cmd) // what it has left behind
	case <-timer.C:
		killGroup(cmd)
		<-ended
	}
}

// head keeps the beginning of what is written to it.
type head struct {
	limit int
	kept  []byte
}

func (h *head) Write(b []byte) (int, error) {
	h.kept = append(h.kept, b[:min(len(b), h.limit-len(h.kept))]...)
	return len(b), nil
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b[max(0, len(b)-t.limit):]...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = slices.Delete(t.kept, 0, over)
	}
	return len(b), nil
}

func (t *tail) text() string { return strings.TrimSpace(clean(t.kept, t.limit)) }
