package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	crashWorkers = 8
	// contendedJobs are recorded by all workers at once, all through the test.
	contendedJobs = 20
)

// TestKilledUnderLoad kills the service under load, again and again on the same data directory, and holds what is there
// afterwards against every answer that was given.
func TestKilledUnderLoad(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	// Only a test that hangs gets there.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	dir := t.TempDir()
	l := ledger{jobs: make(map[string]*jobLedger)}
	for round := range rounds {
		l.killAt = l.acknowledged + 50 + random.IntN(250)
		l.round(ctx, t, dir, round)
		t.Logf("round %d: killed after %d acknowledged deliveries, %d without an answer", round, l.acknowledged, len(l.lost))
	}

	p, err := startServe(dir, nil, "--listen", "127.0.0.1:0", "--data-dir", "data")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	c := newCrashClient(t, p.addr)
	l.recoverLost(ctx, t, c)
	l.check(ctx, t, c)
}

// ledger is what the test knows of the service's answers.
type ledger struct {
	mu           sync.Mutex
	jobs         map[string]*jobLedger
	acknowledged int
	// killAt is the number of acknowledged deliveries at which the service is killed.
	killAt int
	// lost are the calls that got no answer since the last start.
	lost []*joboncev1.RecordDeliveryRequest
}

// jobLedger is what the test knows of one job.
type jobLedger struct {
	// Calls, by how far they got. Nothing retries by itself, so a call is written at most once.
	attempted, acknowledged int64
	// firsts are the request ids that were told FIRST.
	firsts map[string]bool
}

// round starts the service, has the calls repeated whose answers were lost, loads it and kills it.
func (l *ledger) round(ctx context.Context, t *testing.T, dir string, round int) {
	t.Helper()
	p, err := startServe(dir, nil, "--listen", "127.0.0.1:0", "--data-dir", "data")
	if err != nil {
		t.Fatal(err)
	}
	c := newCrashClient(t, p.addr)
	l.recoverLost(ctx, t, c)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	reached := make(chan struct{})
	var kill sync.Once
	failures := make(chan error, crashWorkers)
	var workers sync.WaitGroup
	for worker := range crashWorkers {
		workers.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("own-%d-%d-%d", round, worker, n)
				if n%2 == 0 {
					id = fmt.Sprintf("contended-%d", (worker+n/2)%contendedJobs)
				}
				req := &joboncev1.RecordDeliveryRequest{
					JobId: id, RequestId: fmt.Sprintf("r-%d-%d-%d", round, worker, n),
					Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: crashBody(id)},
				}
				count, err := l.record(ctx, t, c, req)
				if count >= l.killAt {
					kill.Do(func() { close(reached) })
				}
				if err != nil {
					failures <- err
					return
				}
			}
		})
	}
	select {
	case <-reached:
	case err := <-failures:
		t.Errorf("a call failed before the service was killed: %v", err)
	case <-ctx.Done():
		t.Error("the service did not get on")
	}
	if err := p.kill(); err != nil {
		t.Error(err)
	}
	// Every worker has a call fail now, sooner or later.
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// record makes one call, and returns how many deliveries were acknowledged since the beginning.
func (l *ledger) record(ctx context.Context, t *testing.T, c *client.Client, req *joboncev1.RecordDeliveryRequest) (int, error) {
	l.mu.Lock()
	j := l.jobs[req.GetJobId()]
	if j == nil {
		j = &jobLedger{firsts: make(map[string]bool)}
		l.jobs[req.GetJobId()] = j
	}
	j.attempted++
	l.mu.Unlock()

	resp, err := c.RecordDelivery(ctx, req)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lost = append(l.lost, req)
		return l.acknowledged, err
	}
	l.acknowledged++
	j.acknowledged++
	if resp.GetFirstDelivery() != resp.GetStartWork() ||
		resp.GetStartWork() != (resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_FIRST) {
		t.Errorf("%s: contradictory answer %v", req.GetJobId(), resp)
	}
	if resp.GetStartWork() {
		j.firsts[req.GetRequestId()] = true
	}
	return l.acknowledged, nil
}

// recoverLost repeats the calls that got no answer, with their request ids. For a job that only one call knows the
// answer must be FIRST, whether the crash came before the write or after it.
func (l *ledger) recoverLost(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	lost := l.lost
	l.lost = nil
	for _, req := range lost {
		if _, err := l.record(ctx, t, c, req); err != nil {
			t.Fatalf("repeat %s: %v", req.GetJobId(), err)
		}
		if strings.HasPrefix(req.GetJobId(), "own-") && !l.jobs[req.GetJobId()].firsts[req.GetRequestId()] {
			t.Errorf("%s: the lost answer was not recovered by its request id", req.GetJobId())
		}
	}
}

// check holds the records against the answers.
func (l *ledger) check(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	for id, j := range l.jobs {
		// By now every call was answered, so the one that made the record was, too.
		if len(j.firsts) != 1 {
			t.Errorf("%s: %d logical calls were told FIRST: %v", id, len(j.firsts), j.firsts)
		}
		got, err := c.GetJob(ctx, id, joboncev1.JobView_JOB_VIEW_FULL)
		switch {
		case errors.Is(err, client.ErrJobNotFound):
			t.Errorf("%s: lost, after %d acknowledged deliveries", id, j.acknowledged)
		case err != nil:
			t.Fatal(err)
		case got.GetPayload() != crashBody(id):
			t.Errorf("%s: the body is %q", id, got.GetPayload())
		case got.GetDeliveries() < j.acknowledged || got.GetDeliveries() > j.attempted:
			t.Errorf("%s: %d deliveries, outside the %d acknowledged and %d attempted", id, got.GetDeliveries(), j.acknowledged, j.attempted)
		}
	}
}

// newCrashClient makes a client that never retries: each call must count once.
func newCrashClient(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.New(addr, client.WithoutRetry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// crashBody is the body of every delivery of a job. The jobs differ in size, so that some bodies take many pages.
func crashBody(id string) string {
	return fmt.Sprintf(`{"job_id":%q,"pad":%q}`, id, strings.Repeat(id, len(id)*len(id)%50*20))
}
