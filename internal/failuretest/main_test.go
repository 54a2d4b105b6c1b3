// Package failuretest shows, over real connections and with the real client, server and stores, what becomes of a job
// when something fails. docs/failures.md has the list. Some tests run parts of themselves in processes of their own, to
// kill them.
package failuretest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
)

// envRole makes the test binary something else than a test.
const envRole = "JOBONCE_TEST_ROLE"

// roles are what a process of its own can be: they take the arguments and return the exit code.
var roles = map[string]func(args []string) int{
	"jobonce":  func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
	"frontend": frontendMain,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		go func() { // The test holds the other end, so that a process never outlives it.
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		os.Exit(roles[role](os.Args[1:]))
	}
	code := testenv.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// command is the test binary in a role. It ends at once when stdin is closed.
func command(role string, args ...string) (cmd *exec.Cmd, stdin io.Closer, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd = exec.Command(self, args...)
	// Not the whole environment of whoever runs the tests: it may set flags.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), envRole + "=" + role}
	in, err := cmd.StdinPipe()
	return cmd, in, err
}
