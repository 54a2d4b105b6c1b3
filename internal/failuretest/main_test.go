// Package failuretest shows, over real connections and with the real client, server and stores, what becomes of a job
// when something fails. docs/failures.md has the list. Some tests run parts of themselves in processes of their own, to
// kill them.
package failuretest

import (
	"os"
	"regexp"
	"testing"

	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{
		"jobonce":  func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
		"frontend": frontendMain,
	}))
}

var readyLine = regexp.MustCompile(`^jobonce serving on (\S+), `)

// embeddedServe and mongodbServe say where the service keeps its jobs.
func embeddedServe(t *testing.T) *testenv.Service {
	return startServe(t, nil, "--data-dir", t.TempDir())
}

func mongodbServe(t *testing.T) *testenv.Service {
	uri := testenv.MongoURI(t)
	return startServe(t, []string{"MONGODB_URI=" + uri}, "--mongodb-database", testenv.Database(t))
}

// startServe runs "jobonce serve".
func startServe(t *testing.T, env []string, args ...string) *testenv.Service {
	t.Helper()
	return testenv.StartService(t, testenv.Program{
		Role: "jobonce", Env: env, Args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...),
	}, readyLine)
}

// must ends a test in which what it needs fails.
func must(t *testing.T, err error) {
	t.Helper()
	testenv.Must(t, err)
}
