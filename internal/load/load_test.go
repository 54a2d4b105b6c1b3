package load_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/load"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a target that decides rightly, at once unless wait says otherwise.
type memory struct {
	wait func(call int, ctx context.Context) error

	mu    sync.Mutex
	calls int
	seen  map[string]int
	under int // calls under way
	most  int
}

func (m *memory) Record(ctx context.Context, key, body string) (bool, error) {
	m.mu.Lock()
	m.calls++
	call := m.calls
	m.under++
	m.most = max(m.most, m.under)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.under--
	}()
	if m.wait != nil {
		if err := m.wait(call, ctx); err != nil {
			return false, err
		}
	}
	if !strings.HasPrefix(body, `{"job_id":"`+key+`"`) {
		return false, errors.New("the body is another key's")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = make(map[string]int)
	}
	m.seen[key]++
	return m.seen[key] == 1, nil
}

// answerIn makes a target that takes its time.
func answerIn(d time.Duration) func(int, context.Context) error {
	return func(_ int, ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func newLoad(t *testing.T, target load.Target, w load.Workload, reason func(error) string) *load.Load {
	t.Helper()
	w.Run = "test"
	if w.BodyBytes == 0 {
		w.BodyBytes = 1024
	}
	l, err := load.New(target, w, reason)
	testenv.Must(t, err)
	return l
}

func TestCount(t *testing.T) {
	target := &memory{}
	r := newLoad(t, target, load.Workload{Callers: 8, Count: 1000}, nil).Run(t.Context())
	if r.Ops != 1000 || r.Firsts != 1000 || r.Duplicates != 0 || r.Keys != 1000 || r.Failed() != 0 || target.calls != 1000 {
		t.Errorf("%+v after %d calls", r, target.calls)
	}
	for n := range int64(1000) {
		if key := load.Key("test", n); target.seen[key] != 1 {
			t.Errorf("%s was sent %d times", key, target.seen[key])
		}
	}
}

func TestDuplicates(t *testing.T) {
	target := &memory{}
	r := newLoad(t, target, load.Workload{Callers: 4, Count: 10_000, Duplicates: 30}, nil).Run(t.Context())
	if r.Ops != 10_000 || r.Firsts != r.Keys || r.Firsts+r.Duplicates != r.Ops || int64(len(target.seen)) != r.Keys {
		t.Errorf("%+v, %d keys seen", r, len(target.seen))
	}
	// 30 % of those after the first give 3,000 with a standard deviation of 46.
	if r.Duplicates < 2700 || r.Duplicates > 3300 {
		t.Errorf("%d of 10000 are duplicates, want about 3000", r.Duplicates)
	}
}

// TestDuplicatesAreSettled holds repeated deliveries to keys that were answered before.
func TestDuplicatesAreSettled(t *testing.T) {
	target := &memory{}
	r := newLoad(t, target, load.Workload{Callers: 1, Count: 10, Duplicates: 100}, nil).Run(t.Context())
	// With one caller the second key has settled the first, and every later delivery repeats that.
	if r.Firsts != 2 || r.Duplicates != 8 || target.seen[load.Key("test", 0)] != 9 {
		t.Errorf("%+v, seen %v", r, target.seen)
	}
}

func TestHotKeys(t *testing.T) {
	target := &memory{}
	r := newLoad(t, target, load.Workload{Callers: 4, Count: 100, HotKeys: 3}, nil).Run(t.Context())
	if r.Ops != 100 || r.Firsts != 3 || r.Duplicates != 97 || r.Keys != 3 {
		t.Errorf("%+v", r)
	}
	for key, n := range target.seen {
		if n != 33 && n != 34 {
			t.Errorf("%s was sent %d times, want a third of 100", key, n)
		}
	}
	r = newLoad(t, &memory{}, load.Workload{Callers: 4, Count: 2, HotKeys: 3}, nil).Run(t.Context())
	if r.Keys != 2 || r.Firsts != 2 {
		t.Errorf("two deliveries: %+v", r)
	}
}

// TestClock holds durations, the rate and the percentiles to a clock that only waiting moves.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &memory{wait: func(call int, ctx context.Context) error {
			if call == 1 {
				return answerIn(350*time.Millisecond)(call, ctx)
			}
			return answerIn(100*time.Millisecond)(call, ctx)
		}}
		l := newLoad(t, target, load.Workload{Callers: 2, Duration: time.Second}, nil)
		r := l.Run(t.Context())
		// One caller answers at 100 to 1000 ms, the other at 350, then 450 to 1050.
		if r.Ops != 18 || r.Elapsed != 1050*time.Millisecond || r.Max != 350*time.Millisecond {
			t.Errorf("%+v", r)
		}
		if !near(r.P50, 100*time.Millisecond) || !near(r.P99, 350*time.Millisecond) || r.P99 > r.Max {
			t.Errorf("p50 %v, p99 %v", r.P50, r.P99)
		}
		if rate := r.Rate(); rate < 17.14 || rate > 17.15 {
			t.Errorf("rate %v, want 18 in 1.05 s", rate)
		}
		if target.most != 2 {
			t.Errorf("%d calls at a time, want 2", target.most)
		}
	})
}

// near allows for the three digits that are kept.
func near(got, want time.Duration) bool { return (got - want).Abs() <= want/1000 }

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(t, &memory{wait: answerIn(100 * time.Millisecond)}, load.Workload{Callers: 1, Count: 5}, nil)
		if s := l.Snapshot(); s.Ops != 0 || s.Elapsed != 0 || s.Rate() != 0 {
			t.Errorf("before the run: %+v", s)
		}
		done := make(chan load.Result)
		go func() { done <- l.Run(t.Context()) }()
		time.Sleep(250 * time.Millisecond) // of the test's own clock
		if s := l.Snapshot(); s.Ops != 2 || s.Elapsed != 250*time.Millisecond || s.Rate() != 8 {
			t.Errorf("on the way: %+v", s)
		}
		if r := <-done; r.Ops != 5 || r.Elapsed != 500*time.Millisecond {
			t.Errorf("at the end: %+v", r)
		}
	})
}

// TestCancel ends a run early: what was answered counts, what was under way does not, as an error neither.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		target := &memory{wait: answerIn(100 * time.Millisecond)}
		r := newLoad(t, target, load.Workload{Callers: 3, Duration: time.Hour}, nil).Run(ctx)
		if r.Ops != 6 || r.Failed() != 0 || r.Keys != 9 || r.Elapsed != 200*time.Millisecond {
			t.Errorf("%+v", r)
		}
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, broken := errors.New("busy"), errors.New("broken")
		target := &memory{wait: func(call int, _ context.Context) error {
			switch call % 4 {
			case 1:
				return busy
			case 2:
				return broken
			}
			return nil
		}}
		r := newLoad(t, target, load.Workload{Callers: 1, Count: 40}, func(err error) string { return strings.ToUpper(err.Error()) }).
			Run(t.Context())
		if r.Ops != 20 || r.Errors["BUSY"] != 10 || r.Errors["BROKEN"] != 10 || r.Failed() != 20 || r.FirstError != busy {
			t.Errorf("%+v", r)
		}
		if r.Elapsed < 190*time.Millisecond {
			t.Errorf("20 errors took %v: a caller must pause after each", r.Elapsed)
		}
	})
}

func TestReasonIsOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &memory{wait: func(int, context.Context) error { return errors.New("broken") }}
		r := newLoad(t, target, load.Workload{Callers: 1, Count: 3}, nil).Run(t.Context())
		if r.Errors["error"] != 3 || r.Ops != 0 || r.Rate() != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWorkloadNamesTheField(t *testing.T) {
	good := load.Workload{Run: "r-1", Callers: 1, Count: 1, BodyBytes: 1024}
	testenv.Must(t, good.Validate())
	for field, spoil := range map[string]func(*load.Workload){
		"Run ":               func(w *load.Workload) { w.Run = "" },
		"Run must":           func(w *load.Workload) { w.Run = strings.Repeat("r", 33) },
		`is "a b"`:           func(w *load.Workload) { w.Run = "a b" },
		"Callers ":           func(w *load.Workload) { w.Callers = 0 },
		"Callers must":       func(w *load.Workload) { w.Callers = load.MaxCallers + 1 },
		"Count ":             func(w *load.Workload) { w.Count = -1 },
		"Duration ":          func(w *load.Workload) { w.Duration = -1 },
		"Count and Duration": func(w *load.Workload) { w.Count = 0 },
		"BodyBytes ":         func(w *load.Workload) { w.BodyBytes = load.MinBodyBytes - 1 },
		"BodyBytes must":     func(w *load.Workload) { w.BodyBytes = load.MaxBodyBytes + 1 },
		"Duplicates ":        func(w *load.Workload) { w.Duplicates = 101 },
		"HotKeys ":           func(w *load.Workload) { w.HotKeys = -1 },
		"exclude each other": func(w *load.Workload) { w.HotKeys, w.Duplicates = 1, 1 },
	} {
		w := good
		spoil(&w)
		if _, err := load.New(&memory{}, w, nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want an error with %q", w, err, field)
		}
	}
}

func TestBody(t *testing.T) {
	runs := []string{"r", strings.Repeat("r", 32)}
	for _, size := range []int{load.MinBodyBytes, 200, 700, 1 << 10, 16 << 10} {
		for _, run := range runs {
			key := load.Key(run, 7)
			body := load.NewBody(run, size).Of(key)
			if len(body) != size {
				t.Errorf("a body of run %s is %d bytes, want %d", run, len(body), size)
			}
			var webhook struct {
				JobID   string `json:"job_id"`
				Event   string `json:"event"`
				Results []any  `json:"results"`
			}
			if err := json.Unmarshal([]byte(body), &webhook); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
			if webhook.JobID != key || webhook.Event != "job.completed" || (len(webhook.Results) == 0) == (size >= 700) {
				t.Errorf("%d bytes: %.300s", size, body)
			}
		}
	}
}

func TestKey(t *testing.T) {
	for n, want := range map[int64]string{0: "bench-r-000000000", 1_000_000: "bench-r-001000000", 1_000_000_000: "bench-r-1000000000"} {
		if got := load.Key("r", n); got != want {
			t.Errorf("key %d is %s, want %s", n, got, want)
		}
	}
}
