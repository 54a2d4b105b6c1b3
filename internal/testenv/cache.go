package testenv

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Need skips the test when one of the programs is missing, or fails it when CI is set in the environment.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("no %s, and CI is set", program)
			}
			t.Skipf("NOT TESTED, because there is no %s", program)
		}
	}
}

// NeedStrace is Need for strace 5.3 or later and the right to use it, which a container may not have.
func NeedStrace(t testing.TB) {
	t.Helper()
	Need(t, "strace")
	args := []string{"-f", "--seccomp-bpf", "-qq", "-o", os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true"}
	if out, err := exec.Command("strace", args...).CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("strace cannot inject faults, and CI is set: %v: %s", err, out)
		}
		t.Skipf("NOT TESTED, because strace cannot inject faults: %v: %s", err, out)
	}
}

// Cached returns a directory in the tests' cache, which is outside of the tree. Its name is made of name and of what the
// files inputs hold; fill fills it, once for each such name.
func Cached(t testing.TB, name string, inputs []string, fill func(dir string) error) string {
	t.Helper()
	cache := os.Getenv("JOBONCE_TEST_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		Must(t, err)
		cache = filepath.Join(user, "jobonce-test")
	}
	sum := sha256.New()
	for _, input := range inputs {
		b, err := os.ReadFile(input)
		Must(t, err)
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(input), len(b), b)
	}
	dir := filepath.Join(cache, fmt.Sprintf("%s-%x", name, sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	Must(t, os.MkdirAll(cache, 0o755))
	half, err := os.MkdirTemp(cache, name+"-half-made-")
	Must(t, err)
	defer os.RemoveAll(half)
	Must(t, fill(half))
	// Another process may have been faster, and its directory is the same.
	if err := os.Rename(half, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// Run runs a command in dir for a fill function of [Cached]. The error has what it printed.
func Run(t testing.TB, dir, name string, args ...string) error {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
