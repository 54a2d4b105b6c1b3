package sqlitestore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// tmpfs mounts a file system of some kilobytes for the test.
func tmpfs(t *testing.T, kilobytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, sizeOption(kilobytes)); errors.Is(err, syscall.EPERM) {
		t.Skip("NOT TESTED, because mounting a tmpfs takes root, and in a container the capability SYS_ADMIN")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testenv.OK(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

func sizeOption(kilobytes int) string { return fmt.Sprintf("size=%dk", kilobytes) }

func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	testenv.Must(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, options))
}

// filler is a file that takes all the space there is.
type filler struct{ path string }

// fill takes it, to the last byte.
func (f filler) fill(t *testing.T) {
	t.Helper()
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	testenv.Must(t, err)
	defer file.Close()
	for chunk := bytes.Repeat([]byte{1}, 4096); len(chunk) > 0; {
		if _, err := file.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func (f filler) free(t *testing.T) {
	t.Helper()
	testenv.Must(t, os.Remove(f.path))
}

// told is a store whose answers are written down.
type told struct {
	*sqlitestore.Store
	ledger *ledger
	jobs   int
}

// record records deliveries of the jobs with these numbers, in one call.
func (s *told) record(t *testing.T, numbers ...int) error {
	t.Helper()
	var ids []string
	var deliveries []job.Delivery
	for _, n := range numbers {
		id := "job-" + strconv.Itoa(n)
		d, err := writerInput(id).Delivery(1 << 20)
		testenv.Must(t, err)
		ids, deliveries = append(ids, id), append(deliveries, d)
	}
	outcomes := s.Record(t.Context(), deliveries)
	err := outcomes[0].Err
	for _, answer := range []string{"try", answerName(err)} {
		s.ledger.read(answer + " record " + strings.Join(ids, " ") + "\n")
	}
	return err
}

// fail records deliveries of new jobs and of known ones until some have been refused in a row. Refused is all they may be.
func (s *told) fail(t *testing.T) {
	t.Helper()
	for refused := 0; refused < 10; s.jobs++ {
		err := s.record(t, s.jobs, s.jobs/2, s.jobs+1)
		switch {
		case err == nil:
			refused = 0
		case errors.Is(err, job.ErrUnavailable) && !errors.Is(err, job.ErrOutcomeUnknown) && strings.Contains(err.Error(), "the disk is full"):
			refused++
		default:
			t.Fatalf("a full disk: %v, want ErrUnavailable that says so", err)
		}
		if s.jobs > 10_000 {
			t.Fatal("the disk does not get full")
		}
	}
	if _, err := s.Get(t.Context(), "job-0", true); err != nil {
		t.Errorf("a read while the disk is full: %v", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the store is out of service: %v", err)
	}
}

// succeed records some, all of which must succeed.
func (s *told) succeed(t *testing.T) {
	t.Helper()
	for range 20 {
		if err := s.record(t, s.jobs, s.jobs/2); err != nil {
			t.Fatalf("after there was space again: %v", err)
		}
		s.jobs++
	}
}

func (s *told) close(t *testing.T, dir string) {
	t.Helper()
	testenv.OK(t, s.Close())
	for _, f := range s.ledger.check(t.Context(), dir) {
		t.Error(f)
	}
	if s.ledger.answers["ok"] < 40 || s.ledger.answers["unavailable"] < 10 {
		t.Errorf("answers: %v", s.ledger.answers)
	}
}

// TestFullDisk fills the disk under a store: it refuses what it cannot write, reads go on, and once there is space it
// records again by itself.
func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, 3<<10)
	f := filler{filepath.Join(dir, "filler")}
	s := told{Store: open(t, dir, nil), ledger: newLedger()}
	s.succeed(t)
	for range 3 {
		f.fill(t)
		s.fail(t)
		f.free(t)
		s.succeed(t)
	}
	s.fail(t) // this time by its own weight
	remount(t, dir, 0, sizeOption(8<<10))
	s.succeed(t)
	s.close(t, dir)
}

// TestFullDiskAtClose: what is in the write-ahead log stays there when there is no space for it in the file.
func TestFullDiskAtClose(t *testing.T) {
	dir := tmpfs(t, 3<<10)
	f := filler{filepath.Join(dir, "filler")}
	s := told{Store: open(t, dir, nil), ledger: newLedger()}
	s.succeed(t)
	s.succeed(t)
	f.fill(t)
	s.fail(t)
	if err := s.Close(); err != nil {
		t.Logf("close: %v", err)
	}
	f.free(t)
	s.close(t, dir)
}

// TestFullDiskAtStart: the error says what is the matter, and later the directory is as good as any.
func TestFullDiskAtStart(t *testing.T) {
	dir := tmpfs(t, 1<<10)
	f := filler{filepath.Join(dir, "filler")}
	s := told{Store: open(t, dir, nil), ledger: newLedger()}
	s.record(t, 1)
	testenv.Must(t, s.Close())
	f.fill(t)
	for _, dir := range []string{dir, filepath.Join(dir, "new")} {
		s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened on a full disk", dir)
		} else if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "the disk is full") && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%q does not say that the disk of %s is full", err, dir)
		}
	}
	f.free(t)
	for _, finding := range s.ledger.check(t.Context(), dir) {
		t.Error(finding)
	}
	record(t, open(t, filepath.Join(dir, "new"), nil), "j")
}

// TestFullFile fills the database itself, up to a limit of SQLite's own, so that the statement fails and not the commit.
// SQLite then takes the transaction back by itself.
func TestFullFile(t *testing.T) {
	dir := t.TempDir()
	opened, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Logger: testenv.Logger(t)}.WithPragmas("max_page_count(200)"))
	testenv.Must(t, err)
	s := told{Store: opened, ledger: newLedger()}
	s.succeed(t)
	s.succeed(t)
	s.fail(t)
	for n := range 10 {
		if err := s.record(t, n, n); err != nil { // needs no page
			t.Error(err)
		}
	}
	s.close(t, dir)
}

// TestBackupOntoFullDisk: wherever the space ends, nothing is left behind, and the error says once what is the matter.
func TestBackupOntoFullDisk(t *testing.T) {
	data := t.TempDir()
	s := open(t, data, nil)
	fill(t, s, 200)
	whole := filepath.Join(t.TempDir(), "whole")
	testenv.Must(t, sqlitestore.Backup(t.Context(), data, whole, func(int64, int64) {}))
	info, err := os.Stat(whole)
	testenv.Must(t, err)
	size := int(info.Size() >> 10)
	for _, kilobytes := range []int{4, 8, 40, size / 2, size - 4, size, size + 4} { // with the last, the pages find room
		into := tmpfs(t, kilobytes)
		path := filepath.Join(into, "b.db")
		err := sqlitestore.Backup(t.Context(), data, path, func(int64, int64) {})
		if want := path + ": the disk is full"; err == nil || err.Error() != want {
			t.Errorf("%d KiB: %v, want %s", kilobytes, err, want)
		}
		if left, err := os.ReadDir(into); err != nil || len(left) > 0 {
			t.Errorf("%d KiB: %v are left, %v", kilobytes, left, err)
		}
	}
}
