package sqlitestore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// fault is system calls that fail.
type fault struct {
	call, errno string
	// upTo bounds which call of a writer's is the first to fail. A writer makes a few more than that.
	upTo int
	// known: no outcome is unknown.
	known bool
}

var faults = []fault{
	{"fsync", "EIO", 60, false},
	{"fsync", "ENOSPC", 60, false},
	{"pwrite64", "EIO", 600, false},
	{"pwrite64", "EROFS", 600, false},
	{"pwrite64", "ENOSPC", 600, true},
	{"pwrite64", "EDQUOT", 600, false},
	{"pread64", "EIO", 100, false},
	{"ftruncate", "EIO", 3, true},
}

// TestIOErrors lets system calls of a writer fail, once or from some moment on. However that goes, no answer is a lie: held
// against the answers, the store is what they said once it is opened without faults.
func TestIOErrors(t *testing.T) {
	seed := testenv.Seed(t)
	random := rand.New(rand.NewPCG(seed, 2))
	rounds := 1
	if testenv.Long() {
		rounds = 30
	}
	answers := make(map[string]int)
	states := make(map[string]int)
	for range rounds {
		for _, f := range faults {
			for _, from := range []string{"+", ""} {
				if from == "" && !testenv.Long() {
					continue
				}
				when := fmt.Sprint(1+random.IntN(f.upTo), from)
				crash := random.IntN(2) == 0
				l := f.run(t, random.Uint64(), when, crash)
				for name, n := range l.answers {
					answers[name] += n
				}
				state, _, _ := strings.Cut(l.sessions[0], " ")
				states[state]++
				t.Logf("%s %s when=%s crash=%t: %v, %q", f.call, f.errno, when, crash, l.answers, l.sessions)
			}
		}
	}
	t.Logf("answers %v; at the end %v", answers, states)
}

// run runs a writer whose calls fail when the expression of strace says, and holds the store against what it said.
func (f fault) run(t *testing.T, seed uint64, when string, crash bool) *ledger {
	t.Helper()
	dir := t.TempDir()
	l := newLedger()
	l.read(f.inject(t, writer{dir: dir, seed: seed, sessions: 1, calls: 40, crash: crash, pragmas: littleMemory}, when))
	what := fmt.Sprintf("%s %s when=%s, seed %d, crash %t", f.call, f.errno, when, seed, crash)
	for _, finding := range l.check(t.Context(), dir) {
		t.Errorf("%s: %s", what, finding)
	}
	if len(l.sessions) == 0 {
		t.Fatalf("%s: the writer said nothing of its session", what)
	}
	unknown := l.answers["unknown"]
	if f.known && unknown > 0 || unknown > 1 {
		t.Errorf("%s: %d unknown outcomes", what, unknown)
	}
	// A commit that failed puts the store out of service. So may the one that marks the log, of which no call hears, and
	// pages that cannot be read when asked again, which SQLite takes for damaged.
	if out := l.sessions[0] == "out-of-service"; unknown > 0 && !out || out && f.known {
		t.Errorf("%s: with %d unknown outcomes the store is %s", what, unknown, l.sessions[0])
	}
	return l
}

// inject runs the writer and returns what it said.
func (f fault) inject(t *testing.T, w writer, when string) string {
	t.Helper()
	testenv.NeedStrace(t)
	strace := []string{"strace", "-f", "--seccomp-bpf", "-o", os.DevNull, "-e", "trace=" + f.call,
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%s", f.call, f.errno, when), "-P", w.dir}
	// Other files, such as the program's libraries, can be read.
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		strace = append(strace, "-P", sqlitestore.File(w.dir)+suffix)
	}
	return w.run(t, strace...)
}

// TestFailedFlush: the call whose flush fails has an unknown outcome, and nothing is written after it.
func TestFailedFlush(t *testing.T) {
	f := faults[0]
	l := f.run(t, 1, "20+", false)
	if l.answers["unknown"] != 1 || l.answers["ok"] == 0 || l.answers["unavailable"] == 0 {
		t.Errorf("answers: %v", l.answers)
	}
}

// TestUncleanStartOnABadDisk: a store whose last run left a write-ahead log does not serve until the disk has taken it.
func TestUncleanStartOnABadDisk(t *testing.T) {
	dir := t.TempDir()
	l := newLedger()
	l.read(writer{dir: dir, seed: 1, sessions: 1, calls: 40, crash: true, pragmas: littleMemory}.run(t))
	acknowledged := l.answers["ok"]
	for _, f := range []fault{{call: "fsync", errno: "EIO"}, {call: "pwrite64", errno: "EIO"}, {call: "ftruncate", errno: "EIO"}} {
		l.read(f.inject(t, writer{dir: dir, seed: 2, sessions: 1, calls: 1, pragmas: littleMemory}, "1+"))
		if last := l.sessions[len(l.sessions)-1]; !strings.HasPrefix(last, "open-failed") || !strings.Contains(last, dir) {
			t.Errorf("%s %s: %s", f.call, f.errno, last)
		}
	}
	if l.answers["ok"] != acknowledged {
		t.Errorf("%d more were acknowledged", l.answers["ok"]-acknowledged)
	}
	for _, finding := range l.check(t.Context(), dir) {
		t.Error(finding)
	}
}

// TestFailedWriteGoesOn: after a single write that failed, and was taken back, or a read that failed, the store goes on.
func TestFailedWriteGoesOn(t *testing.T) {
	for _, c := range []struct {
		fault
		when    string
		refused bool // what was asked again was not
	}{
		{fault{"pwrite64", "ENOSPC", 0, true}, "105..107", true},
		{fault{"pread64", "EIO", 0, true}, "115..117", false},
	} {
		t.Run(c.call+" "+c.errno, func(t *testing.T) {
			l := c.run(t, 1, c.when, false)
			if l.answers["unavailable"] > 0 != c.refused || l.answers["ok"] < 20 {
				t.Errorf("answers: %v", l.answers)
			}
		})
	}
}

// TestIOErrorsFindsLies turns the answers round: that is found.
func TestIOErrorsFindsLies(t *testing.T) {
	f := fault{"pwrite64", "ENOSPC", 0, true}
	dir := t.TempDir()
	said := f.inject(t, writer{dir: dir, seed: 1, sessions: 1, calls: 40, pragmas: littleMemory}, "130+")
	for _, c := range []struct{ from, to, want string }{
		{"unavailable ", "ok ", "lost"},
		{"\nok record", "\nunavailable record", "can have been written"},
	} {
		l := newLedger()
		l.read(strings.ReplaceAll(said, c.from, c.to))
		findings := l.check(t.Context(), dir)
		if !slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, c.want) }) {
			t.Errorf("%q instead of %q was not found; found %q", c.to, c.from, findings)
		}
	}
}
