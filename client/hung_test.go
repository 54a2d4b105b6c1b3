package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// hung never answers.
func hung() *fake {
	return &fake{
		record: func(ctx context.Context, _ *request) (*response, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		batch: func(ctx context.Context, _ *batchRequest) (*batchResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		get: func(ctx context.Context, _ *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
}

// busy takes 5 ms for each call, however many deliveries it has.
func busy() *fake {
	const takes = 5 * time.Millisecond
	answer := &response{StartWork: true, Job: &joboncev1.Job{Work: &joboncev1.Work{}}}
	return &fake{
		record: func(context.Context, *request) (*response, error) {
			time.Sleep(takes)
			return answer, nil
		},
		batch: func(_ context.Context, req *batchRequest) (*batchResponse, error) {
			time.Sleep(takes)
			resp := &batchResponse{}
			for range req.GetDeliveries() {
				resp.Results = append(resp.Results, &result{Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Response{Response: answer}})
			}
			return resp, nil
		},
		get: func(_ context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			return &joboncev1.GetJobResponse{Job: &joboncev1.Job{JobId: req.GetJobId()}}, nil
		},
	}
}

// instances serves each of the fakes, at 127.0.0.1:1 and so on, and returns a client of them all.
func instances(t *testing.T, fakes []*fake, opts ...client.Option) *client.Client {
	t.Helper()
	at, target := map[string]*network{}, ""
	for i, f := range fakes {
		address := fmt.Sprint("127.0.0.1:", i+1)
		_, at[address] = start(t, f)
		if i > 0 {
			target += ","
		}
		target += address
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) { return at[address].dial(ctx, address) }
	c, err := client.New(target, append([]client.Option{client.WithBatching(), client.WithDialOptions(grpc.WithContextDialer(dial))}, opts...)...)
	testenv.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	connect, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = c.GetJob(connect, "j", 0)
	synctest.Wait() // Until all are connected.
	return c
}

// TestHungInstanceStarvesNobody: a program whose calls share batches does as well beside an instance that hangs as one
// whose calls are alone, whatever mix of patience its callers have.
func TestHungInstanceStarvesNobody(t *testing.T) {
	const calls = 600
	for name, patient := range map[string]float64{"impatient": 0, "patient": 1, "every other patient": 0.5} {
		t.Run(name, func(t *testing.T) {
			// answered is how many calls are answered within a second.
			answered := func(opts ...client.Option) int {
				var n atomic.Int64
				synctest.Test(t, func(t *testing.T) {
					c := instances(t, []*fake{busy(), hung()}, opts...)
					random := rand.New(rand.NewPCG(1, 2))
					var all sync.WaitGroup
					for range calls {
						patience := time.Second
						if random.Float64() < patient {
							patience = time.Minute
						}
						all.Go(func() {
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							defer cancel()
							begin := time.Now()
							if _, err := c.RecordDelivery(ctx, &request{JobId: "j"}); err == nil && time.Since(begin) < time.Second {
								n.Add(1)
							}
						})
						time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
					}
					all.Wait()
				})
				return int(n.Load())
			}
			together, alone := answered(), answered(client.WithoutBatching())
			t.Logf("%d of %d calls are answered in time, %d without batching", together, calls, alone)
			if together < alone*3/4 {
				t.Errorf("%d of %d calls are answered in time, %d without batching", together, calls, alone)
			}
		})
	}
}

// TestAttemptIsBounded: an instance that hangs leaves a call the time to be answered by another.
func TestAttemptIsBounded(t *testing.T) {
	for name, do := range map[string]func(context.Context, *client.Client) error{
		"record": func(ctx context.Context, c *client.Client) error {
			_, err := c.RecordDelivery(ctx, &request{JobId: "j"})
			return err
		},
		"batch": func(ctx context.Context, c *client.Client) error {
			_, err := c.BatchRecordDeliveries(ctx, deliveries("a", "b"))
			return err
		},
		"get": func(ctx context.Context, c *client.Client) error {
			_, err := c.GetJob(ctx, "j", 0)
			return err
		},
	} {
		for limit, test := range map[string]struct {
			opts []client.Option
			own  time.Duration // The caller's own deadline.
		}{
			"default": {}, "own deadline": {own: 3 * time.Second}, "none": {opts: []client.Option{client.WithTimeout(0)}},
		} {
			t.Run(name+"/"+limit, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := instances(t, []*fake{busy(), hung()}, test.opts...)
					slow := 0
					for range 4 {
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(time.Minute, cancel)
						if test.own > 0 {
							ctx, cancel = context.WithTimeout(ctx, test.own)
						}
						begin := time.Now()
						if err := do(ctx, c); err != nil {
							t.Errorf("got %v after %v", err, time.Since(begin))
						}
						if time.Since(begin) > time.Second {
							slow++
						}
						cancel()
					}
					if slow == 0 {
						t.Error("no call came to the instance that hangs")
					}
				})
			})
		}
	}
}

// TestOnlyAttemptHasAllTheTime: where there is no other, an attempt is not cut short.
func TestOnlyAttemptHasAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, hung(), client.WithoutRetry())
		begin := time.Now()
		if _, err := c.GetJob(t.Context(), "j", 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != client.DefaultTimeout {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}

// TestSlowServiceIsWaitedFor: a service that takes long for each call, and has no other instance beside it, is not asked
// again and again, which makes it slower still, until the time is up.
func TestSlowServiceIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := &fake{record: func(ctx context.Context, req *request) (*response, error) {
			calls++
			select {
			case <-time.After(6 * time.Second):
				return &response{StartWork: true}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		c, _ := start(t, f)
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
