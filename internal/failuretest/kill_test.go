package failuretest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestServiceKilled has eight frontends, in processes of their own, do the work of 200 jobs, each of which is delivered to
// all of them, while the service is killed and started again five times, and a frontend once. Every job is done, and at no
// time under two leases.
func TestServiceKilled(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { serviceKilled(t, embeddedServe(t), time.Millisecond) })
	// There the leases end by the database's clock, which the service knows to within a round trip.
	t.Run("mongodb", func(t *testing.T) { serviceKilled(t, mongodbServe(t), 250*time.Millisecond) })
}

// serviceKilled runs the test. clockError is how far the service's clock may be off the frontends'.
func serviceKilled(t *testing.T, s *testenv.Service, clockError time.Duration) {
	f := &fleet{s: s, dir: t.TempDir(), seed: testenv.Seed(t), begun: make(chan string, 10_000)}
	for range 8 {
		f.add(t)
	}
	defer f.checkLogs(t, clockError) // also when the frontends come to no end
	for kill := range 5 {
		for range killJobs / 8 {
			await(t, "the frontends get on", f.begun)
		}
		must(t, s.Kill())
		if kill == 2 {
			f.crashFirst(t)
			f.add(t)
		}
		must(t, s.Start())
	}
	for _, m := range f.members {
		if err := await(t, "every frontend has every job settled", m.ended); err != nil && m.crashed == 0 {
			t.Error(err)
		}
	}
	f.checkJobs(t, newClient(t, s.Addr()))
}

// fleet is the frontends.
type fleet struct {
	s       *testenv.Service
	dir     string
	seed    uint64
	begun   chan string // the jobs whose work began
	members []*member
}

type member struct {
	*testenv.Process
	log     string
	ended   chan error
	crashed int64 // when it was killed, in nanoseconds since 1970; 0 if it was not
}

func (f *fleet) add(t *testing.T) {
	t.Helper()
	i := len(f.members)
	m := &member{log: filepath.Join(f.dir, fmt.Sprint("frontend-", i)), ended: make(chan error, 1)}
	var err error
	m.Process, err = testenv.Program{Role: "frontend", Args: []string{f.s.Addr(), m.log, strconv.FormatUint(f.seed+uint64(i), 10)}}.Start()
	must(t, err)
	t.Cleanup(func() { _ = m.Kill() })
	f.members = append(f.members, m)
	go func() {
		for job := range m.Lines {
			f.begun <- job
		}
		m.ended <- m.Wait()
	}()
}

// crashFirst kills the first frontend, whatever it is doing.
func (f *fleet) crashFirst(t *testing.T) {
	t.Helper()
	m := f.members[0]
	testenv.Must(t, m.Kill())
	m.crashed = time.Now().UnixNano()
}

// history is what the frontends logged about one job.
type history struct {
	runs map[int64]*run // by generation
	// leaseEnds are the latest ends of the leases that anybody was told, by generation.
	leaseEnds map[int64]int64
}

// run is work done under one lease. The times are nanoseconds since 1970.
type run struct {
	generation, begin, end int64
	failed                 bool
}

// all is all work on the job, by generation.
func (h *history) all() []*run {
	return slices.SortedFunc(maps.Values(h.runs), func(a, b *run) int { return cmp.Compare(a.generation, b.generation) })
}

// checkLogs checks that no work under one lease overlaps with work under another: it ended, or its lease had, before the
// next began. Since that is so for all pairs, a higher generation is a later one.
func (f *fleet) checkLogs(t *testing.T, clockError time.Duration) {
	t.Helper()
	total, longest := 0, 0
	for id, h := range f.readLogs(t) {
		runs := h.all()
		for i, r := range runs {
			for _, later := range runs[i+1:] {
				if r.end > later.begin && h.leaseEnds[r.generation]-int64(clockError) > later.begin {
					t.Errorf("%s: work under generation %d from %d to %d, with a lease until %d; under %d from %d on", id,
						r.generation, r.begin, r.end, h.leaseEnds[r.generation], later.generation, later.begin)
				}
			}
		}
		total, longest = total+len(runs), max(longest, len(runs))
	}
	t.Logf("jobs were worked on %d times, one of them %d times", total, longest)
}

// checkJobs checks that every job is completed, by the latest work on it.
func (f *fleet) checkJobs(t *testing.T, c *client.Client) {
	t.Helper()
	histories := f.readLogs(t)
	for n := range killJobs {
		id := jobName(n)
		if histories[id] == nil {
			t.Errorf("%s was never worked on", id)
			continue
		}
		runs := histories[id].all()
		last := runs[len(runs)-1]
		j, err := c.GetJob(t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC)
		testenv.Must(t, err)
		if w := j.GetWork(); w.GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED || w.GetGeneration() != last.generation || last.failed {
			t.Errorf("%s: %v with generation %d; the last work was under %d, and failed: %t", id, w.GetState(), w.GetGeneration(),
				last.generation, last.failed)
		}
	}
}

// readLogs reads the logs of all frontends.
func (f *fleet) readLogs(t *testing.T) map[string]*history {
	t.Helper()
	histories := make(map[string]*history)
	for _, m := range f.members {
		readLog(t, m, histories)
	}
	return histories
}

func readLog(t *testing.T, m *member, histories map[string]*history) {
	t.Helper()
	content, err := os.ReadFile(m.log)
	testenv.Must(t, err)
	for line := range strings.Lines(string(content)) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %q: %v", m.log, line, err)
		}
		h := histories[e.Job]
		if h == nil {
			h = &history{runs: make(map[int64]*run), leaseEnds: make(map[int64]int64)}
			histories[e.Job] = h
		}
		switch e.What {
		case "lease":
			h.leaseEnds[e.Generation] = max(h.leaseEnds[e.Generation], e.At)
		case "begin":
			if h.runs[e.Generation] != nil {
				t.Errorf("%s: generation %d was worked on twice", e.Job, e.Generation)
			}
			// A frontend that was killed wrote no end.
			h.runs[e.Generation] = &run{generation: e.Generation, begin: e.At, end: cmp.Or(m.crashed, time.Now().UnixNano()), failed: true}
		case "end":
			r := h.runs[e.Generation]
			r.end, r.failed = e.At, e.Failed
		}
	}
}

const (
	// killLease is the lease in the kill test, of which some work takes longer.
	killLease = 2 * time.Second
	killJobs  = 200
	// atOnce is how many deliveries one frontend has under way.
	atOnce = 4
)

// jobPrefix and a number is the name of a job.
const jobPrefix = "job-"

func jobName(n int) string { return jobPrefix + strconv.Itoa(n) }

// entry is a line in the log of a frontend.
type entry struct {
	// What happened: "lease", a lease was granted or renewed; "begin" and "end", of the work.
	What       string
	Job        string
	Generation int64
	// At is when it happened, with "lease" when that ends, in nanoseconds since 1970.
	At int64
	// Failed is set with "end" when the work is not done.
	Failed bool `json:",omitempty"`
}

// frontend is a webhook frontend in a process of its own, to which a provider delivers every job until it gets a 2xx.
type frontend struct {
	c      *client.Client
	random *rand.Rand // for the main goroutine only

	mu  sync.Mutex
	log *os.File // opened for appending: a line is one write, whole or not at all
	err error
}

// frontendMain takes the service's address, the log's path and a seed. It prints a line whenever work begins.
func frontendMain(args []string) int {
	if err := runFrontend(args[0], args[1], args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runFrontend(addr, logPath, seed string) error {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f := &frontend{log: log, random: rand.New(rand.NewPCG(n, 0))}
	f.c, err = client.New(addr, client.WithDialOptions(grpc.WithUnaryInterceptor(f.watchLeases)))
	if err != nil {
		return err
	}
	pending := make([]string, killJobs)
	for i := range pending {
		pending[i] = jobName(i)
	}
	for len(pending) > 0 && f.err == nil {
		f.random.Shuffle(len(pending), func(i, j int) { pending[i], pending[j] = pending[j], pending[i] })
		pending = f.deliver(pending)
		time.Sleep(time.Duration(50+f.random.IntN(100)) * time.Millisecond) // until the provider delivers again
	}
	return errors.Join(f.err, f.c.Close(), log.Close())
}

// deliver delivers each job once, and returns those that are to be delivered again.
func (f *frontend) deliver(jobs []string) (again []string) {
	todo := make(chan string)
	var mu sync.Mutex
	var handlers sync.WaitGroup
	for range atOnce {
		handlers.Go(func() {
			for id := range todo {
				if !f.handle(id) {
					mu.Lock()
					again = append(again, id)
					mu.Unlock()
				}
			}
		})
	}
	for _, id := range jobs {
		todo <- id
	}
	close(todo)
	handlers.Wait()
	return again
}

// handle handles one delivery, and tells whether the provider is to get a 2xx.
func (f *frontend) handle(id string) bool {
	req := completed(id)
	req.LeaseDuration = durationpb.New(killLease)
	backoff := client.WithBackoff(func(int) time.Duration { return 100 * time.Millisecond })
	result, err := f.c.Do(context.Background(), req, f.work, backoff)
	switch {
	case err == nil, errors.Is(err, errTryAgain), errors.Is(err, client.ErrLeaseLost), errors.Is(err, client.ErrOutcomeUnknown):
	case status.Code(err) == codes.Unavailable, errors.Is(err, context.DeadlineExceeded): // the service is away
	default:
		f.fail(fmt.Errorf("%s: %w", id, err))
	}
	return result.Settled
}

var errTryAgain = errors.New("the work fails at its first try")

// work does the work of a job: most takes little time, some longer than the lease, and some fails at first.
func (f *frontend) work(ctx context.Context, w *client.Work) error {
	job, generation := w.Job.GetJobId(), w.Lease.GetGeneration()
	n, err := strconv.Atoi(strings.TrimPrefix(job, jobPrefix))
	if err != nil {
		return err
	}
	duration := 20 * time.Millisecond
	if n%10 == 0 {
		duration = killLease + time.Second
	}
	f.write(entry{What: "begin", Job: job, Generation: generation, At: time.Now().UnixNano()})
	fmt.Println(job)
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		if n%15 == 0 && w.Job.GetWork().GetAttempts() == 1 {
			err = errTryAgain
		}
	}
	f.write(entry{What: "end", Job: job, Generation: generation, At: time.Now().UnixNano(), Failed: err != nil})
	return err
}

// watchLeases logs every lease that an answer brings, with its end.
func (f *frontend) watchLeases(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if err != nil {
		return err
	}
	var job string
	var l *joboncev1.Lease
	switch m := reply.(type) {
	case *joboncev1.RecordDeliveryResponse:
		job, l = m.GetJob().GetJobId(), m.GetLease()
	case *joboncev1.RenewLeaseResponse:
		job, l = req.(*joboncev1.RenewLeaseRequest).GetJobId(), m.GetLease()
	}
	if l != nil {
		f.write(entry{What: "lease", Job: job, Generation: l.GetGeneration(), At: l.GetExpireTime().AsTime().UnixNano()})
	}
	return nil
}

func (f *frontend) write(e entry) {
	line, err := json.Marshal(e)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		_, err = f.log.Write(append(line, '\n'))
	}
	if err != nil && f.err == nil {
		f.err = err
	}
}

func (f *frontend) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}
