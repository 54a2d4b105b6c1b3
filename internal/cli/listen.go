package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/gofrs/flock"
)

// unixPrefix begins the address of a Unix socket, as gRPC writes it: unix:PATH or unix:///PATH.
const unixPrefix = "unix:"

// privateSocket is the mode of a socket that only its owner can open.
const privateSocket = 0o600

// listen binds the address that the flag gives. A socket in the file system gets the mode.
func listen(ctx context.Context, flag, address string, mode fs.FileMode) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return listenUnix(flag, strings.TrimPrefix(path, "//"), mode)
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case address == "":
		return nil, usagef("%s is empty", flag)
	case err != nil:
		return nil, usagef("%s %s is not HOST:PORT, such as %s", flag, address, defaultAddress)
	case host == "":
		// To most it is this machine, to the net package every interface.
		return nil, usagef("%s %s names no host: say 127.0.0.1:%s for this machine alone, or 0.0.0.0:%s or [::]:%s for every interface",
			flag, address, port, port, port)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", address)
	if err == nil {
		return lis, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("cannot listen on %s: the address is in use; stop what uses it, or choose another %s", address, flag)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		// The outer text repeats the address.
		err = op.Err
	}
	return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
}

// shownAddress is where a client on this machine reaches the listener.
func shownAddress(lis net.Listener) string {
	switch a := lis.Addr().(type) {
	case *net.UnixAddr:
		return unixPrefix + a.Name
	case *net.TCPAddr:
		if a.IP.IsUnspecified() {
			return fmt.Sprintf("localhost:%d", a.Port) // Either family may be the one that works.
		}
	}
	return lis.Addr().String()
}

// unixListener listens on a Unix socket.
type unixListener struct {
	net.Listener
	path  string
	close func() error
}

// listenUnix makes a socket. One that a dead process has left is replaced; the lock beside it
// tells, and keeps two that start at the same time apart.
func listenUnix(flag, path string, mode fs.FileMode) (_ net.Listener, err error) {
	if path == "" {
		return nil, usagef("%s %s names no path", flag, unixPrefix)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot listen on %s%s: %w", unixPrefix, path, err)
		}
	}()
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if locked, err := lock.TryLock(); err != nil {
		return nil, err
	} else if !locked {
		return nil, fmt.Errorf("another process does; stop it, or choose another %s", flag)
	}
	if err := replaceable(flag, path); err != nil {
		return nil, err
	}
	// Nobody else can reach it before its mode is set.
	private, err := os.MkdirTemp(filepath.Dir(path), ".jobonce-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private)
	own := filepath.Join(private, "s")
	if over := max(len(own), len(path)) - (len(syscall.RawSockaddrUnix{}.Path) - 1); over > 0 {
		return nil, fmt.Errorf("the path is %d bytes too long for a socket", over)
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: own, Net: "unix"})
	if err != nil {
		return nil, err
	}
	lis.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(own, mode), os.Rename(own, path)); err != nil {
		_ = lis.Close()
		return nil, err
	}
	return &unixListener{Listener: lis, path: path, close: sync.OnceValue(func() error {
		// The lock's file stays: without it, two processes could hold a lock each.
		return errors.Join(os.Remove(path), lis.Close(), lock.Close())
	})}, nil
}

// replaceable returns nil when nothing is at path, or a socket that nobody listens on.
func replaceable(flag, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("there is something else than a socket; remove it, or choose another %s", flag)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process does; stop it, or choose another %s", flag)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("there is a socket, and whether anybody listens on it cannot be found out: %w", err)
	}
	return nil
}

// Addr is the address of the socket.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close removes the socket.
func (l *unixListener) Close() error { return l.close() }
