package sdk_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// loads are programs that make 64 calls at a time with the client of each language.
var loads = map[string]func(t *testing.T, args ...string) *exec.Cmd{
	"node": func(t *testing.T, args ...string) *exec.Cmd {
		code, err := os.ReadFile("node/test/load.mjs")
		testenv.Must(t, err)
		return nodeFile(t, project(t), "load.mjs", string(code), args...)
	},
	"python": func(t *testing.T, args ...string) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, append([]string{"python/tests/load.py"}, args...)...)
	},
}

// load is such a program under way.
type load struct {
	stdin  io.Closer
	stdout *json.Decoder
	stderr *testenv.Tail
	cmd    *exec.Cmd
}

type progress struct {
	Answered int
	Problems []string
	Ended    bool
}

func startLoad(t *testing.T, cmd *exec.Cmd) *load {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	testenv.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	stderr := new(testenv.Tail)
	cmd.Stderr = stderr
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close() })
	return &load{stdin, json.NewDecoder(stdout), stderr, cmd}
}

// next is what it says next: every 100 answers, and at its end.
func (l *load) next(t *testing.T) (p progress) {
	t.Helper()
	testenv.Must(t, l.stdout.Decode(&p))
	return p
}

// TestRollingRestart restarts two services on one database in turn under 64 calls at a time from one process of each language: none
// fails, and each job is started once.
func TestRollingRestart(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	two := []*testenv.Service{
		serve(t, "--mongodb-uri", uri, "--mongodb-database", database), serve(t, "--mongodb-uri", uri, "--mongodb-database", database),
	}
	target := two[0].Addr() + "," + two[1].Addr()
	running := make(map[string]*load)
	for name, command := range loads {
		running[name] = startLoad(t, command(t, target, name))
	}
	getOn := func() {
		for range 3 {
			for _, l := range running {
				l.next(t)
			}
		}
	}
	for _, service := range two {
		getOn()
		testenv.Must(t, service.Stop())
		getOn()
		testenv.Must(t, service.Start())
	}
	getOn()
	for name, l := range running {
		_ = l.stdin.Close()
		p := l.next(t)
		for !p.Ended {
			p = l.next(t)
		}
		for _, problem := range p.Problems {
			t.Errorf("%s: %s", name, problem)
		}
		t.Logf("%s: %d calls", name, p.Answered)
		testenv.OK(t, l.cmd.Wait())
		if warnings := l.stderr.String(); warnings != "" { // As of listeners that pile up.
			t.Errorf("%s writes to its standard error: %s", name, warnings)
		}
	}
}
