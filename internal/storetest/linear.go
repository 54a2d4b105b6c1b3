package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	// linearOperations is how many operations a run does at least, linearWorkers how many go on at once on one job, and
	// linearHistory how long one history is: the checker's work grows steeply with both.
	linearOperations = 10_000
	linearWorkers    = 4
	linearHistory    = 80
	// linearLongFactor is how much more a long run does.
	linearLongFactor = 20
)

// RunLinearizability has many workers record, claim, renew, complete and release one job at once, repeating request ids
// and using tokens of each other, and asks porcupine whether the answers can be explained by some order of the
// operations under the reference model. Time moves between bursts.
func RunLinearizability(t *testing.T, factory Factory) {
	e := factory(t)
	operations := linearOperations
	if testenv.Long() {
		operations *= linearLongFactor
	}
	seed := testenv.Seed(t)
	done := 0
	for n := 0; done < operations; n++ {
		h := newHistory(e, rand.New(rand.NewPCG(seed, uint64(n))), fmt.Sprintf("linear-%d", n))
		h.run(t)
		done += len(h.operations)
		if !h.explained(t) {
			return
		}
	}
	t.Logf("%d operations are linearizable", done)
}

// CheckCatches runs histories against a store that is broken on purpose, and fails when none of them is found out.
func CheckCatches(t *testing.T, factory Factory, broken func(job.Store) job.Store) {
	e := factory(t)
	e.Store = broken(e.Store)
	for n := range 50 {
		h := newHistory(e, rand.New(rand.NewPCG(1, uint64(n))), fmt.Sprintf("linear-%d", n))
		h.run(t)
		if porcupine.CheckOperations(linearModel, h.operations) {
			continue
		}
		t.Logf("found out after %d operations", (n+1)*linearHistory)
		return
	}
	t.Error("the broken store was not found out")
}

// linearInput is an operation and the time it was done at.
type linearInput struct {
	op  any
	now int64
}

var linearModel = func() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{refJob{}} },
		Step: func(state, input, output any) (out []any) {
			in, before := input.(linearInput), state.(refJob)
			if ok, next := before.step(in.op, output.(refAnswer), in.now); ok {
				for _, after := range after(in.op, &before, next) {
					out = append(out, after)
				}
			}
			return out
		},
		Equal: func(a, b any) bool { return a.(refJob) == b.(refJob) },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%T%+v -> %+v", input.(linearInput).op, input.(linearInput).op, output)
		},
	}
	return m.ToModel()
}()

// history is one run on one job.
type history struct {
	Env
	driver
	rng   *rand.Rand
	jobID string
	began time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
	leases     []refLease
}

func newHistory(e Env, rng *rand.Rand, jobID string) *history {
	return &history{Env: e, driver: driver{e.Store, jobID}, rng: rng, jobID: jobID, began: time.Now(), leases: []refLease{{token: "never was"}}}
}

// run does bursts of concurrent operations, and moves the clock between them.
func (h *history) run(t *testing.T) {
	for len(h.operations) < linearHistory {
		ops := make([][]any, linearWorkers)
		for w := range ops {
			for range 4 {
				ops[w] = append(ops[w], h.choose())
			}
		}
		now := h.Clock.Now().UnixMilli()
		together(linearWorkers, func(w int) {
			for _, op := range ops[w] {
				h.one(t, w, op, now)
			}
		})
		h.Clock.Advance(time.Duration([]int{1, 30, 61}[h.rng.IntN(3)]) * time.Second)
	}
}

// one does one operation. Those on tokens choose the token as late as possible.
func (h *history) one(t *testing.T, worker int, op any, now int64) {
	op = h.withToken(op)
	call := time.Since(h.began).Nanoseconds()
	got, err := h.do(context.WithoutCancel(t.Context()), h.jobID, op)
	back := time.Since(h.began).Nanoseconds()
	if err != nil {
		t.Errorf("%+v: %v", op, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: worker, Input: linearInput{op, now}, Output: got, Call: call, Return: back})
	if got.lease.token != "" {
		h.leases = append(h.leases, got.lease)
	}
}

// choose picks an operation. Few request ids, so that they repeat; few completions, so that the job lives.
func (h *history) choose() any {
	request := fmt.Sprintf("request-%d", h.rng.IntN(4))
	switch n := h.rng.IntN(100); {
	case n < 40:
		mode := []job.WorkMode{job.ModeLeased, job.ModeLeased, job.ModeLeased, job.ModeQueued}[h.rng.IntN(4)]
		status := "OK"
		if h.rng.IntN(10) == 0 {
			status = "ERROR"
		}
		return refRecord{request: request, status: status, body: "body", mode: mode}
	case n < 60:
		return refClaim{request: h.jobID + request}
	case n < 72:
		return refRenew{}
	case n < 74:
		return refComplete{result: request}
	case n < 94:
		return refRelease{reason: request}
	case n < 95:
		return refRelease{dead: true}
	}
	return refUnclaim{}
}

func (h *history) withToken(op any) any {
	h.mu.Lock()
	lease := h.leases[max(0, len(h.leases)-1-int(time.Now().UnixNano()%3))] // one of the latest
	h.mu.Unlock()
	switch op := op.(type) {
	case refRenew:
		op.token = lease.token
		return op
	case refComplete:
		op.token = lease.token
		return op
	case refRelease:
		op.token = lease.token
		return op
	case refUnclaim:
		op.token, op.expires = lease.token, lease.expires
		return op
	}
	return op
}

// explained asks the checker. When it finds no explanation, what it prints is the longest order that it found, the state
// that this leads to, and what does not fit after it.
func (h *history) explained(t *testing.T) bool {
	result, info := porcupine.CheckOperationsVerbose(linearModel, h.operations, time.Minute)
	switch result {
	case porcupine.Ok:
		return true
	case porcupine.Unknown:
		t.Errorf("%s: the checker found no answer within a minute", h.jobID)
		return false
	}
	t.Errorf("%s: no order of these operations explains their answers", h.jobID)
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	state, used := linearModel.Init(), map[int64]bool{}
	for _, o := range longest {
		_, state = linearModel.Step(state, o.Input, o.Output)
		used[o.Call] = true
		t.Logf("in order: worker %d, %d to %d: %s", o.ClientId, o.Call, o.Return, linearModel.DescribeOperation(o.Input, o.Output))
	}
	t.Logf("leads to: %+v", state)
	for _, o := range h.operations {
		if !used[o.Call] {
			t.Logf("left: worker %d, %d to %d: %s", o.ClientId, o.Call, o.Return, linearModel.DescribeOperation(o.Input, o.Output))
		}
	}
	return false
}
