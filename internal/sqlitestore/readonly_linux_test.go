package sqlitestore_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// refused opens a directory that must not open, and wants the error to say where and why.
func refused(t *testing.T, dir string, why ...string) {
	t.Helper()
	s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
	if err == nil {
		_ = s.Close()
		t.Errorf("%s: opened", dir)
		return
	}
	for _, part := range append(why, dir) {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

// TestReadOnlyAtStart starts on a read-only file system, in a directory of ours and in one that is yet to be made. What a
// crashed process left there is read once it can be written again.
func TestReadOnlyAtStart(t *testing.T) {
	dir := tmpfs(t, 4<<10)
	data := filepath.Join(dir, "data")
	crashed := writer{dir: data, seed: 1, sessions: 1, calls: 30, crash: true}
	l := newLedger()
	l.read(crashed.run(t))
	remount(t, dir, syscall.MS_RDONLY, "")
	before := sum(t, sqlitestore.File(data))
	refused(t, data, syscall.EROFS.Error())
	refused(t, filepath.Join(dir, "new"), syscall.EROFS.Error())
	if sum(t, sqlitestore.File(data)) != before {
		t.Error("the file changed")
	}
	remount(t, dir, 0, "")
	for _, finding := range l.check(t.Context(), data) {
		t.Error(finding)
	}
}

// TestNoPermission starts as a user to whom parts of the directory do not belong.
func TestNoPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED, because taking another user's identity takes root")
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		why     string
	}{
		{"directory", func(t *testing.T, dir string) { chown(t, filepath.Join(dir, "lock"), sqlitestore.File(dir)) }, ""},
		{"lock", func(t *testing.T, dir string) { chown(t, dir, sqlitestore.File(dir)) }, syscall.EACCES.Error()},
		{"database that may be read", func(t *testing.T, dir string) {
			chown(t, dir, filepath.Join(dir, "lock"))
			testenv.Must(t, os.Chmod(sqlitestore.File(dir), 0o644))
		}, syscall.EACCES.Error()},
		{"database that may not be read", func(t *testing.T, dir string) { chown(t, dir, filepath.Join(dir, "lock")) }, "check its owner and permissions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, path := file(t)
			for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
				testenv.Must(t, os.Chmod(d, 0o755))
			}
			c.prepare(t, dir)
			before := sum(t, path)
			asNobody(t, func() { refused(t, dir, c.why) })
			if sum(t, path) != before {
				t.Error("the file changed")
			}
			record(t, open(t, dir, nil), "afterwards")
		})
	}
}

const nobody = 65534

func chown(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		testenv.Must(t, os.Chown(path, nobody, nobody))
	}
}

// asNobody runs f in a thread that may do to files what the user nobody may. The thread ends with f.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		for _, call := range []uintptr{syscall.SYS_SETFSGID, syscall.SYS_SETFSUID} {
			if _, _, errno := syscall.RawSyscall(call, nobody, 0, 0); errno != 0 {
				t.Error(errno)
				return
			}
		}
		f()
	}()
	<-done
}

// TestReadOnlyWhileServing lets every write fail as it does once the kernel has made a file system read-only. The first
// call cannot be sure, those after it are refused, and nothing is lost.
func TestReadOnlyWhileServing(t *testing.T) {
	f := fault{call: "pwrite64", errno: "EROFS"}
	l := f.run(t, 1, "150+", true)
	if l.answers["unknown"] != 1 || l.answers["unavailable"] == 0 || l.answers["ok"] == 0 {
		t.Errorf("answers: %v", l.answers)
	}
}

// TestBrokenStoreRefuses: a store that is out of service says so to every kind of call.
func TestBrokenStoreRefuses(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	s.BreakDown(errors.New("the disk"))
	d, err := job.Input{JobID: "j"}.Delivery(1 << 20)
	testenv.Must(t, err)
	_, get := s.Get(t.Context(), "j", false)
	_, claim := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 1})
	_, renew := job.Renew(t.Context(), s, "j", "token", 0)
	for call, err := range map[string]error{
		"record": s.Record(t.Context(), []job.Delivery{d})[0].Err, "get": get, "claim": claim, "renew": renew,
		"complete": job.Complete(t.Context(), s, "j", "token", ""), "release": job.GiveBack(t.Context(), s, "j", "token", job.Release{}),
		"check": s.Check(t.Context()),
	} {
		if !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want ErrUnavailable", call, err)
		}
	}
}
