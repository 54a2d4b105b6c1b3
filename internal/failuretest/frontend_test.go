package failuretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

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
