package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

func shell(t *testing.T, script string, cfg ExecConfig) client.WorkFunc {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.KillAfter == 0 {
		cfg.KillAfter = time.Minute
	}
	cfg.Command = []string{"sh", "-c", script}
	fn, err := NewExec(cfg)
	testenv.Must(t, err)
	return fn
}

// TestExits: what becomes of a job by how its command ends.
func TestExits(t *testing.T) {
	const (
		done   = joboncev1.WorkState_WORK_STATE_COMPLETED
		queued = joboncev1.WorkState_WORK_STATE_QUEUED
		dead   = joboncev1.WorkState_WORK_STATE_DEAD
	)
	type want struct {
		state       joboncev1.WorkState
		result, err string
	}
	commands := map[string]struct {
		script string
		want   want
	}{
		"done":               {`echo shipped; echo noise >&2`, want{done, "shipped\n", ""}},
		"body":               {`cat`, want{done, "the body", ""}},
		"body not read":      {`exit 0`, want{done, "", ""}},
		"facts":              {`printf '%s|' "$JOB_ID" "$JOB_EVENT" "$JOB_STATUS" "$JOB_SOURCE" "$JOB_ATTEMPT"`, want{done, "facts|it's $HOME|OK|we\uFFFDb|1|", ""}},
		"no UTF-8":           {`printf 'a\377b'`, want{done, "a\uFFFDb", ""}},
		"long":               {`head -c 100000 /dev/zero | tr '\0' x`, want{done, strings.Repeat("x", 64<<10), ""}},
		"inside a character": {`head -c 65533 /dev/zero | tr '\0' x; printf '\360\237\223\246'`, want{done, strings.Repeat("x", 65533), ""}},
		"failed":             {`echo out; echo "no stock" >&2; exit 3`, want{queued, "", "the command ended with exit status 3: no stock"}},
		"dead":               {`echo "no such order" >&2; exit 65`, want{dead, "", "the command ended with exit status 65: no such order"}},
		"long error":         {`i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done >&2; exit 1`, want{queued, "", "line 999"}},
		"signal":             {`kill -9 $$`, want{queued, "", "the command ended with signal: killed"}},
		"hangs":              {`echo waiting >&2; exec sleep 600`, want{queued, "", "the command did not end within 2s: waiting"}},
		"leaves a child":     {`sleep 6 & echo started`, want{done, "started\n", ""}},
		"does not listen":    {`trap '' TERM; while :; do sleep 0.1; done`, want{queued, "", "the command did not end within 2s"}},
		"has no secrets":     {`env | grep -c '^JOBONCE_\|MONGODB_URI' ; exit 0`, want{done, "0\n", ""}},
		"has the rest":       {`echo "$RUNNER_TEST"`, want{done, "kept\n", ""}},
		"is not in a shell":  {`echo "$0"`, want{done, "sh\n", ""}},
	}
	t.Setenv("JOBONCE_TOKEN_FILE", "secret")
	t.Setenv("MONGODB_URI", "secret")
	t.Setenv("RUNNER_TEST", "kept")
	t.Setenv("JOB_EVENT", "somebody else's")
	s := startService(t)
	fns := make(map[string]client.WorkFunc)
	for id, tc := range commands {
		fns[id] = shell(t, tc.script, ExecConfig{Timeout: 2 * time.Second, KillAfter: time.Second, DeadExit: []int{65}})
	}
	var began sync.WaitGroup
	began.Add(len(commands))
	var once sync.Map
	stop := s.work(client.WorkerConfig{Concurrency: len(commands)}, func(ctx context.Context, w *client.Work) error {
		if _, again := once.LoadOrStore(w.Job.GetJobId(), true); again {
			return client.NotStarted(errors.New("once is enough"))
		}
		defer began.Done()
		return fns[w.Job.GetJobId()](ctx, w)
	})
	for id := range commands {
		req := text(id, "the body")
		req.Event, req.Status, req.Source = "it's $HOME", "OK", "we\x00b" // no variable holds a NUL
		s.queue(req)
	}
	began.Wait()
	stop()
	for id, tc := range commands {
		w := s.job(id).GetWork()
		if w.GetState() != tc.want.state || w.GetResult() != tc.want.result ||
			!strings.HasSuffix(w.GetLastError(), tc.want.err) || (tc.want.err == "") != (w.GetLastError() == "") {
			t.Errorf("%s: got %.300q, %.300q, %.300q", id, w.GetState(), w.GetResult(), w.GetLastError())
		}
	}
}

// TestLeaseLost: when somebody else may do the work, the command and what it has started is asked to end, and then killed.
func TestLeaseLost(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		asked  bool // It gets the chance to say that it was asked.
		after  time.Duration
	}{
		"asked":  {`trap 'echo asked >> "$OUT"; exit 1' TERM; sleep 600 & echo $! > "$PIDS"; echo $$ >> "$PIDS"; touch "$OUT"; wait`, true, time.Minute},
		"killed": {`trap '' TERM; sleep 600 & echo $! > "$PIDS"; echo $$ >> "$PIDS"; touch "$OUT"; while :; do sleep 0.05; done`, false, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			out, pids := filepath.Join(dir, "out"), filepath.Join(dir, "pids")
			t.Setenv("OUT", out)
			t.Setenv("PIDS", pids)
			s := startService(t)
			s.queue(text("j", "x"))
			fn := shell(t, tc.script, ExecConfig{KillAfter: tc.after})
			ended := make(chan error, 1)
			lease := make(chan *client.Work, 1)
			s.work(client.WorkerConfig{Lease: 5 * time.Second}, func(ctx context.Context, w *client.Work) error {
				lease <- w
				err := fn(ctx, w)
				ended <- err
				return err
			})
			w := <-lease
			for {
				if _, err := os.Stat(out); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			// Somebody takes the job away, as an operator may.
			testenv.Must(t, s.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{
				JobId: "j", LeaseToken: w.Lease.GetToken(), RetryDelay: durationpb.New(time.Hour),
			}))
			if err := <-ended; !errors.Is(err, client.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			said, err := os.ReadFile(out)
			testenv.Must(t, err)
			if got := string(said) == "asked\n"; got != tc.asked {
				t.Errorf("it wrote %q", said)
			}
			list, err := os.ReadFile(pids)
			testenv.Must(t, err)
			for pid := range strings.FieldsSeq(string(list)) {
				n, err := strconv.Atoi(pid)
				testenv.Must(t, err)
				gone(t, n)
			}
		})
	}
}

// gone waits until a process has ended; one that nobody has waited for yet has.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 5000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil && syscall.Kill(pid, 0) != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("process %d goes on", pid)
}

// TestStop: what is still at it when the worker has to end is given back, for others to start at once.
func TestStop(t *testing.T) {
	s := startService(t)
	s.queue(text("j", "x"))
	began := make(chan struct{})
	fn := shell(t, "sleep 600", ExecConfig{KillAfter: time.Second})
	stop := s.work(client.WorkerConfig{ShutdownTimeout: 10 * time.Millisecond}, func(ctx context.Context, w *client.Work) error {
		close(began)
		return fn(ctx, w)
	})
	<-began
	stop()
	if w := s.job("j").GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_QUEUED || w.GetDueTime().AsTime().After(time.Now()) {
		t.Errorf("got %v", w)
	}
}

func TestNewExecRefuses(t *testing.T) {
	if _, err := NewExec(ExecConfig{}); err == nil {
		t.Error("no command is taken")
	}
	if _, err := NewExec(ExecConfig{Command: []string{"no-such-command-here"}}); err == nil || !strings.Contains(err.Error(), "no-such-command-here") {
		t.Errorf("got %v", err)
	}
}

// TestCommandVanishes: a command that cannot be started says nothing about the job.
func TestCommandVanishes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "command")
	testenv.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
	fn, err := NewExec(ExecConfig{Command: []string{path}, Timeout: time.Minute, KillAfter: time.Minute})
	testenv.Must(t, err)
	testenv.Must(t, os.Remove(path))
	work := &client.Work{Job: &joboncev1.Job{JobId: "j"}, Lease: &joboncev1.Lease{}}
	if err := fn(t.Context(), work); err == nil || !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "could not be started") {
		t.Errorf("got %v", err)
	}
}

func TestHeadAndTail(t *testing.T) {
	h, tl := &head{limit: 5}, &tail{limit: 5}
	for _, s := range []string{"ab", "", "cdefgh", "ij"} {
		for _, w := range []interface{ Write([]byte) (int, error) }{h, tl} {
			if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
				t.Errorf("%q: %d, %v", s, n, err)
			}
		}
	}
	if !slices.Equal(h.kept, []byte("abcde")) || !slices.Equal(tl.kept, []byte("fghij")) {
		t.Errorf("kept %q and %q", h.kept, tl.kept)
	}
}
