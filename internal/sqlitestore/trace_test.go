package sqlitestore_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

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
