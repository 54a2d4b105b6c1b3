package failuretest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestFailure6Failover: the store fails while it writes: a process or connection is cut, a primary steps down, a write
// concern is not met. No answer is a guess, and the retry gets the true one.
func TestFailure6Failover(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		s := embeddedServe(t)
		underLoad(t, newClient(t, s.Addr()), func() {
			must(t, s.Kill())
			must(t, s.Start())
		})
	})
	t.Run("mongodb", func(t *testing.T) {
		p := wireproxy.Start(t, testenv.MongoURI(t))
		w := mongodb(t, p.URI())
		t.Run("outages under load", func(t *testing.T) {
			underLoad(t, w.client(), func() {
				p.Down()
				p.Up()
			})
		})
		for name, fault := range map[string]wireproxy.Fault{
			"write concern timeout":      wireproxy.FailConcern(64, "WriteConcernTimeout"),
			"write concern, shutdown":    wireproxy.FailConcern(91, "ShutdownInProgress"),
			"cut before the write":       wireproxy.CutBefore,
			"cut after the write":        wireproxy.CutAfter,
			"primary stepped down":       wireproxy.Fail(189, "PrimarySteppedDown"),
			"interrupted by an election": wireproxy.Fail(11602, "InterruptedDueToReplStateChange"),
		} {
			t.Run(name, func(t *testing.T) {
				faultOnce(t, w, p, name, fault)
				faultAlways(t, w, p, name, fault)
			})
		}
	})
}

// faultOnce has one write meet the fault: nobody notices.
func faultOnce(t *testing.T, w *world, p *wireproxy.Proxy, name string, fault wireproxy.Fault) {
	id := "once " + name
	c := w.client()
	rule := p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: fault})
	first := record(t, c, leased(completed(id)))
	want(t, first, "FIRST start first lease")
	want(t, record(t, c, leased(completed(id))), "IN_PROGRESS")

	completion := p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: fault})
	if err := complete(t, c, id, first.GetLease(), "done"); err != nil {
		t.Errorf("completed with %v", err)
	}
	want(t, record(t, c, leased(completed(id))), "COMPLETED")
	if j := stored(t, c, id); j.GetWork().GetResult() != "done" || j.GetWork().GetAttempts() != 1 {
		t.Errorf("the job is %v", j)
	}
	if rule.Hits() != 1 || completion.Hits() != 1 {
		t.Errorf("the fault struck %d times and %d times, want once each", rule.Hits(), completion.Hits())
	}
}

// faultAlways has every write meet the fault until the caller gives up, and then none.
func faultAlways(t *testing.T, w *world, p *wireproxy.Proxy, name string, fault wireproxy.Fault) {
	id := "always " + name
	c := w.client()
	rule := p.Add(&wireproxy.Rule{Command: "update", Do: fault})
	ctx, giveUp := context.WithTimeout(t.Context(), patience)
	defer giveUp()
	outcome := make(chan error, 1)
	go func() {
		defer giveUp() // after an answer there will be no second try
		resp, err := c.RecordDelivery(ctx, leased(completed(id)))
		if err == nil {
			err = fmt.Errorf("the answer %q", said(resp))
		}
		outcome <- err
	}()
	if err := rule.Begun(ctx, 2); err != nil { // once it is tried again there was no answer yet
		t.Errorf("the write is not tried again: %v", err)
	}
	giveUp()
	err := <-outcome
	p.Clear()
	var failed *client.Error
	if !errors.As(err, &failed) || !errors.Is(err, client.ErrOutcomeUnknown) || failed.RequestID == "" {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	again := leased(completed(id))
	again.RequestId = failed.RequestID
	first := record(t, c, again)
	want(t, first, "FIRST start first lease")
	want(t, record(t, c, leased(completed(id))), "IN_PROGRESS")
	repeated := record(t, c, again)
	if want(t, repeated, "FIRST start first lease"); repeated.GetLease().GetToken() != first.GetLease().GetToken() {
		t.Errorf("the lease is %v and then %v", first.GetLease(), repeated.GetLease())
	}
}

// load is what frontends were answered that deliver each job twice.
type load struct {
	mu       sync.Mutex
	answered int
	reached  chan struct{} // closed when answered gets to target
	target   int
	firsts   map[string][]string // the request ids that were told FIRST, by job
	answers  map[string]int64
}

// underLoad disturbs the service three times while frontends use it, and then checks every answer that they got.
func underLoad(t *testing.T, c *client.Client, disturb func()) {
	const callers, between = 8, 150
	l := &load{firsts: make(map[string][]string), answers: make(map[string]int64)}
	stopping := make(chan struct{})
	var next atomic.Int64
	var frontends sync.WaitGroup
	stop := sync.OnceFunc(func() {
		close(stopping)
		frontends.Wait()
	})
	defer stop()
	for range callers {
		frontends.Go(func() {
			for {
				select {
				case <-stopping:
					return
				default:
				}
				if err := l.deliver(t, c, int(next.Add(1))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	enough := l.after(between)
	for range 3 {
		await(t, "enough deliveries are answered", enough)
		enough = l.after(between)
		disturb()
	}
	await(t, "enough deliveries are answered afterwards", enough)
	stop()

	for id, firsts := range l.firsts {
		if len(firsts) != 1 {
			t.Errorf("%s: %d calls were told FIRST", id, len(firsts))
		}
	}
	for id, n := range l.answers {
		if len(l.firsts[id]) == 0 {
			t.Errorf("%s: nobody was told FIRST", id)
		}
		if j := stored(t, c, id); j.GetDeliveries() < n {
			t.Errorf("%s: %d deliveries are counted and %d were answered", id, j.GetDeliveries(), n)
		}
	}
	t.Logf("%d answers on %d jobs", l.answered, len(l.answers))
}

// deliver makes the nth call; two in a row are about one job.
func (l *load) deliver(t *testing.T, c *client.Client, n int) error {
	id := fmt.Sprint("load-", n/2)
	req := completed(id)
	if n/2%2 == 0 {
		req = leased(req)
	}
	req.RequestId = fmt.Sprint("call ", n)
	resp, err := c.RecordDelivery(t.Context(), req)
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[id]++
	l.answered++
	if l.answered == l.target {
		close(l.reached)
	}
	first := resp.GetDisposition() == joboncev1.Disposition_DISPOSITION_FIRST
	if first != resp.GetStartWork() || first != resp.GetFirstDelivery() {
		t.Errorf("%s: contradictory answer %q", id, said(resp))
	}
	if first {
		l.firsts[id] = append(l.firsts[id], req.RequestId)
	}
	return nil
}

// after returns a channel that is closed once n more deliveries were answered.
func (l *load) after(n int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target, l.reached = l.answered+n, make(chan struct{})
	return l.reached
}
