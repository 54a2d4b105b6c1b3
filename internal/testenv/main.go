package testenv

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests, stops the databases that they started, and fails if a goroutine is left:
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// The databases end with the process anyway, even when it is killed; Main makes the process wait until they have. In a
// process that a test started in one of the roles, Main plays that role instead.
func Main(m interface{ Run() int }, roles ...Roles) int {
	if role := os.Getenv(envRole); role != "" && len(roles) > 0 {
		return roles[0].play(role)
	}
	code := m.Run()
	if shared.server != nil && shared.server.stop != nil {
		shared.server.stop()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Long tells whether the long modes of tests were asked for: CONTRIBUTING.md says what they are.
func Long() bool { return os.Getenv("JOBONCE_TEST_LONG") != "" }

// Seed returns a seed for what a test chooses at random. A failing test prints it, and the environment can repeat it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("JOBONCE_TEST_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("JOBONCE_TEST_SEED=%d repeats the choices, though not how they meet", seed)
	return seed
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// OK fails the test if there is an error, and goes on.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
