package chaostest

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/jobonce/jobonce/internal/testenv"
)

// clock is a clock in a file that several processes have mapped. Only the test moves it.
type clock struct {
	path  string
	nanos *atomic.Int64 // since 1970
}

// newClock makes a clock that stands at the time of its making.
func newClock(t *testing.T) *clock {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clock")
	testenv.Must(t, os.WriteFile(path, make([]byte, 8), 0o600))
	c, unmap, err := openClock(path)
	testenv.Must(t, err)
	t.Cleanup(unmap)
	c.nanos.Store(time.Now().UnixNano())
	return c
}

// openClock maps a clock that newClock made.
func openClock(path string) (c *clock, unmap func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	page, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	// A mapping begins at a page, so the number is aligned.
	nanos := (*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(page)))
	return &clock{path, nanos}, func() { _ = syscall.Munmap(page) }, nil
}

func (c *clock) now() time.Time { return time.Unix(0, c.nanos.Load()).UTC() }

func (c *clock) advance(d time.Duration) { c.nanos.Add(int64(d)) }
