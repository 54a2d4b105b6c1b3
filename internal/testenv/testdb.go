package testenv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Bounds on the script. It bounds its own waits as well, each a little shorter.
const (
	installTimeout = 40 * time.Minute
	commandTimeout = 3 * time.Minute
)

// Mongo is a database that a test can kill and start again.
type Mongo struct {
	URI string
	dir string
}

// PrivateMongo starts a database for this test alone and stops it at the test's end: for tests that kill the database,
// because go test runs packages side by side and the others may be using the shared one. It takes about a second once
// testdb has been installed. Where testdb cannot run, it skips the test, or fails it when CI is set.
func PrivateMongo(t testing.TB) *Mongo {
	t.Helper()
	s, err := startTestdb()
	if err != nil {
		unavailable(t, err)
	}
	t.Cleanup(s.stop)
	return &Mongo{URI: s.uri, dir: s.dir}
}

// Kill ends the database as kill -9 does, the gateway with it. What it had acknowledged is on disk. The test's end
// starts it again.
func (m *Mongo) Kill(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { m.Start(t) })
	m.testdb(t, "kill-db")
}

// Start starts a killed database on the same port and data, and returns when it answers. It does nothing to one that
// runs.
func (m *Mongo) Start(t testing.TB) {
	t.Helper()
	m.testdb(t, "start-db")
}

// Restart kills the database as kill -9 does and starts it again at once. It may be called from any goroutine.
func (m *Mongo) Restart() error { return runTestdb(commandTimeout, "restart-db", m.dir) }

func (m *Mongo) testdb(t testing.TB, command string) {
	t.Helper()
	Must(t, runTestdb(commandTimeout, command, m.dir))
}

// startTestdb starts a database that lives until stop is called or this process ends, in whatever way: the script
// holds the reading end of a pipe from this process, and cleans up when that closes.
func startTestdb() (*server, error) {
	if err := runTestdb(installTimeout, "install"); err != nil {
		return nil, err
	}
	script, err := testdbPath()
	if err != nil {
		return nil, err
	}
	const hold = `echo "$` + envURI + `" && echo "$` + envDir + `" && exec cat >/dev/null`
	cmd := exec.Command("bash", script, "run", "sh", "-c", hold)
	cmd.Stderr = os.Stderr
	stop, lines, err := startHeld(cmd)
	if err != nil {
		return nil, fmt.Errorf("testdb run: %w", err)
	}
	timer := time.AfterFunc(commandTimeout, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer timer.Stop()
	uri, _ := lines.ReadString('\n')
	dir, err := lines.ReadString('\n')
	if err != nil {
		stop()
		return nil, errors.New("testdb could not start a database; its message is above")
	}
	return &server{uri: strings.TrimSpace(uri), dir: strings.TrimSpace(dir), stop: stop}, nil
}

// startHeld starts a command that is to end when its input does. stop closes the input and waits for the command;
// when it takes too long, with a signal.
func startHeld(cmd *exec.Cmd) (stop func(), stdout *bufio.Reader, err error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() {
		stdin.Close()
		timer := time.AfterFunc(commandTimeout, func() { cmd.Process.Signal(syscall.SIGTERM) })
		defer timer.Stop()
		cmd.Wait()
	}
	return stop, bufio.NewReader(out), nil
}

// runTestdb runs one of the script's commands to its end. The script's own message is the error.
func runTestdb(timeout time.Duration, args ...string) error {
	script, err := testdbPath()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var message bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", append([]string{script}, args...)...)
	cmd.Stderr = io.MultiWriter(os.Stderr, &message) // a first install says what it is doing for minutes
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("testdb %s: %w: %s", args[0], err, bytes.TrimSpace(message.Bytes()))
	}
	return nil
}

// testdbPath finds the script beside this file, or, in a binary built with -trimpath, from the working directory,
// which under go test is that of the package.
func testdbPath() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "testdb"), nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		script := filepath.Join(dir, "internal", "testenv", "testdb")
		if _, err := os.Stat(script); err == nil {
			return script, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the script internal/testenv/testdb is not above the working directory")
		}
		dir = parent
	}
}
