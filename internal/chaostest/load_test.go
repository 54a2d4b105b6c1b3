package chaostest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// singles record one delivery after the other, batches so many at once.
	singles, batches, batchSize = 24, 2, 32
	// perJob is about how many deliveries each job gets, and near is among how many jobs one may be.
	perJob, near = 8, 40
	// loadTries is how often a delivery with an unknown outcome is sent again before the quiet.
	loadTries = 3
	// leastCallsShort and leastCallsLong are how many calls the load of a round makes at least, in runs of either kind.
	leastCallsShort, leastCallsLong = 300, 3000
)

// load is many deliveries of many jobs, beside the trials of a round.
type load struct {
	*round
	event string
	stop  chan struct{}
	ended sync.WaitGroup
	seeds []*rand.Rand
	sent  atomic.Int64 // deliveries
	calls atomic.Int64

	mu      sync.Mutex
	pending []job.Delivery // of unknown outcome
}

func newLoad(r *round, rng *rand.Rand) *load {
	l := &load{round: r, event: fmt.Sprintf("round %d", r.n), stop: make(chan struct{})}
	for range singles + batches {
		l.seeds = append(l.seeds, rand.New(rand.NewPCG(rng.Uint64(), 2)))
	}
	return l
}

func (l *load) start() {
	for i, rng := range l.seeds {
		size := 1
		if i >= singles {
			size = batchSize
		}
		remote := l.world.load[i%len(l.world.load)]
		l.ended.Go(func() {
			for {
				select {
				case <-l.stop:
					if l.ctx.Err() != nil || l.calls.Add(1) > l.leastCalls {
						return
					}
				default:
					l.calls.Add(1)
				}
				ds := make([]job.Delivery, size)
				for n := range ds {
					ds[n] = l.delivery(rng)
				}
				l.record(remote, rng, ds)
			}
		})
	}
}

// finish ends the load, once it has made its calls, and waits for the last.
func (l *load) finish() {
	close(l.stop)
	l.ended.Wait()
}

// delivery is the next one: of one of the latest jobs, with a request id of its own, and mostly the same body. A job's mode
// is always the same.
func (l *load) delivery(rng *rand.Rand) job.Delivery {
	n := l.sent.Add(1)
	id := max(0, n/perJob-rng.Int64N(near))
	in := job.Input{
		JobID: fmt.Sprintf("round %d load %d", l.n, id), Event: l.event, Status: "OK", RequestID: fmt.Sprintf("delivery %d", n),
		Mode: []job.WorkMode{job.ModeUntracked, job.ModeUntracked, job.ModeQueued, job.ModeLeased}[id%4],
	}
	in.Body = job.Body{Kind: job.BodyText, Data: fmt.Sprintf(`{"of":%d}`, id)}
	if rng.IntN(16) == 0 {
		in.Body.Data = fmt.Sprintf(`{"of":%d,"by":%d}`, id, n)
	}
	if in.Mode == job.ModeLeased {
		d := leaseTime
		in.Lease = &d
	}
	d, err := in.Delivery(job.DefaultMaxBodyBytes)
	if err != nil {
		panic(err) // of a test's own making
	}
	return d
}

// record records the deliveries, and repeats those that failed for some time.
func (l *load) record(remote *remote, rng *rand.Rand, ds []job.Delivery) {
	unknown := make(map[string]bool) // request ids
	for try := 1; len(ds) > 0; try++ {
		var left []job.Delivery
		for i, o := range remote.Record(l.ctx, ds) {
			switch {
			case o.Err == nil:
				l.work(remote, rng, ds[i].JobID, o)
			case errors.Is(o.Err, job.ErrOutcomeUnknown):
				unknown[ds[i].RequestID] = true
				left = append(left, ds[i])
			case errors.Is(o.Err, job.ErrUnavailable), errors.Is(o.Err, job.ErrOverloaded):
				left = append(left, ds[i])
			default:
				l.find(finding{badError, fmt.Sprintf("%s: %v", ds[i].JobID, o.Err)})
			}
		}
		if ds = left; try < loadTries && len(ds) > 0 {
			l.wait()
			continue
		}
		break
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ds {
		if unknown[d.RequestID] {
			l.pending = append(l.pending, d)
		}
	}
}

// wait waits as clients do between tries.
func (l *load) wait() {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.stop:
	}
}

// work completes the work that a delivery was given, or lets its lease lapse.
func (l *load) work(remote *remote, rng *rand.Rand, jobID string, o job.Outcome) {
	if o.Lease == nil || rng.IntN(2) == 0 {
		return
	}
	err := job.Complete(l.ctx, remote, jobID, o.Lease.Token, "done")
	if err != nil && !errors.Is(err, job.ErrOutcomeUnknown) && !errors.Is(err, job.ErrUnavailable) && !errors.Is(err, job.ErrLeaseLost) {
		l.find(finding{badError, fmt.Sprintf("%s: %v", jobID, err)})
	}
}

// settle gets the answers that are missing. Without them nobody could say that a job had nobody who was first.
func (l *load) settle() {
	for _, d := range l.pending {
		if o := l.quiet.Record(l.ctx, []job.Delivery{d})[0]; o.Err != nil {
			l.find(finding{badError, fmt.Sprintf("%s, %s, all being quiet: %v", d.JobID, d.RequestID, o.Err)})
		}
	}
}
