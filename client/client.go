// Package client calls a JobOnce service: it asks, for each webhook delivery, whether to start the downstream work for
// its job now.
//
//	c, err := client.New("127.0.0.1:50051")
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//
//	delivery := &joboncev1.RecordDeliveryRequest{
//		// A body that is not UTF-8 goes as PayloadBytes, with a JobId.
//		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: string(body)},
//	}
//	result, err := c.Do(ctx, delivery, func(ctx context.Context, work *client.Work) error {
//		return process(ctx, work.Job)
//	})
//	if err != nil {
//		log.Print(err)
//	}
//	if !result.Settled {
//		// answer the provider with a 503, so that it delivers again
//	}
//
// [Client.Do] does the work under a lease, so that a crash does not lose the job: a later delivery, or a [Worker], starts
// it again. [Client.RecordDelivery] alone says whether to start the work and leaves the rest to the caller.
//
// A call that fails in a way that a repetition can mend is repeated within its deadline, always with the same
// request_id, so that the answer is the one that got lost and never a second decision. What remains is an [*Error],
// to be matched with [errors.Is] and the sentinels of this package such as [ErrJobNotFound].
package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	_ "google.golang.org/grpc/health" // Makes gRPC heed healthCheckConfig.

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// ErrClosed matches the error of a call that [Client.Close] ended or that was made after it.
var ErrClosed = errors.New("client closed")

// serviceConfig has calls spread over all addresses that the target's name resolves to: the service keeps no state of its
// own. Of several, those that say they do not serve are left out; one alone is called in any case, since its own answer says
// why.
func serviceConfig(t target) string {
	if t.single() {
		return `{"loadBalancingConfig":[{"round_robin":{}}]}`
	}
	return `{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}`
}

// How long one address may take to accept a connection before the next is tried. gRPC's own 20 s outlasts the default
// timeout of a call.
const connectTimeout = 5 * time.Second

// Client calls one JobOnce service. It is safe for concurrent use; make one and share it.
type Client struct {
	conn    *grpc.ClientConn
	service joboncev1.IdempotencyServiceClient
	work    joboncev1.WorkServiceClient
	admin   joboncev1.AdminServiceClient
	// expectations are webhooks that are to come.
	expectations joboncev1.ExpectationServiceClient
	// deliveries, renewals and settlings make attempts of the calls that can share one. Settlings complete and release work:
	// renewals do not wait behind their results.
	deliveries          deliveries
	renewals, settlings *changes
	policy              RetryPolicy
	timeout             time.Duration
	single              bool           // There is no other instance to turn to.
	random              func() float64 // from 0 to 1
	done                chan struct{}
	close               func() error
}

// New makes a client of the service at target, "host:port" or any other name that gRPC can resolve; with several
// addresses behind one name, or several "host:port" with commas between them, the calls are spread over them, and go to
// the others while one is restarted or says that it does not serve (gRPC's health checking, which
// grpc.WithDisableHealthCheck among [WithDialOptions] turns off). It does not connect: that happens with the first call.
//
// The connection is in plaintext when target is of this machine (a loopback address, "localhost", a Unix socket), and
// TLS with the system's roots otherwise; [WithTLS] and [WithInsecure] say it explicitly.
//
// The error names the option at fault, or says what is wrong with the target. Call [Client.Close] when done.
func New(target string, opts ...Option) (*Client, error) {
	o := defaultOptions()
	for _, opt := range opts {
		opt(&o)
	}
	t, err := parseTarget(target, len(o.dial) > 0)
	if err == nil {
		err = o.validate(t)
	}
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	token := o.bearer(t)
	dial, name := o.dialOptions(t, token), target
	if t.list() {
		dial, name = append(dial, addressList{t.addresses}.option()), listScheme+":///"
	}
	conn, err := grpc.NewClient(name, dial...)
	if err != nil {
		return nil, fmt.Errorf("client: target %q: %w", target, err)
	}
	c := &Client{
		conn:    conn,
		service: joboncev1.NewIdempotencyServiceClient(conn),
		work:    joboncev1.NewWorkServiceClient(conn),
		admin:   joboncev1.NewAdminServiceClient(conn),

		expectations: joboncev1.NewExpectationServiceClient(conn),

		policy:  o.policy,
		timeout: o.timeout,
		single:  t.single(),
		random:  rand.Float64,
		done:    make(chan struct{}),
	}
	if !o.tokenVaries {
		token = nil
	}
	shared := o.shared()
	c.deliveries = newDeliveries(c.service, token, shared)
	c.renewals, c.settlings = newChanges(c.work, token, shared), newChanges(c.work, token, shared)
	c.close = sync.OnceValue(func() error {
		close(c.done)
		return conn.Close()
	})
	return c, nil
}

// Close ends the calls that still run, with [ErrClosed], and closes the connections. Later calls of Close do nothing.
func (c *Client) Close() error { return c.close() }

// GetJob returns the record of a job; view says how much of it, with the payload only for JOB_VIEW_FULL. The error
// matches [ErrJobNotFound] when nothing was recorded under jobID.
func (c *Client) GetJob(ctx context.Context, jobID string, view joboncev1.JobView) (*joboncev1.Job, error) {
	if err := checkText("job_id", jobID); err != nil {
		return nil, err
	}
	req := &joboncev1.GetJobRequest{JobId: jobID, View: view}
	var resp *joboncev1.GetJobResponse
	err := c.retry(ctx, 0, func(ctx context.Context) *Error {
		var err *Error
		resp, err = attempt(ctx, c.service.GetJob, req)
		if err != nil {
			err.OutcomeUnknown = false // A read writes nothing.
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp.GetJob(), nil
}

// connectParams makes gRPC look for a server that went away as often as the calls do: with its own pace, up to two
// minutes, calls would go on failing long after the server is back.
func connectParams(p RetryPolicy) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: p.BaseDelay, Multiplier: 2, Jitter: 0.2, MaxDelay: p.MaxDelay},
		MinConnectTimeout: connectTimeout,
	}
}
