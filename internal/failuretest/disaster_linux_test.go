package failuretest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestDisasterDiskFull: the disk of the embedded store is full. It refuses, and goes on by itself once there is space.
func TestDisasterDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("NOT TESTED, because mounting a tmpfs takes root, and in a container the capability SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { testenv.OK(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	s := startServe(t, nil, "--data-dir", filepath.Join(dir, "data"))
	delivered(t, s, "a", "FIRST")
	filler, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	for chunk := make([]byte, 4096); len(chunk) > 0; {
		if _, err := filler.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	must(t, filler.Close())
	body := `{"x":"` + strings.Repeat("x", 500_000) + `"}`
	file := testenv.WriteFile(t, t.TempDir(), "body", []byte(body))
	wantSaid(t, 6, "STORE_UNAVAILABLE", "record", "--server", s.Direct, "--job-id", "b", "--payload", "@"+file)
	told(t, s.Log, "embedded store: a transaction failed and was taken back")
	if !strings.Contains(s.Log(), "the disk is full") {
		t.Errorf("the log does not say that the disk is full:\n%s", s.Log())
	}
	must(t, os.Remove(filler.Name()))
	delivered(t, s, "b", "FIRST")
	delivered(t, s, "a", "DUPLICATE")
}
