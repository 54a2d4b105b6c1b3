package failuretest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	rollingCallers = 32
	// rollingPace is how many calls are answered between two restarts.
	rollingPace = 400
)

// rolling is callers at work while services behind one client are restarted.
type rolling struct {
	services []*testenv.Service
	answered chan struct{}
	stopping chan struct{}
	stop     func() // ends the callers
	wg       sync.WaitGroup

	mu sync.Mutex
	// starts and calls are counted for each job.
	starts, calls map[string]int
	failed        []error
}

// startRolling starts the callers. Each job is delivered by two of them, at about the same time.
func startRolling(t *testing.T, services []*testenv.Service, opts ...client.Option) *rolling {
	t.Helper()
	r := &rolling{
		services: services, answered: make(chan struct{}, 1<<16), stopping: make(chan struct{}),
		starts: make(map[string]int), calls: make(map[string]int),
	}
	var addrs []string
	for _, s := range services {
		addrs = append(addrs, s.Addr())
	}
	// As a user has it: the defaults are to see to it.
	c, err := client.New(strings.Join(addrs, ","), opts...)
	testenv.Must(t, err)
	r.stop = sync.OnceFunc(func() {
		close(r.stopping)
		r.wg.Wait()
	})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		r.stop()
		_ = c.Close()
	})
	for i := range rollingCallers {
		r.wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-r.stopping:
					return
				default:
				}
				r.call(ctx, c, fmt.Sprintf("job-%d-%d", i/2, n))
			}
		})
	}
	return r
}

func (r *rolling) call(ctx context.Context, c *client.Client, id string) {
	resp, err := c.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{
		JobId: id, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: `{"event":"job.completed"}`},
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[id]++
	if err != nil {
		if ctx.Err() == nil {
			r.failed = append(r.failed, err)
		}
	} else if resp.GetStartWork() {
		r.starts[id]++
	}
	select {
	case r.answered <- struct{}{}:
	default: // Nobody restarts anything any more.
	}
}

// await waits until the callers got on.
func (r *rolling) await(t *testing.T) {
	t.Helper()
	for range rollingPace {
		await(t, "the callers get on", r.answered)
	}
}

// problems ends the callers and says what was wrong: failed calls, jobs that were started twice or never, and counters
// that are not what check wants for the number of calls.
func (r *rolling) problems(t *testing.T, c *client.Client, counter func(deliveries, calls int64) bool) (found []string) {
	t.Helper()
	r.stop()
	for _, err := range r.failed {
		found = append(found, "failed: "+err.Error())
	}
	ids := slices.Sorted(maps.Keys(r.calls))
	for _, id := range ids {
		if n := r.starts[id]; n != 1 {
			found = append(found, fmt.Sprintf("%s was started %d times", id, n))
		}
	}
	// Reading them all takes longer than the test. What is at fault is at fault in many.
	for i := 0; i < len(ids); i += max(1, len(ids)/500) {
		j, err := c.GetJob(t.Context(), ids[i], joboncev1.JobView_JOB_VIEW_BASIC)
		if err != nil {
			found = append(found, fmt.Sprintf("%s: %v", ids[i], err))
		} else if !counter(j.GetDeliveries(), int64(r.calls[ids[i]])) {
			found = append(found, fmt.Sprintf("%s counts %d deliveries of %d calls", ids[i], j.GetDeliveries(), r.calls[ids[i]]))
		}
	}
	t.Logf("%d jobs, %d failed calls", len(ids), len(r.failed))
	return found
}

// twoServices are two processes on one database.
func twoServices(t *testing.T) []*testenv.Service {
	uri, db := testenv.MongoURI(t), testenv.Database(t)
	two := make([]*testenv.Service, 2)
	for i := range two {
		two[i] = startServe(t, []string{"MONGODB_URI=" + uri}, "--mongodb-database", db)
	}
	return two
}

// terminate asks the service to stop and waits until it has. Calls that wait for work must not hold it up: it is not to
// come to cutting any.
func terminate(t *testing.T, s *testenv.Service) {
	t.Helper()
	must(t, s.Stop())
	if strings.Contains(s.Log(), "are cut") {
		t.Errorf("the stop was not graceful:\n%s", s.Log())
	}
}

// poll waits for work that never comes, for a minute, and says when the service has ended the wait.
func poll(t *testing.T, addr string) <-chan error {
	t.Helper()
	c := newClient(t, addr, client.WithoutRetry())
	ended := make(chan error, 1)
	go func() {
		_, err := c.ClaimWork(context.Background(), &joboncev1.ClaimWorkRequest{
			LeaseDuration: durationpb.New(killLease), Events: []string{"never"}, Wait: durationpb.New(time.Minute),
		})
		ended <- err
	}()
	return ended
}

// TestRollingRestart restarts two services on one database in turn, under load: no caller sees a failure, each job is
// started once, and no delivery is lost or counted twice. A wait for work ends with the service.
func TestRollingRestart(t *testing.T) {
	two := twoServices(t)
	r := startRolling(t, two)
	for range 3 {
		for _, s := range two {
			r.await(t)
			waiting := poll(t, s.Addr())
			r.await(t)
			terminate(t, s)
			_ = await(t, "the wait for work ends", waiting)
			must(t, s.Start())
		}
	}
	r.await(t)
	exact := func(deliveries, calls int64) bool { return deliveries == calls }
	for _, p := range r.problems(t, newClient(t, two[0].Addr()), exact) {
		t.Error(p)
	}
}

// TestRollingKill kills them instead. The retries see to it that no caller notices, and a call whose answer was lost
// may count more than once.
func TestRollingKill(t *testing.T) {
	two := twoServices(t)
	r := startRolling(t, two)
	for range 3 {
		for _, s := range two {
			r.await(t)
			must(t, s.Kill())
			r.await(t)
			must(t, s.Start())
		}
	}
	r.await(t)
	none := func(deliveries, calls int64) bool { return deliveries >= calls }
	for _, p := range r.problems(t, newClient(t, two[0].Addr()), none) {
		t.Error(p)
	}
}

// The check finds callers that see a service go, and services that do not share what they know.
func TestRollingBites(t *testing.T) {
	t.Run("dropped calls", func(t *testing.T) {
		two := []*testenv.Service{embeddedServe(t)}
		r := startRolling(t, two, client.WithoutRetry())
		r.await(t)
		must(t, two[0].Kill())
		r.await(t)
		must(t, two[0].Start())
		any := func(int64, int64) bool { return true }
		if len(r.problems(t, newClient(t, two[0].Addr()), any)) == 0 {
			t.Error("a service that drops its calls was not found")
		}
	})
	t.Run("two stores", func(t *testing.T) {
		two := []*testenv.Service{embeddedServe(t), embeddedServe(t)}
		r := startRolling(t, two, client.WithoutBatching())
		r.await(t)
		exact := func(deliveries, calls int64) bool { return deliveries == calls }
		found := strings.Join(r.problems(t, newClient(t, two[0].Addr()), exact), "\n")
		if !strings.Contains(found, "was started 2 times") || !strings.Contains(found, "deliveries of") {
			t.Errorf("two services that do not share a store were not found out:\n%s", found)
		}
	})
}
