package cli

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestListenNeedsAHost(t *testing.T) {
	for address, want := range map[string]string{
		"":        "--listen is empty",
		":50051":  "--listen :50051 names no host: say 127.0.0.1:50051 for this machine alone, or 0.0.0.0:50051 or [::]:50051 for every interface",
		"50051":   "--listen 50051 is not HOST:PORT, such as 127.0.0.1:50051",
		"host":    "--listen host is not HOST:PORT, such as 127.0.0.1:50051",
		"::1:80":  "--listen ::1:80 is not HOST:PORT, such as 127.0.0.1:50051",
		"unix:":   "--listen unix: names no path",
		"unix://": "--listen unix: names no path",
	} {
		lis, err := listen(t.Context(), "--listen", address, privateSocket)
		if err == nil {
			t.Errorf("%q: listens on %v", address, lis.Addr())
			lis.Close()
		} else if err.Error() != want || !errors.As(err, new(*usageError)) {
			t.Errorf("%q: got %v, want %s", address, err, want)
		}
	}
}

// addressed is a listener as far as its address goes.
type addressed struct {
	net.Listener
	addr net.Addr
}

func (a addressed) Addr() net.Addr { return a.addr }

// TestShownAddressCanBeCalled: what the ready line names is a --server, also where that is not what was listened on.
func TestShownAddressCanBeCalled(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"127.0.0.1:7":      &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7},
		"[::1]:7":          &net.TCPAddr{IP: net.IPv6loopback, Port: 7},
		"localhost:7":      &net.TCPAddr{IP: net.IPv6unspecified, Port: 7},
		"localhost:8":      &net.TCPAddr{IP: net.IPv4zero, Port: 8},
		"192.0.2.1:7":      &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7},
		"unix:/run/j.sock": &net.UnixAddr{Name: "/run/j.sock", Net: "unix"},
	} {
		if got := shownAddress(addressed{addr: addr}); got != want {
			t.Errorf("%v is shown as %s, want %s", addr, got, want)
		}
	}
}

// listenTwice has many listen on one path at a time, and wants exactly one to succeed.
func listenTwice(t *testing.T, path string) {
	t.Helper()
	var callers sync.WaitGroup
	results := make(chan net.Listener, 8)
	for range cap(results) {
		callers.Go(func() {
			lis, err := listen(t.Context(), "--listen", "unix:"+path, privateSocket)
			if err != nil {
				if !strings.Contains(err.Error(), "another process does; stop it, or choose another --listen") {
					t.Error(err)
				}
				return
			}
			results <- lis
		})
	}
	callers.Wait()
	close(results)
	n := 0
	for lis := range results {
		n++
		info, err := os.Stat(path)
		if err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("the socket is %v, %v", info, err)
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		lis.Close()
	}
	if n != 1 {
		t.Errorf("%d listen on %s", n, path)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sock")
	listenTwice(t, path)

	// One that a dead process has left: nobody removes it, and nobody listens.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testenv.Must(t, err)
	stale.SetUnlinkOnClose(false)
	stale.Close()
	listenTwice(t, path)

	// Somebody else's, who knows nothing of the lock.
	foreign, err := net.Listen("unix", path)
	testenv.Must(t, err)
	defer foreign.Close()
	if lis, err := listen(t.Context(), "--listen", "unix:"+path, privateSocket); err == nil {
		lis.Close()
		t.Error("took a socket that somebody listens on")
	}
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}

	// Something else.
	file := filepath.Join(dir, "file")
	testenv.Must(t, os.WriteFile(file, []byte("precious"), 0o600))
	if lis, err := listen(t.Context(), "--listen", "unix:"+file, privateSocket); err == nil || !strings.Contains(err.Error(), "something else than a socket") {
		t.Errorf("got %v, %v", lis, err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "precious" {
		t.Errorf("the file is %q, %v", content, err)
	}
	if lis, err := listen(t.Context(), "--listen", "unix:"+filepath.Join(dir, strings.Repeat("x", 120)), privateSocket); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v, %v", lis, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".jobonce-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestReadyLineTellsTheStore: whoever gave the wrong directory sees it there.
func TestReadyLineTellsTheStore(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for n, want := range []string{"(new store)", "(new store)", "(1 job)", "(2 jobs)"} {
		cfg := testServeConfig(t)
		cfg.store.dataDir = "data"
		h := serveHere(t, cfg)
		if line, err := h.stdout.ReadString('\n'); err != nil || !strings.HasSuffix(line, ", embedded store "+dir+"/data "+want+"\n") {
			t.Errorf("printed %q (%v), want %s", line, err, want)
		}
		if n > 0 {
			if code, _, stderr := run("record", "--server", h.addr, "--job-id", want); code != 0 {
				t.Error(stderr)
			}
		}
		h.stop()
	}
}
