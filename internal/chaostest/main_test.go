// Package chaostest runs the service in processes of its own, puts it and its clients under random faults, and checks what
// the clients were told against each other and against what is stored when all is quiet again. docs/reliability.md has
// what is injected and what is checked.
package chaostest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

// envRole makes the test binary the service instead of a test.
const envRole = "JOBONCE_CHAOSTEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(envRole) == roleService {
		go func() { // The test holds the other end, so that a process never outlives it.
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		if err := serviceMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := testenv.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
