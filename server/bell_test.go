package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// TestBellWakesWhomTheJobIsFor rings for jobs and sees who is woken: one, whose filter lets the job through, the longest
// waiting first; and what somebody did not use goes on to the next.
func TestBellWakesWhomTheJobIsFor(t *testing.T) {
	b := newBell()
	x, x2, any, y := b.enter([]string{"x"}, ""), b.enter([]string{"x"}, ""), b.enter(nil, ""), b.enter([]string{"y", "z"}, "shop:")
	woken := func(want ...*waiter) {
		t.Helper()
		for name, w := range map[string]*waiter{"x": x, "x2": x2, "any": any, "y": y} {
			is, should := false, false
			select {
			case <-w.rung:
				is = true
			default:
			}
			for _, other := range want {
				should = should || other == w
			}
			if is != should {
				t.Errorf("%s is woken: %t, want %t", name, is, should)
			}
		}
	}
	b.ring("shop:1", "x")
	woken(x)
	b.ring("1", "x")
	b.ring("1", "x")
	woken(x, x2)
	b.ring("shop:1", "z")
	woken(any)
	b.ring("shop:1", "z")
	b.ring("shop:1", "z")
	woken(any, y)
	b.ring("shopping:1", "z")
	b.ring("1", "z")
	woken(any)
	b.ring("1", "nobody's")
	woken(any)
	b.ringAny()
	woken(x, any, y)

	b.ring("1", "x")
	b.leave(x) // without having looked
	woken(x2, any, y)
	b.leave(x2)
	b.leave(any)
	b.leave(y)
	b.ring("1", "x") // nobody waits: whoever comes looks first
	woken()
}

// othersWork is a store in which work appears that another instance recorded: nobody rings for it.
type othersWork struct {
	job.Worker // panics where it is not overridden

	mu    sync.Mutex
	jobs  int
	looks int
	// stuck is the request whose claims do not return before their context ends.
	stuck string
}

func (o *othersWork) Claim(ctx context.Context, r job.ClaimRequest) ([]job.Claimed, error) {
	if r.RequestID == o.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	if o.jobs == 0 {
		return nil, nil
	}
	o.jobs--
	return make([]job.Claimed, 1), nil
}

// looked is how often somebody looked since it was asked last.
func (o *othersWork) looked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.looks
	o.looks = 0
	return n
}

// waitForWork has n calls wait for jobs of each of the kinds until the context ends; found tells when one gets a job.
func waitForWork(ctx context.Context, jobs job.Worker, n, kinds int) (found chan time.Time, all *sync.WaitGroup) {
	s := &workService{jobs: jobs, bell: newBell(), waits: &waits{most: 1 << 20, each: make(map[string]int)}, stopping: context.Background()}
	found, all = make(chan time.Time, 1), new(sync.WaitGroup)
	for kind := range kinds {
		for i := range n {
			all.Go(func() {
				r := job.ClaimRequest{RequestID: fmt.Sprint(i), Max: 2, Events: []string{fmt.Sprint(kind)}}
				for ctx.Err() == nil {
					if claimed, _ := s.claim(ctx, r, time.Minute); len(claimed) > 0 {
						found <- time.Now()
					}
				}
			})
		}
	}
	return found, all
}

// TestOthersWorkIsFoundSoon: work that another instance made is found within 100 ms at the median, however many wait, and
// looking for it costs the store the same however many wait.
func TestOthersWorkIsFoundSoon(t *testing.T) {
	for _, n := range []int{1, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			jobs := new(othersWork)
			found, all := waitForWork(ctx, jobs, n, 1)
			synctest.Wait()
			if looks := jobs.looked(); looks != n {
				t.Errorf("%d that came looked %d times", n, looks)
			}
			time.Sleep(50 * time.Second) // before any has waited for its minute
			if looks := jobs.looked(); looks < 50*5 || looks > 50*8 {
				t.Errorf("%d that wait looked %d times in 50 s", n, looks)
			}
			var took []time.Duration
			for range 2001 { // so many that chance does not move the median by more than 10 ms
				time.Sleep(rand.N(time.Second))
				jobs.mu.Lock()
				jobs.jobs++
				jobs.mu.Unlock()
				from := time.Now()
				took = append(took, (<-found).Sub(from))
			}
			slices.Sort(took)
			if median, most := took[1000], took[2000]; median > 100*time.Millisecond || most > 200*time.Millisecond {
				t.Errorf("%d that wait find work after %v at the median, %v at most", n, median, most)
			}
			cancel()
			all.Wait()
		})
	}
}

// Many kinds of work are looked for less often, so that the store has the same to do.
func TestManyKindsShareTheLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		jobs := new(othersWork)
		_, all := waitForWork(ctx, jobs, 2, 40)
		synctest.Wait()
		jobs.looked()
		time.Sleep(50 * time.Second)
		if looks := jobs.looked(); looks < 40*20 || looks > 50*25 {
			t.Errorf("40 kinds are looked for %d times in 50 s", looks)
		}
		cancel()
		all.Wait()
	})
}

// A look that does not come back keeps nobody else from looking.
func TestStuckLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		jobs := &othersWork{stuck: "0"}
		found, all := waitForWork(ctx, jobs, 2, 1)
		synctest.Wait()
		jobs.mu.Lock()
		jobs.jobs++
		jobs.mu.Unlock()
		from := time.Now()
		if took := (<-found).Sub(from); took > 200*time.Millisecond {
			t.Errorf("work is found after %v", took)
		}
		cancel()
		all.Wait()
	})
}
