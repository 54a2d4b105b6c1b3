package chaostest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// newEmbeddedWorld is one service on a data directory; broken names what its store does wrong, or is empty.
func newEmbeddedWorld(t *testing.T, seed uint64, broken string) *world {
	t.Helper()
	w := newWorld(t, seed)
	dir := t.TempDir()
	w.file = sqlitestore.File(dir)
	w.instances = []*testenv.Service{startService(t, nil, "-dir", dir, "-clock", w.clock.path, "-broken", broken)}
	w.exclusive = true
	w.faults = []fault{{"kill -9", killInstance}, {"kill -9", killInstance}, {"connections cut", cutClients}, {"connections cut", cutClients}}
	w.final = func() []finding {
		if err := w.instances[0].Kill(); err != nil {
			return []finding{{badError, err.Error()}}
		}
		return verify(t.Context(), w.file)
	}
	w.connect()
	return w
}

// verify reads the whole file.
func verify(ctx context.Context, file string) (found []finding) {
	v, err := sqlitestore.Verify(ctx, file, func(int64, int64) {})
	if err != nil {
		return []finding{{damaged, err.Error()}}
	}
	for _, text := range v.Findings {
		found = append(found, finding{damaged, text})
	}
	return found
}

// disk is a fault of the disk: from some call on, every one of a thread fails so.
type disk struct{ syscalls, errno string }

func (d disk) String() string { return d.errno + " from " + d.syscalls }

// disks are what SQLite asks of a disk.
var disks = []disk{
	{"fsync,fdatasync", "EIO"}, {"pwrite64", "EIO"}, {"pwrite64", "ENOSPC"}, {"pwrite64,ftruncate,fsync,fdatasync", "EIO"},
}

// strike kills the service, starts it on the bad disk, and lets it go on there until it refuses calls. Then it is killed and
// started on a good one.
func (d disk) strike(r *round) error {
	i := r.instances[0]
	if err := r.kill(i); err != nil {
		return err
	}
	// With seccomp no other system call is slowed down.
	err := i.Start("strace", "-f", "--seccomp-bpf", "-qq", "-o", os.DevNull, "-e", "trace="+d.syscalls,
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d+", d.syscalls, d.errno, 1+r.rng.IntN(200)))
	if err == nil {
		r.untilRefused(refusals)
		err = r.kill(i)
	} else if r.ctx.Err() == nil {
		err = nil // the store could not even be opened: that is an answer too
	}
	return errors.Join(err, i.Start())
}

// TestEmbedded is the chaos on the embedded store.
func TestEmbedded(t *testing.T) {
	testenv.NeedStrace(t)
	w := newEmbeddedWorld(t, testenv.Seed(t), "")
	for _, d := range disks {
		w.faults = append(w.faults, fault{"disk: " + d.String(), d.strike})
	}
	chaos(t, w, shortEmbedded)
}
