package sqlitestore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// littleMemory makes for many checkpoints, and for transactions that go to the disk before they are committed.
var littleMemory = []string{"wal_autocheckpoint(30)", "cache_size(10)"}

// recorded is what a writer did to its disk and what it said, in the order in which that happened.
type recorded struct {
	root   string
	dir    string // the data directory's path below root
	backup []byte // what the database held before, if it was there
	old    bool   // and it is of an older schema
	events []syscallEvent
	// again is the event with which the second writer began.
	again int
}

// recordWriter runs a writer and records its system calls. Unless there is a backup, the data directory is in one that
// is missing, too.
func recordWriter(t *testing.T, seed uint64, backup []byte, pragmas ...string) recorded {
	t.Helper()
	r := recorded{root: t.TempDir(), dir: "new/data", backup: backup}
	if backup != nil {
		r.dir = "."
		write(t, sqlitestore.File(r.root), backup)
	}
	w := writer{seed: seed, sessions: 3, calls: 40, pragmas: pragmas}
	if testenv.Long() {
		w.sessions, w.calls = 5, 200
	}
	r.record(t, w)
	return r
}

// record runs another writer, which finds the directory as the one before left it.
func (r *recorded) record(t *testing.T, w writer, strace ...string) {
	t.Helper()
	testenv.NeedStrace(t)
	w.dir = filepath.Join(r.root, r.dir)
	w.pragmas = append(littleMemory[:len(littleMemory):len(littleMemory)], w.pragmas...)
	trace := filepath.Join(t.TempDir(), "trace")
	if r.again == 0 {
		r.again = len(r.events)
	}
	w.run(t, append([]string{"strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "1048576", "-o", trace,
		"-e", "trace=" + tracedCalls}, strace...)...)
	r.events = append(r.events, parseTrace(t, trace)...)
}

// disk is the disk as it was before the writer ran.
func (r recorded) disk() *disk {
	d := newDisk(r.root)
	if r.backup != nil {
		file := sqlitestore.File(r.root)
		d.inode[file] = &inode{data: r.backup}
		d.inode[r.root].names[filepath.Base(file)] = d.inode[file]
	}
	return d
}

// moments are n moments to cut the power at. A third of them is in the first session, before the first call; all are after a
// flush that failed, if one did, and most of those while the second writer takes over from the first.
func (r recorded) moments(t *testing.T, random *rand.Rand, n int) []int {
	t.Helper()
	said := func(from int) int {
		return from + slices.IndexFunc(r.events[from:], func(e syscallEvent) bool { return e.name == "write" && e.fd(t, 0) == 1 })
	}
	at := []int{len(r.events)}
	failed := r.failedFlush()
	for len(at) < n {
		from, to := said(0), len(r.events)+1
		switch {
		case failed >= 0 && len(at)%3 == 0: // as the first one ends
			from, to = max(failed+1, r.again-20), r.again+20
		case failed >= 0 && len(at)%3 == 1:
			from, to = r.again, said(r.again)
			if i := slices.IndexFunc(r.events[from:to], func(e syscallEvent) bool {
				return e.end && e.name == "fsync" && strings.Contains(e.args[0], hexOf(".db>"))
			}); i >= 0 {
				from, to = from+i, min(from+i+10, to)
			}
		case failed >= 0:
			from = failed + 1
		case len(at)%3 == 0:
			from, to = 0, from
		}
		at = append(at, from+random.IntN(to-from))
	}
	slices.Sort(at)
	return at
}

// failedFlush is the event at which a flush failed; -1 when none did.
func (r recorded) failedFlush() int {
	return slices.IndexFunc(r.events, func(e syscallEvent) bool { return e.end && e.name == "fsync" && e.ret < 0 })
}

// cuts cuts the power at n moments and returns what is wrong afterwards, at most a few of it, and what was said until the
// last cut. Said is what was said before. Kept is the share of what was not flushed that reaches
// the disk all the same.
func (r recorded) cuts(t *testing.T, d *disk, said string, random *rand.Rand, n int, kept ...float64) (findings []string, l *ledger) {
	t.Helper()
	l = newLedger()
	l.read(said)
	next := 0
	for i, at := range r.moments(t, random, n) {
		for ; next < at; next++ {
			e := r.events[next]
			// What is being said counts as said.
			if e.name == "write" && !e.end && e.fd(t, 0) == 1 {
				l.read(string(e.text(t, 1)))
			}
			d.apply(t, e)
		}
		dir := filepath.Join(t.TempDir(), fmt.Sprint("cut ", i))
		d.cut(t, dir, random, kept[random.IntN(len(kept))])
		found := l.check(t.Context(), filepath.Join(dir, r.dir))
		if r.old {
			found = append(found, wantCopy(t.Context(), dir)...)
		}
		for _, f := range found {
			findings = append(findings, fmt.Sprintf("cut before event %d of %d: %s", at, len(r.events), f))
		}
		testenv.Must(t, os.RemoveAll(dir))
		if len(findings) > 10 {
			break
		}
	}
	return findings, l
}

// wantCopy wants a sound copy of the older file that was in dir: the store was opened since. A cut may have left another.
func wantCopy(ctx context.Context, dir string) (findings []string) {
	kept := copies(dir)
	if len(kept) == 0 {
		findings = append(findings, "the older file was upgraded, and there is no copy of it")
	}
	for _, file := range kept {
		if v, err := sqlitestore.Verify(ctx, file, func(int64, int64) {}); err != nil || !v.Old || len(v.Findings) > 0 || v.Jobs != 20 {
			findings = append(findings, fmt.Sprintf("the copy of the older file: %+v, %v", v, err))
		}
	}
	return findings
}

// TestPowerCut cuts the power at random moments: everything that was acknowledged is there, and the file is sound.
func TestPowerCut(t *testing.T) {
	seed := testenv.Seed(t)
	backup, said := backupFile(t)
	for _, c := range []struct {
		name   string
		backup []byte
		old    bool
		said   string
	}{
		{"a file of schema 1", oldFile(t), true, said},
		{"a new directory", nil, false, ""},
		{"a restored backup", backup, false, said},
	} {
		if !c.old && !testenv.Long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := recordWriter(t, seed, c.backup)
			r.old = c.old
			checkpoints, flushes := 0, 0
			for _, e := range r.events {
				if e.end && e.name == "fsync" && strings.Contains(e.args[0], hexOf("-wal>")) {
					flushes++
				} else if e.end && e.name == "fsync" && strings.Contains(e.args[0], hexOf(".db>")) {
					checkpoints++
				}
			}
			n := 20
			if testenv.Long() {
				n = 1000
			}
			findings, l := r.cuts(t, r.disk(), c.said, rand.New(rand.NewPCG(seed, 1)), n, 0, 0, 0.1, 0.5, 0.9)
			for _, f := range findings {
				t.Error(f)
			}
			acknowledged := l.answers["ok"]
			t.Logf("%d system calls, %d of them flushes of the write-ahead log and %d of the file; %d acknowledged calls; %d cuts",
				len(r.events)/2, flushes, checkpoints, acknowledged, n)
			if checkpoints < 10 || acknowledged < 100 {
				t.Error("too little happened for the cuts to mean something")
			}
		})
	}
}

// TestPowerCutAfterAFailedFlush lets one flush fail. What it was for is lost, though it can still be read until the power
// goes. The store is opened again, acknowledges, and the power goes: all that was acknowledged is there.
func TestPowerCutAfterAFailedFlush(t *testing.T) {
	seed := testenv.Seed(t)
	random := rand.New(rand.NewPCG(seed, 3))
	rounds, cuts := 2, 12
	if testenv.Long() {
		rounds, cuts = 100, 50
	}
	unknown := 0
	for range rounds {
		when, crash := 1+random.IntN(60), random.IntN(2) == 0
		r := recorded{root: t.TempDir(), dir: "new/data"}
		w := writer{sessions: 1, calls: 40, crash: crash, seed: random.Uint64()}
		r.record(t, w, "-e", fmt.Sprintf("inject=fsync:error=EIO:when=%d", when))
		for range 2 {
			w.seed = random.Uint64()
			r.record(t, w)
		}
		if r.failedFlush() < 0 {
			t.Fatalf("flush %d did not fail", when)
		}
		findings, l := r.cuts(t, r.disk(), "", random, cuts, 0, 0, 0.1, 0.5, 0.9)
		for _, f := range findings {
			t.Errorf("flush %d failed, crash %t: %s", when, crash, f)
		}
		unknown += l.answers["unknown"]
	}
	if unknown < rounds/4 {
		t.Errorf("only %d of %d failed flushes were a commit's", unknown, rounds)
	}
}

// hexOf is text as strace prints it, up to a bracket that ends it.
func hexOf(text string) string {
	text, bracket := strings.CutSuffix(text, ">")
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, `\x%02x`, b)
	}
	if bracket {
		out.WriteByte('>')
	}
	return out.String()
}

// backupFile is a backup, which is not in the mode that a store serves its file in, and what a writer would have said.
func backupFile(t *testing.T) (data []byte, said string) {
	t.Helper()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	s := open(t, dir, nil)
	for i := range 20 {
		id := fmt.Sprint("job-", i)
		said += "try record " + id + "\n"
		d, err := writerInput(id).Delivery(1 << 20)
		testenv.Must(t, err)
		if o := s.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	testenv.Must(t, sqlitestore.Backup(t.Context(), dir, file, func(int64, int64) {}))
	data, err := os.ReadFile(file)
	testenv.Must(t, err)
	return data, said + strings.ReplaceAll(said, "try", "ok")
}

// oldFile is a file of schema 1 with the jobs of backupFile in it.
func oldFile(t *testing.T) []byte {
	t.Helper()
	path := sqlitestore.File(copyDir(t, "testdata/v1/closed"))
	execSQL(t, path, "DELETE FROM jobs; DELETE FROM large_bodies")
	for i := range 20 {
		d, err := writerInput(fmt.Sprint("job-", i)).Delivery(1 << 20)
		testenv.Must(t, err)
		execSQL(t, path, fmt.Sprintf(`INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen, last_seen,
			deliveries, body_kind, work_mode, work_state, work_due, text)
			VALUES ('%s', '', '', x'%x', '', '', 1, 1, 1, 1, '%s', '%s', %s, '%s')`, d.JobID, d.Fingerprint, d.Mode,
			map[job.WorkMode]string{job.ModeLeased: "queued", job.ModeUntracked: "untracked"}[d.Mode],
			map[job.WorkMode]string{job.ModeLeased: "1", job.ModeUntracked: "NULL"}[d.Mode], d.Body.Data))
	}
	data, err := os.ReadFile(path)
	testenv.Must(t, err)
	return data
}

// TestPowerCutWithoutLoss: nothing is wrong when everything written reaches the disk, flushed or not. So what other cuts
// find is due to what they lose.
func TestPowerCutWithoutLoss(t *testing.T) {
	if !testenv.Long() {
		t.Skip("a part of the long mode")
	}
	seed := testenv.Seed(t)
	r := recordWriter(t, seed, nil, "synchronous(OFF)")
	findings, _ := r.cuts(t, r.disk(), "", rand.New(rand.NewPCG(seed, 1)), 15, 1)
	for _, f := range findings {
		t.Error(f)
	}
}

// TestPowerCutFindsUnflushed takes the flushing away, in the store and in the disk: the cuts must find what that loses.
func TestPowerCutFindsUnflushed(t *testing.T) {
	seed := testenv.Seed(t)
	for _, c := range []struct {
		name    string
		pragmas []string
		lies    bool
		want    string
	}{
		{"a store that does not flush", []string{"synchronous(OFF)"}, false, "lost"},
		{"a store that flushes at checkpoints only", []string{"synchronous(NORMAL)"}, false, "lost"},
		{"a disk that lies", nil, true, "damaged"},
	} {
		if !c.lies && !testenv.Long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := recordWriter(t, seed, nil, c.pragmas...)
			d := r.disk()
			d.lies = c.lies
			findings, _ := r.cuts(t, d, "", rand.New(rand.NewPCG(seed, 1)), 25, 0, 0.5)
			if !slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, c.want) }) {
				t.Errorf("nothing was found %s; found %q", c.want, findings)
			}
		})
	}
}
