package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

// NodeExample is a program of examples/node, "frontend" or "worker", with its packages and the client as a user has it.
func NodeExample(t testing.TB, program string) *exec.Cmd {
	t.Helper()
	sdk, example := NodeSDK(t), filepath.Join(Root(t), "examples", "node")
	lock := []string{filepath.Join(example, "package.json"), filepath.Join(example, "package-lock.json")}
	packages := Cached(t, "example-node-"+filepath.Base(sdk), lock, func(dir string) error {
		CopyFiles(t, dir, lock...)
		return Script(t, dir, `
			npm ci --silent --ignore-scripts --no-audit --no-fund
			npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefer-offline `+sdk+`/jobonce-*.tgz`)
	})
	dir := t.TempDir()
	CopyFiles(t, dir, lock[0], filepath.Join(example, program+".mjs"))
	Must(t, os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")))
	return exec.Command("node", filepath.Join(dir, program+".mjs"))
}

// PythonExample is NodeExample for examples/python.
func PythonExample(t testing.TB, program string) *exec.Cmd {
	t.Helper()
	sdk, _ := PythonSDK(t)
	root := filepath.Dir(filepath.Dir(filepath.Dir(sdk))) // of the client: venv/bin/python is below it
	example := filepath.Join(Root(t), "examples", "python")
	requirements := filepath.Join(example, "requirements.txt")
	packages := Cached(t, "example-python-"+filepath.Base(root), []string{requirements}, func(dir string) error {
		CopyFiles(t, dir, requirements)
		return Script(t, dir, `
			python3 -m venv .
			bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r requirements.txt "$(ls `+root+`/wheel/*.whl)"`)
	})
	return exec.Command(filepath.Join(packages, "bin", "python"), filepath.Join(example, program+".py"))
}

// Example is an example that runs.
type Example struct {
	// Stop asks it to end, and fails the test unless it does so in order. The test's end calls it too.
	Stop  func()
	log   Tail
	ended chan struct{}
}

// StartExample starts an example, with more in its environment.
func StartExample(t testing.TB, cmd *exec.Cmd, env ...string) *Example {
	t.Helper()
	e := &Example{ended: make(chan struct{})}
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &e.log, &e.log
	Must(t, cmd.Start())
	var err error
	go func() {
		err = cmd.Wait()
		close(e.ended)
	}()
	e.Stop = sync.OnceFunc(func() {
		OK(t, cmd.Process.Signal(syscall.SIGTERM))
		<-e.ended
		if err != nil && !stoppedBySignal(cmd) {
			t.Errorf("%v does not stop in order: %v", cmd.Args, err)
		}
	})
	t.Cleanup(func() {
		e.Stop()
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, &e.log)
		}
	})
	return e
}

// stoppedBySignal: uvicorn stops in order, and then raises the signal that it was sent once more.
func stoppedBySignal(cmd *exec.Cmd) bool {
	s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGTERM
}

var exampleListens = regexp.MustCompile(`(?:listening on |running on http://)(127\.0\.0\.1:\d+)`)

// Address waits until a frontend listens, and returns where.
func (e *Example) Address(t testing.TB) string {
	t.Helper()
	look, late := time.NewTicker(10*time.Millisecond), time.After(readyTimeout)
	defer look.Stop()
	for {
		if match := exampleListens.FindStringSubmatch(e.log.String()); match != nil {
			return match[1]
		}
		select {
		case <-look.C:
		case <-e.ended:
			t.Fatal("the frontend ended, and did not listen")
		case <-late:
			t.Fatal("the frontend does not listen")
		}
	}
}
