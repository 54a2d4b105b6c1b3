package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// languages are the clients that are packages of their own, installed as a user has them.
var languages = map[string]func(t *testing.T) *exec.Cmd{
	"node": func(t *testing.T) *exec.Cmd {
		dir := testenv.NodeSDK(t)
		// Beside the installed package, which is how Node finds it.
		driver := filepath.Join(dir, "project", "conformance.mjs")
		link(t, filepath.Join(dir, "source", "test", "conformance.mjs"), driver)
		return exec.Command("node", "--preserve-symlinks-main", driver)
	},
	"python": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "../python/tests/conformance.py", "sync")
	},
	"python-asyncio": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "../python/tests/conformance.py", "aio")
	},
}

func link(t *testing.T, file, name string) {
	t.Helper()
	if err := os.Symlink(file, name); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
}

// TestLanguages puts the clients of other languages through all scenarios.
func TestLanguages(t *testing.T) {
	for name, command := range languages {
		t.Run(name, func(t *testing.T) {
			cmd := command(t)
			log := new(strings.Builder)
			cmd.Stderr = log
			for _, o := range fared(t, Process(cmd), patience) {
				for _, problem := range o.Problems {
					t.Errorf("%s: %s", o.Scenario.Name, problem)
				}
			}
			if t.Failed() {
				t.Logf("%s", log)
			}
		})
	}
}
