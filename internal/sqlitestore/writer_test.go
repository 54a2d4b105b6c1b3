package sqlitestore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

const (
	// envWriter makes the test binary a writer: a process that opens a store and writes to it.
	envWriter = "JOBONCE_SQLITETEST_WRITER"
	// envSeed repeats the choices of a failed test.
	envSeed = "JOBONCE_TEST_SEED"
)

// seeded returns the seed of a test, which a failing one prints.
func seeded(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(envSeed); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	t.Logf("%s=%d repeats this", envSeed, seed)
	return seed
}

// long tells whether the long modes were asked for.
func long() bool { return os.Getenv("JOBONCE_TEST_LONG") == "1" }

// needStrace finds the tool. Without it a test is skipped, or fails when CI is set.
func needStrace(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err == nil {
		// It can be there and not be allowed to trace, in a container without the capability.
		var out []byte
		if out, err = exec.Command(path, "-o", os.DevNull, "true").CombinedOutput(); err != nil {
			err = fmt.Errorf("strace cannot trace: %w: %s", err, out)
		}
	}
	if err != nil {
		notTested(t, err)
	}
	return path
}

func notTested(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("CI is set, and what this test needs is missing: %v", err)
	}
	t.Skipf("NOT TESTED, because something is missing: %v", err)
}

// writer writes to a store, the same for the same seed. It prints each call before it makes it, and what became of it
// once the store has answered, with one write(2) each; ledger reads that.
type writer struct {
	dir  string
	seed uint64
	// sessions is how often the store is opened, calls how many calls are made each time.
	sessions, calls int
	// crash ends each session without closing the store.
	crash   bool
	pragmas []string
}

// run runs a writer, under the command that comes before its own, and returns what it said.
func (w writer) run(t *testing.T, under ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line := slices.Concat(under, []string{self, w.dir, fmt.Sprint(w.seed), fmt.Sprint(w.sessions), fmt.Sprint(w.calls),
		fmt.Sprint(w.crash)}, w.pragmas)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), envWriter + "=1"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "panic") {
		t.Fatalf("the writer: %v; it printed\n%s%s", err, out, &stderr)
	}
	return string(out)
}

// writerMain is the main function of a writer. It ends when its input does, so that it never outlives the test.
func writerMain(args []string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	// strace counts the calls of each thread by itself.
	runtime.LockOSThread()
	var numbers [3]uint64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseUint(args[1+i], 10, 64); err != nil {
			panic(err)
		}
	}
	w := writer{dir: args[0], seed: numbers[0], sessions: int(numbers[1]), calls: int(numbers[2]),
		crash: args[4] == "true", pragmas: args[5:]}
	run := writerRun{writer: w, random: rand.New(rand.NewPCG(w.seed, 0)), tokens: make(map[string]string)}
	for range w.sessions {
		run.session()
	}
	return 0
}

type writerRun struct {
	writer
	random *rand.Rand
	jobs   int // how many there are
	tokens map[string]string
	leased []string
}

func (w *writerRun) session() {
	opts := sqlitestore.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	s, err := sqlitestore.Open(context.Background(), w.dir, opts.WithPragmas(w.pragmas...))
	if err != nil {
		fmt.Printf("open-failed %q\n", err)
		return
	}
	for range w.calls {
		if w.random.IntN(4) == 0 && len(w.leased) > 0 {
			w.complete(s)
		} else {
			w.record(s)
		}
	}
	state := "serving"
	if s.Check(context.Background()) != nil {
		state = "out-of-service"
	}
	fmt.Println(state)
	if w.crash {
		return
	}
	if err := s.Close(); err != nil {
		fmt.Printf("close-failed %q\n", err)
	}
}

// record records one delivery or several at once, each of a new job or of one that is known.
func (w *writerRun) record(s *sqlitestore.Store) {
	n := 1
	if w.random.IntN(3) == 0 {
		n += w.random.IntN(12)
	}
	var ids []string
	var deliveries []job.Delivery
	for range n {
		i := w.jobs
		if w.random.IntN(2) == 0 && w.jobs > 0 {
			i = w.random.IntN(w.jobs)
		} else {
			w.jobs++
		}
		id := "job-" + strconv.Itoa(i)
		d, err := writerInput(id).Delivery(1 << 20)
		if err != nil {
			panic(err)
		}
		ids, deliveries = append(ids, id), append(deliveries, d)
	}
	list := strings.Join(ids, " ")
	fmt.Println("try record " + list)
	outcomes := s.Record(context.Background(), deliveries)
	fmt.Println(answerName(outcomes[0].Err) + " record " + list)
	for i, o := range outcomes {
		if o.Err == nil && o.Lease != nil && w.tokens[ids[i]] == "" {
			w.tokens[ids[i]] = o.Lease.Token
			w.leased = append(w.leased, ids[i])
		}
	}
}

// complete completes a job that was not completed so far as the writer knows.
func (w *writerRun) complete(s *sqlitestore.Store) {
	i := w.random.IntN(len(w.leased))
	id := w.leased[i]
	fmt.Println("try complete " + id)
	err := job.Complete(context.Background(), s, id, w.tokens[id], resultOf(id))
	fmt.Println(answerName(err) + " complete " + id)
	if err == nil {
		w.leased = append(w.leased[:i], w.leased[i+1:]...)
	}
}

func answerName(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, job.ErrOutcomeUnknown):
		return "unknown"
	case errors.Is(err, job.ErrUnavailable):
		return "unavailable"
	}
	return fmt.Sprintf("wrong:%q", err)
}

// writerInput is every delivery of a job. One body in five takes several pages, one in three is in a row of its own.
func writerInput(id string) job.Input {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "job-"))
	if err != nil {
		panic(err)
	}
	size := 10
	switch {
	case n%5 == 4:
		size = 20_000 + n%3000
	case n%3 == 2:
		size = 1600 + n%100
	}
	lease := time.Hour
	in := job.Input{JobID: id, Body: job.Body{Kind: job.BodyText, Data: strings.Repeat(id+" ", size/len(id))}}
	if n%2 == 0 {
		in.Mode, in.Lease = job.ModeLeased, &lease
	}
	return in
}

func resultOf(id string) string { return "result of " + id }
