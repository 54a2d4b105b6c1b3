package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// runInto runs a command in a process of its own with this standard output, and returns its exit code and what it said
// on standard error. A process that a signal ended has the code -1.
func runInto(t *testing.T, stdout *os.File, args ...string) (code int, stderr string) {
	t.Helper()
	cmd := exec.Command("jobonce", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &said
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), said.String()
}

// TestAnswersThatCannotBeWritten: what was changed stays changed, so the command says what would be lost with the answer,
// and the call that is repeated with it gets the same answer.
func TestAnswersThatCannotBeWritten(t *testing.T) {
	p := serveEmbedded(t, t.TempDir())
	defer func() { testenv.OK(t, p.stop()) }()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	testenv.Must(t, err)
	defer full.Close()
	r, closed, err := os.Pipe()
	testenv.Must(t, err)
	r.Close()
	defer closed.Close()

	requestID := regexp.MustCompile(`--request-id ([A-Z2-7]{26})\n$`)
	token := regexp.MustCompile(`lease_token=([A-Z2-7]{26}) generation=\d+ lease_expires=20`)
	at := []string{"--server", p.addr}
	for name, stdout := range map[string]*os.File{"full": full, "closed": closed} {
		lost := func(line string) string {
			t.Helper()
			code, stderr := runInto(t, stdout, slices.Concat(strings.Fields(line), at)...)
			if code != exitFailed || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "the service has done it, but the answer could not be written: ") {
				t.Fatalf("%s into a %s output: exit code %d, standard error %q", line, name, code, stderr)
			}
			return stderr
		}
		again := func(line, said string) string {
			t.Helper()
			id := requestID.FindStringSubmatch(said)
			if id == nil {
				t.Fatalf("%s names no request id: %q", line, said)
			}
			_, answer, stderr := run(slices.Concat(strings.Fields(line), at, []string{"--request-id", id[1]})...)
			if answer == "" {
				t.Fatal(stderr)
			}
			return answer
		}

		for _, settle := range []string{"complete", "release"} {
			id := name + "-" + settle
			line := "record --job-id " + id + " --work-mode leased --lease 1h"
			said := lost(line)
			held := token.FindStringSubmatch(said)
			if held == nil {
				t.Fatalf("%s names no lease: %q", line, said)
			}
			if answer := again(line, said); !strings.HasPrefix(answer, "FIRST start_work=true ") || !strings.Contains(answer, held[0]) {
				t.Errorf("%q, and then %q", said, answer)
			}
			if said := lost("work renew " + id + " --lease 1h --lease-token " + held[1]); !strings.Contains(said, " lease_token="+held[1]+" ") {
				t.Errorf("renew: %q", said)
			}
			lost("work " + settle + " " + id + " -o json --lease-token " + held[1])
		}

		for _, id := range []string{name + "-1", name + "-2"} {
			if code, _, stderr := run(append([]string{"record", "--job-id", id, "--work-mode", "queued"}, at...)...); code != 0 {
				t.Fatal(stderr)
			}
		}
		said := lost("work claim --max-jobs 2 --lease 1h")
		held := token.FindAllStringSubmatch(said, -1)
		if answer := again("work claim --max-jobs 2 --lease 1h", said); len(held) != 2 || !strings.Contains(answer, held[0][0]) || !strings.Contains(answer, held[1][0]) {
			t.Errorf("%q, and then %q", said, answer)
		}
	}
}
