package sqlitestore_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// sector is what a disk writes as a whole or not at all.
const sector = 512

// disk is what a power cut may leave of the files below a directory, by the system calls so far. It promises what POSIX
// and the disk promise, and no more:
//
//   - What was written to a file before an fsync of it began is there once that has returned 0.
//   - Any other write is there, is not, or is in part, by whole sectors; in any order. Bytes beside those written do not
//     change. The file may have grown for it all the same, by zeros.
//   - What was written before an fsync that failed is lost: no later fsync covers it, though it may be there all the same.
//     What is written once more in the same place is covered anew.
//   - A name that was made or removed stays so once its directory was flushed by an fsync. Until then the change has
//     happened or not, each name by itself, though a later change of one name implies the earlier ones. An fsync of the
//     file alone does not keep its name, as it does on the usual file systems.
type disk struct {
	root  string
	inode map[string]*inode // what stands under each path now
	open  map[int]*inode
	// flushing has what each fsync under way covers.
	flushing map[*tracedCall]int
	// lies lets every fsync of a file return without effect, as disks do whose cache loses what it holds.
	lies bool
}

// inode is a file or a directory. The changes that no fsync has covered yet are pending.
type inode struct {
	data    []byte
	writes  []*fileWrite
	names   map[string]*inode
	changes []nameChange
	dir     bool
}

type fileWrite struct {
	at       int
	data     []byte
	truncate bool // to at
	done     bool
	lost     bool // by an fsync that failed
}

// nameChange makes a name, or removes it when inode is nil.
type nameChange struct {
	name  string
	inode *inode
}

func newDisk(root string) *disk {
	return &disk{root: root, inode: map[string]*inode{root: newDir()}, open: make(map[int]*inode), flushing: make(map[*tracedCall]int)}
}

func newDir() *inode { return &inode{dir: true, names: make(map[string]*inode)} }

// apply takes the next event.
func (d *disk) apply(t *testing.T, e syscallEvent) {
	t.Helper()
	switch e.name {
	case "fsync", "fdatasync":
		d.flush(t, e)
	case "pwrite64", "ftruncate":
		d.write(t, e)
	case "rename", "renameat", "renameat2", "link":
		if e.end && e.ret == 0 && strings.Contains(string(e.text(t, 1)), d.root) {
			t.Fatalf("%s was not used when this test was written", e.name)
		}
	}
	if !e.end || e.ret < 0 {
		return
	}
	switch e.name {
	case "mkdir":
		d.make(string(e.text(t, 0)), newDir())
	case "mkdirat":
		d.make(string(e.text(t, 1)), newDir())
	case "open":
		d.opened(t, e.ret, string(e.text(t, 0)), e.args[1])
	case "openat":
		d.opened(t, e.ret, string(e.text(t, 1)), e.args[2])
	case "close":
		delete(d.open, e.fd(t, 0))
	case "unlink":
		d.make(string(e.text(t, 0)), nil)
	case "unlinkat":
		d.make(string(e.text(t, 1)), nil)
	case "linkat":
		d.make(string(e.text(t, 3)), d.inode[string(e.text(t, 1))])
	}
}

// make puts an inode under a path, or removes the path when there is none.
func (d *disk) make(path string, n *inode) {
	if dir := d.inode[filepath.Dir(path)]; dir != nil {
		dir.changes = append(dir.changes, nameChange{filepath.Base(path), n})
		d.inode[path] = n
	}
}

func (d *disk) opened(t *testing.T, fd int, path, flags string) {
	t.Helper()
	delete(d.open, fd)
	if path != d.root && !strings.HasPrefix(path, d.root+"/") {
		return
	}
	if d.inode[path] == nil {
		if !strings.Contains(flags, "O_CREAT") {
			t.Fatalf("the trace opens %s, which it did not make", path)
		}
		d.make(path, new(inode))
	}
	if strings.Contains(flags, "O_TRUNC") || strings.Contains(flags, "O_APPEND") {
		t.Fatalf("%s with %s was not used when this test was written", path, flags)
	}
	d.open[fd] = d.inode[path]
}

// write lets a write be pending from its beginning on: it may reach the disk before it returns.
func (d *disk) write(t *testing.T, e syscallEvent) {
	t.Helper()
	n := d.open[e.fd(t, 0)]
	switch {
	case n == nil:
	case !e.end && e.name == "ftruncate":
		n.writes = append(n.writes, &fileWrite{at: e.number(t, 1), truncate: true})
	case !e.end:
		n.writes = append(n.writes, &fileWrite{at: e.number(t, 3), data: e.text(t, 1)})
	default:
		w := n.writes[len(n.writes)-1]
		if w.done || e.name == "pwrite64" && e.ret != len(w.data) || e.ret < 0 {
			t.Fatalf("%s returned %d: two writes to a file at once, or a failed one", e.name, e.ret)
		}
		w.done = true
	}
}

// flush makes durable what was written when the fsync began.
func (d *disk) flush(t *testing.T, e syscallEvent) {
	t.Helper()
	n := d.open[e.fd(t, 0)]
	if n == nil {
		return
	}
	if !e.end {
		d.flushing[e.tracedCall] = max(len(n.writes), len(n.changes))
		if slices.ContainsFunc(n.writes, func(w *fileWrite) bool { return !w.done }) {
			t.Fatal("an fsync beside a write to the same file")
		}
		return
	}
	covered := d.flushing[e.tracedCall]
	delete(d.flushing, e.tracedCall)
	if e.ret != 0 {
		for _, w := range n.writes[:min(covered, len(n.writes))] {
			w.lost = !w.truncate
		}
		return
	}
	if d.lies && !n.dir {
		return
	}
	if n.dir {
		for _, c := range n.changes[:covered] {
			n.change(c)
		}
		n.changes = n.changes[covered:]
		return
	}
	var lost []*fileWrite
	for _, w := range n.writes[:covered] {
		if w.lost {
			lost = append(lost, w)
			continue
		}
		n.data = w.applyTo(n.data, func(int) bool { return true })
		for _, l := range lost {
			l.supersede(w)
		}
	}
	n.writes = append(lost, n.writes[covered:]...)
}

// supersede puts what later wrote in the same place into w, so that it does not come back.
func (w *fileWrite) supersede(later *fileWrite) {
	if later.truncate {
		w.data = w.data[:min(len(w.data), max(0, later.at-w.at))]
		return
	}
	from, to := max(w.at, later.at), min(w.at+len(w.data), later.at+len(later.data))
	if from < to {
		copy(w.data[from-w.at:to-w.at], later.data[from-later.at:to-later.at])
	}
}

func (n *inode) change(c nameChange) {
	if n.names[c.name] = c.inode; c.inode == nil {
		delete(n.names, c.name)
	}
}

// applyTo writes into data those sectors that keep says.
func (w *fileWrite) applyTo(data []byte, keep func(sector int) bool) []byte {
	if w.truncate {
		return resize(data, w.at)
	}
	for from := 0; from < len(w.data); {
		to := min(len(w.data), from+sector-(w.at+from)%sector)
		if keep((w.at + from) / sector) {
			data = resize(data, max(len(data), w.at+to))
			copy(data[w.at+from:], w.data[from:to])
		}
		from = to
	}
	return data
}

// resize returns a slice of n bytes, zeros where data has none.
func resize(data []byte, n int) []byte {
	if n <= len(data) {
		return data[:n]
	}
	return append(data, make([]byte, n-len(data))...)
}

// cut writes to dir what a power cut leaves. kept is the share of the pending changes that reached the disk; with 1 it
// is all of them, in their order.
func (d *disk) cut(t *testing.T, dir string, random *rand.Rand, kept float64) {
	t.Helper()
	d.inode[d.root].leave(t, dir, random, kept)
}

func (n *inode) leave(t *testing.T, path string, random *rand.Rand, kept float64) {
	t.Helper()
	if !n.dir {
		write(t, path, n.remains(random, kept))
		return
	}
	testenv.Must(t, os.MkdirAll(path, 0o700))
	names := newDir()
	for name, child := range n.names {
		names.names[name] = child
	}
	lost := make(map[string]bool)
	for _, c := range n.changes {
		if lost[c.name] = lost[c.name] || random.Float64() >= kept; !lost[c.name] {
			names.change(c)
		}
	}
	for name, child := range names.names {
		if strings.HasSuffix(name, "-shm") {
			// It is memory that the store's connections share, and the first of them to come empties it.
			junk := make([]byte, 32<<10)
			for i := range junk {
				junk[i] = byte(random.Uint32())
			}
			write(t, filepath.Join(path, name), junk)
			continue
		}
		child.leave(t, filepath.Join(path, name), random, kept)
	}
}

func (n *inode) remains(random *rand.Rand, kept float64) []byte {
	data := bytes.Clone(n.data)
	writes := slices.Clone(n.writes)
	if kept < 1 {
		// A file's size changes in order.
		for from := 0; from < len(writes); {
			to := from + 1 + slices.IndexFunc(append(writes[from+1:], &fileWrite{truncate: true}), func(w *fileWrite) bool { return w.truncate })
			some := writes[from:to]
			if !some[0].truncate {
				random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			}
			from = to
		}
	}
	for _, w := range writes {
		switch torn := kept < 1 && random.IntN(3) == 0; {
		case torn && !w.truncate:
			data = w.applyTo(data, func(int) bool { return random.Float64() < kept })
		case random.Float64() < kept:
			data = w.applyTo(data, func(int) bool { return true })
		case !w.truncate && random.IntN(4) == 0:
			data = resize(data, max(len(data), w.at+len(w.data)))
		}
	}
	return data
}

// tracedCalls are the calls that change what is on disk, and those that say which file a descriptor is. pwritev and the
// like are not used by SQLite; were that to change, parseTrace's caller would miss acknowledged deliveries.
const tracedCalls = "mkdir,mkdirat,open,openat,close,pwrite64,write,fsync,fdatasync,ftruncate,link,linkat,unlink,unlinkat,rename,renameat,renameat2"

// syscallEvent is the beginning or the end of a system call. One that took its time has other events in between.
type syscallEvent struct {
	*tracedCall
	end bool
}

type tracedCall struct {
	name string
	args []string
	ret  int
}

// fd is the descriptor that is the call's argument i.
func (c *tracedCall) fd(t *testing.T, i int) int {
	t.Helper()
	digits, _, _ := strings.Cut(c.args[i], "<")
	fd, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatalf("%s(%s): argument %d is no descriptor", c.name, c.args, i)
	}
	return fd
}

func (c *tracedCall) number(t *testing.T, i int) int {
	t.Helper()
	n, err := strconv.Atoi(c.args[i])
	if err != nil {
		t.Fatalf("%s(%.200q): argument %d is no number", c.name, c.args, i)
	}
	return n
}

// text is the bytes of argument i, which strace -xx prints as "\x61\x62".
func (c *tracedCall) text(t *testing.T, i int) []byte {
	t.Helper()
	quoted, begun := strings.CutPrefix(c.args[i], `"`)
	quoted, ended := strings.CutSuffix(quoted, `"`)
	if !begun || !ended {
		t.Fatalf("%s: argument %d is %.200s: no string, or cut short", c.name, i, c.args[i])
	}
	data, err := hex.DecodeString(strings.ReplaceAll(quoted, `\x`, ""))
	if err != nil {
		t.Fatalf("%s: argument %d is %.200s: %v", c.name, i, c.args[i], err)
	}
	return data
}

var (
	resumed   = regexp.MustCompile(`^<\.\.\. (\w+) resumed>`)
	result    = regexp.MustCompile(`^-?\d+|^\?`)
	nameOfOne = regexp.MustCompile(`^\w+`)
)

const unfinished = " <unfinished ...>"

// parseTrace reads what strace -f -y -xx has written.
func parseTrace(t *testing.T, path string) (events []syscallEvent) {
	t.Helper()
	file, err := os.Open(path)
	testenv.Must(t, err)
	defer file.Close()
	type open struct {
		call *tracedCall
		text string
	}
	underway := make(map[string]open) // by thread
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		thread, text, _ := strings.Cut(lines.Text(), " ")
		text = strings.TrimLeft(text, " ")
		switch {
		case strings.HasPrefix(text, "---"), strings.HasPrefix(text, "+++"):
		case strings.HasSuffix(text, unfinished):
			text = strings.TrimSuffix(text, unfinished)
			c := &tracedCall{name: nameOfOne.FindString(text)}
			c.args = splitArgs(text[len(c.name):])
			underway[thread] = open{c, text}
			events = append(events, syscallEvent{c, false})
		case resumed.MatchString(text):
			before, ok := underway[thread]
			if !ok {
				t.Fatalf("strace: %.200s resumes nothing", text)
			}
			delete(underway, thread)
			finish(t, before.call, before.text+resumed.ReplaceAllString(text, ""))
			events = append(events, syscallEvent{before.call, true})
		default:
			c := new(tracedCall)
			finish(t, c, text)
			events = append(events, syscallEvent{c, false}, syscallEvent{c, true})
		}
	}
	testenv.Must(t, lines.Err())
	return events
}

// finish reads a call in full.
func finish(t *testing.T, c *tracedCall, text string) {
	t.Helper()
	equals := strings.LastIndex(text, " = ")
	if equals < 0 {
		t.Fatalf("strace: a line that is no call: %.200s", text)
	}
	c.name = nameOfOne.FindString(text)
	c.args = splitArgs(strings.TrimSuffix(strings.TrimRight(text[len(c.name):equals], " "), ")"))
	c.ret = -1
	if ret := result.FindString(text[equals+3:]); ret != "?" { // the process ended within the call
		var err error
		if c.ret, err = strconv.Atoi(ret); err != nil {
			t.Fatal(err)
		}
	}
}

// splitArgs splits "(a, b". With -xx no string or path has a comma of its own.
func splitArgs(text string) []string { return strings.Split(strings.TrimPrefix(text, "("), ", ") }

func TestParseTrace(t *testing.T) {
	path := t.TempDir() + "/trace"
	write(t, path, []byte(`7 openat(AT_FDCWD<\x2f>, "\x2f\x61", O_RDWR|O_CREAT, 0600) = 5<\x2f\x61>
7 pwrite64(5<\x2f\x61>, "\x2c\x29"..., 2, 10 <unfinished ...>
8 --- SIGURG {si_signo=SIGURG, si_code=SI_TKILL, si_pid=7, si_uid=0} ---
8 fsync(5<\x2f\x61>)                    = -1 EIO (Input/output error)
7 <... pwrite64 resumed>)               = 2
8 fsync(5<\x2f\x61> <unfinished ...>
7 exit_group(0)                         = ?
8 <... fsync resumed>)                  = ?
7 +++ exited with 0 +++
`))
	var got []string
	for _, e := range parseTrace(t, path) {
		got = append(got, fmt.Sprint(e.name, e.ret, len(e.args), e.end))
	}
	want := "[openat5 4 false openat5 4 true pwrite642 4 false fsync-1 1 false fsync-1 1 true pwrite642 4 true " +
		"fsync-1 1 false exit_group-1 1 false exit_group-1 1 true fsync-1 1 true]"
	if fmt.Sprint(got) != want {
		t.Errorf("parsed as\n%v, want\n%v", got, want)
	}
}
