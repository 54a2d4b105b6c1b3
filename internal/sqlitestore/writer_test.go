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

// ledger is what a writer has said: what it tried, and what the store answered.
type ledger struct {
	jobs     map[string]*jobLedger
	findings []string
	// sessions are how the writer found the store at the end of each.
	sessions []string
	// answers counts the answers to calls by their name.
	answers map[string]int
}

// jobLedger counts the calls for a job, by their answers.
type jobLedger struct{ deliveries, completions map[string]int64 }

func newLedger() *ledger {
	return &ledger{jobs: make(map[string]*jobLedger), answers: make(map[string]int)}
}

// read takes what the writer printed, whole lines.
func (l *ledger) read(text string) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 || words[1] != "record" && words[1] != "complete" {
			l.sessions = append(l.sessions, strings.TrimSpace(line))
			continue
		}
		l.answers[words[0]]++
		switch words[0] {
		case "try", "ok", "unknown", "unavailable":
		default:
			l.findings = append(l.findings, "an answer that must not be: "+line)
		}
		for _, id := range words[2:] {
			j := l.jobs[id]
			if j == nil {
				j = &jobLedger{make(map[string]int64), make(map[string]int64)}
				l.jobs[id] = j
			}
			if words[1] == "record" {
				j.deliveries[words[0]]++
			} else {
				j.completions[words[0]]++
			}
		}
	}
}

// check opens the store in dir and holds it against the ledger. What it finds wrong is the answer.
func (l *ledger) check(ctx context.Context, dir string) []string {
	findings := l.findings[:len(l.findings):len(l.findings)]
	find := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	s, err := sqlitestore.Open(ctx, dir, sqlitestore.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		find("open: %v", err)
		return findings
	}
	v, err := sqlitestore.Verify(ctx, sqlitestore.File(dir), func(int64, int64) {})
	if err != nil {
		find("verify: %v", err)
	}
	for _, f := range v.Findings {
		find("verify: %s", f)
	}
	if v.Jobs > int64(len(l.jobs)) {
		find("%d jobs, but only %d were tried", v.Jobs, len(l.jobs))
	}
	for id, j := range l.jobs {
		if finding := j.check(ctx, s, id); finding != "" {
			find("%s: %s", id, finding)
		}
	}
	// It is of use, too.
	d, err := job.Input{JobID: "afterwards"}.Delivery(1 << 20)
	if err == nil {
		err = s.Record(ctx, []job.Delivery{d})[0].Err
	}
	if err := errors.Join(err, s.Close()); err != nil {
		find("afterwards: %v", err)
	}
	return findings
}

func (j *jobLedger) check(ctx context.Context, s *sqlitestore.Store, id string) string {
	ok, possible := j.deliveries["ok"], j.deliveries["try"]-j.deliveries["unavailable"]
	r, err := s.Get(ctx, id, true)
	if errors.Is(err, job.ErrNotFound) {
		if ok > 0 {
			return fmt.Sprintf("lost, after %d acknowledged deliveries", ok)
		}
		return ""
	}
	completed := r.Work.State == job.StateCompleted
	switch {
	case err != nil:
		return err.Error()
	case r.Deliveries < ok:
		return fmt.Sprintf("lost some of %d acknowledged deliveries, %d are left", ok, r.Deliveries)
	case r.Deliveries > possible:
		return fmt.Sprintf("counts %d deliveries, but only %d can have been written", r.Deliveries, possible)
	case r.Body != writerInput(id).Body:
		return fmt.Sprintf("has another body of %d bytes", len(r.Body.Data))
	case j.completions["ok"] > 0 && !completed:
		return "lost its acknowledged completion"
	case completed && j.completions["try"] == j.completions["unavailable"]:
		return "is completed, and no call can have done that"
	case completed && r.Work.Result != resultOf(id):
		return fmt.Sprintf("has another result: %q", r.Work.Result)
	}
	return ""
}

// TestLedgerFinds holds a store against ledgers that differ from it in one respect each.
func TestLedgerFinds(t *testing.T) {
	const truth = "try record job-0 job-1\nok record job-0 job-1\ntry complete job-0\nok complete job-0\n"
	for _, c := range []struct{ name, ledger, want string }{
		{"the truth", truth, ""},
		{"a call under way", truth + "try record job-0 job-7\ntry complete job-7\n", ""},
		{"an answer that was lost", strings.ReplaceAll(truth, "ok", "unknown"), ""},
		{"a lost job", truth + "try record job-2\nok record job-2\n", "job-2: lost, after 1 acknowledged"},
		{"a lost delivery", truth + "try record job-1\nok record job-1\n", "job-1: lost some of 2"},
		{"a write that was denied", strings.Replace(truth, "ok record", "unavailable record", 1), "counts 1 deliveries, but only 0"},
		{"a job too many", "try record job-0\nok record job-0\ntry complete job-0\nok complete job-0\n", "2 jobs, but only 1"},
		{"a lost completion", truth + "try complete job-1\nok complete job-1\n", "job-1: lost its acknowledged completion"},
		{"a completion that was denied", strings.Replace(truth, "ok complete", "unavailable complete", 1), "no call can have done that"},
		{"an impossible answer", truth + "wrong:\"x\" record job-0\n", "an answer that must not be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, nil)
			for _, id := range []string{"job-0", "job-1"} {
				d, err := writerInput(id).Delivery(1 << 20)
				testenv.Must(t, err)
				o := s.Record(t.Context(), []job.Delivery{d})[0]
				if o.Err != nil {
					t.Fatal(o.Err)
				}
				if o.Lease != nil {
					testenv.Must(t, job.Complete(t.Context(), s, id, o.Lease.Token, resultOf(id)))
				}
			}
			testenv.Must(t, s.Close())
			l := newLedger()
			l.read(c.ledger)
			found := strings.Join(l.check(t.Context(), dir), "\n")
			if !strings.Contains(found, c.want) || c.want == "" && found != "" {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}
