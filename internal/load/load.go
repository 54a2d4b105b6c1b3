package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Target is what is put under load.
type Target interface {
	// Record records one delivery, and tells whether it was its job's first. Many callers call it at a time. It ends
	// soon after ctx does.
	Record(ctx context.Context, key, body string) (first bool, err error)
}

// Load is one run of a workload against a target.
type Load struct {
	target Target
	w      Workload
	reason func(error) string
	keys   keys
	sent   atomic.Int64

	mu        sync.Mutex
	start     time.Time
	last      time.Time // the latest answer
	latencies *hdrhistogram.Histogram
	result    Result
}

// Latencies are kept in nanoseconds with three significant digits; a longer one counts as the longest.
const longest = 5 * time.Minute

// errorPause is how long a caller whose delivery failed waits before the next: a target that refuses everything at once
// must not be stormed.
const errorPause = 10 * time.Millisecond

// New prepares a run. reason puts errors into classes for [Result.Errors]; nil makes them all "error". The error says
// which field of the workload cannot be.
func New(target Target, w Workload, reason func(error) string) (*Load, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	if reason == nil {
		reason = func(error) string { return "error" }
	}
	return &Load{
		target: target, w: w, reason: reason, keys: keys{w: w},
		latencies: hdrhistogram.New(1, longest.Nanoseconds(), 3),
		result:    Result{Errors: map[string]int64{}},
	}, nil
}

// Run sends the workload and returns what came of it. When ctx ends, it returns what there was until then; deliveries that
// fail after that count as not sent. Call it once.
func (l *Load) Run(ctx context.Context) Result {
	body := NewBody(l.w.Run, l.w.BodyBytes)
	l.mu.Lock()
	l.start = time.Now()
	l.mu.Unlock()
	var callers sync.WaitGroup
	for i := range l.w.Callers {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		callers.Go(func() { l.call(ctx, body, rng) })
	}
	callers.Wait()
	r := l.Snapshot()
	r.Elapsed = 0
	if !l.last.IsZero() {
		r.Elapsed = l.last.Sub(l.start)
	}
	return r
}

// Snapshot is the result so far, at any time and from any goroutine.
func (l *Load) Snapshot() Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.result
	r.Errors = make(map[string]int64, len(l.result.Errors))
	for reason, n := range l.result.Errors {
		r.Errors[reason] = n
	}
	r.Keys = l.keys.distinct()
	r.Duplicates = r.Ops - r.Firsts
	if !l.start.IsZero() {
		r.Elapsed = time.Since(l.start)
	}
	// The histogram rounds up, which would make a percentile longer than the longest.
	r.P50 = min(r.Max, time.Duration(l.latencies.ValueAtQuantile(50)))
	r.P99 = min(r.Max, time.Duration(l.latencies.ValueAtQuantile(99)))
	return r
}

// call is one caller.
func (l *Load) call(ctx context.Context, body Body, rng *rand.Rand) {
	for ctx.Err() == nil {
		begin := time.Now()
		if l.w.Duration > 0 && begin.Sub(l.start) >= l.w.Duration {
			return
		}
		if l.w.Count > 0 && l.sent.Add(1) > l.w.Count {
			return
		}
		key := Key(l.w.Run, l.keys.pick(rng))
		text := body.Of(key)
		begin = time.Now() // making the body is no part of the answer's time
		first, err := l.target.Record(ctx, key, text)
		now := time.Now()
		if err == nil {
			l.answered(now, now.Sub(begin), first)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		l.failed(now, err)
		select {
		case <-ctx.Done():
		case <-time.After(errorPause):
		}
	}
}

func (l *Load) answered(now time.Time, took time.Duration, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest(now)
	l.result.Ops++
	if first {
		l.result.Firsts++
	}
	l.result.Max = max(l.result.Max, took)
	// Within the histogram's bounds, so that it cannot fail.
	_ = l.latencies.RecordValue(min(max(1, took.Nanoseconds()), longest.Nanoseconds()))
}

func (l *Load) failed(now time.Time, err error) {
	reason := l.reason(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest(now)
	if l.result.FirstError == nil {
		l.result.FirstError = err
	}
	l.result.Errors[reason]++
}

func (l *Load) latest(now time.Time) {
	if now.After(l.last) {
		l.last = now
	}
}
