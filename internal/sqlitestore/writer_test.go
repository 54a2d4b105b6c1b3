package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// roleWriter makes the test binary a writer: a process that opens a store and writes to it.
const roleWriter = "writer"

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
	p, err := testenv.Program{Role: roleWriter, Under: under, Args: slices.Concat([]string{
		w.dir, fmt.Sprint(w.seed), fmt.Sprint(w.sessions), fmt.Sprint(w.calls), fmt.Sprint(w.crash)}, w.pragmas)}.Start()
	testenv.Must(t, err)
	out := p.Rest()
	if err := p.Wait(); err != nil || strings.Contains(p.Log.String(), "panic") {
		t.Fatalf("the writer: %v; it printed\n%s%s", err, out, &p.Log)
	}
	return out
}

// writerMain is the main function of a writer.
func writerMain(args []string) int {
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
