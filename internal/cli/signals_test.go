package cli

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/testenv"
)

// silent is a listener that takes connections and says nothing. Its channel gets a value for each.
func silent(t *testing.T) (address string, connected <-chan struct{}) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	accepted := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			accepted <- struct{}{}
		}
	}()
	t.Cleanup(func() { lis.Close() })
	return lis.Addr().String(), accepted
}

// TestInterruptedCommandsDieByTheSignal: a shell goes by that to tell whether it is to end too.
func TestInterruptedCommandsDieByTheSignal(t *testing.T) {
	for _, line := range []string{
		"record --job-id j", "get j", "work claim", "work renew j --lease-token t", "work complete j --lease-token t",
		"work release j --lease-token t", "bench --count 10",
	} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			address, connected := silent(t)
			p, err := testenv.Program{Path: "jobonce", Args: append(strings.Fields(line), "--server", address)}.Start()
			testenv.Must(t, err)
			<-connected
			testenv.OK(t, p.Cmd.Process.Signal(sig))
			err = p.Wait()
			stderr := p.Log.String()
			if p.EndedBy() != sig || !strings.HasPrefix(stderr, "CANCELLED: ") && !strings.Contains(stderr, "CANCELED") && line != "bench --count 10" {
				t.Errorf("jobonce %s ended with %v after %v; standard error %q", line, err, sig, stderr)
			}
		}
	}
}

// TestInterruptedInput: the rest of a command's input is not waited for when it is to end.
func TestInterruptedInput(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	testenv.Must(t, syscall.Mkfifo(fifo, 0o600))
	for _, payload := range []string{"-", "@" + fifo} {
		p, err := testenv.Program{Path: "jobonce", Args: []string{"record", "--payload", payload}}.Start()
		testenv.Must(t, err)
		input := p.Stdin
		if payload != "-" {
			if input, err = os.OpenFile(fifo, os.O_WRONLY, 0); err != nil {
				t.Fatal(err)
			}
		}
		// More than a pipe holds: once it is written, the command reads.
		if _, err := input.Write(make([]byte, 1<<17)); err != nil {
			t.Fatal(err)
		}
		testenv.OK(t, p.Cmd.Process.Signal(syscall.SIGINT))
		hangs := time.AfterFunc(30*time.Second, func() { _ = p.Cmd.Process.Kill() })
		err = p.Wait()
		hangs.Stop()
		if p.EndedBy() != syscall.SIGINT {
			t.Errorf("jobonce record --payload %s: %v", payload, err)
		}
		input.Close()
	}
}

// TestServeEndsBySignal: that it was asked to end is no failure, but a shell's loop ends with Ctrl-C.
func TestServeEndsBySignal(t *testing.T) {
	for sig, want := range map[syscall.Signal]syscall.Signal{syscall.SIGTERM: 0, syscall.SIGINT: syscall.SIGINT} {
		dir := t.TempDir()
		p := serveEmbedded(t, dir)
		testenv.OK(t, p.Cmd.Process.Signal(sig))
		if err := p.Wait(); p.EndedBy() != want || want == 0 && err != nil {
			t.Errorf("%v after %v; logged\n%s", err, sig, &p.Log)
		}
		// It was closed in order: SQLite's log is gone.
		if _, err := os.Stat(filepath.Join(dir, "data", "jobonce.db-wal")); !os.IsNotExist(err) {
			t.Errorf("the store was not closed after %v: %v", sig, err)
		}
	}
}

// TestServeOutlivesItsTerminal lets everything go that read what the service prints, and the terminal with it.
func TestServeOutlivesItsTerminal(t *testing.T) {
	cmd := exec.Command("jobonce", "serve", "--listen", "127.0.0.1:0", "--data-dir", "data", "--log-calls")
	cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH")}
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	stderr, err := cmd.StderrPipe()
	testenv.Must(t, err)
	testenv.Must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	match := readyLine.FindStringSubmatch(line)
	if match == nil {
		_ = cmd.Process.Kill()
		t.Fatalf("got %q, %v", line, err)
	}
	stdout.Close()
	stderr.Close()
	for range 2 {
		if code, _, stderr := run("record", "--server", match[1], "--job-id", "j"); code != 0 {
			t.Errorf("record: exit code %d: %s", code, stderr)
		}
		testenv.OK(t, cmd.Process.Signal(syscall.SIGHUP))
	}
	testenv.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestInterruptEndsAShellsLoop sends what Ctrl-C sends: the signal goes to the shell and to its command.
func TestInterruptEndsAShellsLoop(t *testing.T) {
	address, connected := silent(t)
	cmd := exec.Command("bash", "-c", `for i in 1 2 3; do jobonce record --job-id "job_$i"; echo "next"; done`)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "JOBONCE_SERVER=" + address}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.Discard
	testenv.Must(t, cmd.Start())
	<-connected
	testenv.OK(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-connected:
		t.Error("the loop goes on")
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	if stdout.Len() > 0 {
		t.Errorf("printed %q", &stdout)
	}
}
