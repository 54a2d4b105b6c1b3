package cli

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// process is a "jobonce serve" of its own process: the test binary under that name, see TestMain.
type process struct {
	*testenv.Process
	ready string // The line that it printed.
	addr  string // The address in that line.
}

var readyLine = regexp.MustCompile(`^jobonce serving on (\S+), (?:embedded store .+|MongoDB .+)\n?$`)

// startServe starts the service in dir and returns once it says that it is ready. The caller must end it.
func startServe(dir string, env []string, args ...string) (*process, error) {
	p, err := testenv.Program{Path: "jobonce", Dir: dir, Env: env, Args: append([]string{"serve"}, args...)}.Start()
	if err != nil {
		return nil, err
	}
	match, err := p.Ready(readyLine)
	if err != nil {
		return nil, err
	}
	return &process{p, match[0], match[1]}, nil
}

// serveEmbedded starts a service whose data are below dir.
func serveEmbedded(t *testing.T, dir string) *process {
	t.Helper()
	p, err := startServe(dir, nil, "--listen", "127.0.0.1:0", "--data-dir", "data")
	testenv.Must(t, err)
	return p
}

// stop asks the service to end, and fails unless it does so in order and has printed nothing but its one line.
func (p *process) stop() error {
	if err := p.Stop(); err != nil {
		return err
	}
	if rest := p.Rest(); rest != "" {
		return fmt.Errorf("serve printed more than one line: %q", rest)
	}
	return nil
}
