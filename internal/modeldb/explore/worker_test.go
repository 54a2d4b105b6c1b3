package explore_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// The exploration runs in processes of its own: the random numbers of a run are the whole process's, a bubble uses one
// processor, and the race detector would make it many times slower. They are told what to explore line by line.

// task is what a worker is to explore.
type task struct {
	Scenario   string
	Deployment modeldb.Deployment
	Faults     int
	// Of is what the names of the faults have; of all, when it is empty.
	Of string
	// Until is when it gives up; zero for never.
	Until time.Time
}

func (j task) String() string {
	return named(j, j.Faults)
}

// named is what the part of a task is called that has some number of faults.
func named(j task, faults int) string {
	return fmt.Sprintf("%s, %v, %d faults", j.Scenario, j.Deployment, faults)
}

// size tells roughly how much there is to explore.
func (j task) size() int {
	s, _ := scenarioNamed(j.Scenario)
	return j.Faults + len(s.callers)
}

const (
	workerVariable = "JOBONCE_EXPLORE_WORKER"
	resultPrefix   = "result "
)

// TestWorker is what a worker runs.
func TestWorker(t *testing.T) {
	if os.Getenv(workerVariable) == "" {
		t.Skip("only in the processes that other tests start")
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var j task
		if err := json.Unmarshal(lines.Bytes(), &j); err != nil {
			t.Fatal(err)
		}
		s, ok := scenarioNamed(j.Scenario)
		if !ok {
			t.Fatalf("no scenario %q", j.Scenario)
		}
		answer, err := json.Marshal(explore(t, s, j))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(resultPrefix + string(answer))
	}
}

// buildWorker builds the program that a worker is, without the race detector. overlay is one of the go command, in which
// files are replaced by others; empty for none.
func buildWorker(t *testing.T, overlay string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "worker")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, ".")
	if overlay != "" {
		cmd.Args = slices.Insert(cmd.Args, 3, "-overlay", overlay)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building a worker: %v\n%s", err, out)
	}
	return binary
}

// processors is how many workers there are at once.
const processors = 2

// exploreAll has workers explore all tasks, and calls done with the results of each as they come. It stops taking tasks up when done
// says so.
func exploreAll(t *testing.T, binary string, tasks []task, done func(task, []result) (more bool)) {
	t.Helper()
	next := make(chan task, len(tasks))
	for _, j := range tasks {
		next <- j
	}
	close(next)
	var mu sync.Mutex
	var workers sync.WaitGroup
	more := true
	for range min(processors, len(tasks)) {
		workers.Go(func() {
			var w *worker
			defer func() {
				if w != nil {
					w.stop()
				}
			}()
			for j := range next {
				mu.Lock()
				stop := !more
				mu.Unlock()
				if stop {
					return
				}
				var r []result
				var err error
				if w == nil {
					w, err = startWorker(t, binary)
				}
				if err == nil {
					r, err = w.explore(j)
				}
				mu.Lock()
				if err != nil {
					t.Errorf("%v: %v", j, err)
					w = nil // it has ended
				} else {
					more = done(j, r) && more
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
}

// worker is a process that explores.
type worker struct {
	cmd    *exec.Cmd
	stdin  *json.Encoder
	close  func() error
	stdout *bufio.Scanner
	stderr strings.Builder
}

func startWorker(t *testing.T, binary string) (*worker, error) {
	w := &worker{cmd: exec.CommandContext(t.Context(), binary, "-test.run", "^TestWorker$", "-test.timeout", "0")}
	// A run's goroutines begin with stacks as large as most become, and nobody asks where memory comes from.
	w.cmd.Env = append(os.Environ(), workerVariable+"=1", "GODEBUG=adaptivestackstart=1,memprofilerate=0", "GOMAXPROCS=1", "GOGC=1600", "GOMEMLIMIT=2GiB")
	w.cmd.Stderr = &w.stderr
	w.cmd.WaitDelay = 10 * time.Second
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdin, w.close, w.stdout = json.NewEncoder(stdin), stdin.Close, bufio.NewScanner(stdout)
	w.stdout.Buffer(nil, 64<<20)
	return w, w.cmd.Start()
}

func (w *worker) explore(j task) (r []result, err error) {
	if err := w.stdin.Encode(j); err != nil {
		return r, err
	}
	var other []string
	for w.stdout.Scan() {
		answer, is := strings.CutPrefix(w.stdout.Text(), resultPrefix)
		if is {
			return r, json.Unmarshal([]byte(answer), &r)
		}
		other = append(other, w.stdout.Text())
	}
	_ = w.cmd.Wait()
	return r, fmt.Errorf("the worker ended: %s\n%s", strings.Join(other, "\n"), w.stderr.String())
}

func (w *worker) stop() {
	_ = w.close()
	_ = w.cmd.Wait()
}
