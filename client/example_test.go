package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/server"
)

// A webhook frontend records each delivery and starts the work only when it is told to.
func ExampleClient_RecordDelivery() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// The provider delivers the same event twice.
	for range 2 {
		answer, err := c.RecordDelivery(context.Background(), &joboncev1.RecordDeliveryRequest{
			JobId:  "job-1",
			Body:   &joboncev1.RecordDeliveryRequest_Payload{Payload: `{"job_id":"job-1","event":"job.completed"}`},
			Source: "webhook",
		})
		if err != nil {
			log.Fatal(err) // In a frontend: answer 503, so that the provider delivers again.
		}
		if answer.GetStartWork() {
			fmt.Println("start the work")
		} else {
			fmt.Println("nothing to do:", answer.GetDisposition())
		}
	}
	// Output:
	// start the work
	// nothing to do: DISPOSITION_DUPLICATE
}

// A frontend with many deliveries in hand records them in one call. Each has a result of its own.
func ExampleClient_BatchRecordDeliveries() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	deliveries := []*joboncev1.RecordDeliveryRequest{{JobId: "job-1"}, {JobId: ""}, {JobId: "job-2"}}
	results, err := c.BatchRecordDeliveries(context.Background(), deliveries)
	if err != nil {
		log.Fatal(err) // Not one of them was answered.
	}
	for i, result := range results {
		if result.Err != nil {
			fmt.Printf("delivery %d failed: %v\n", i, result.Err)
			continue
		}
		fmt.Printf("delivery %d: start work: %v\n", i, result.Response.GetStartWork())
	}
	// Output:
	// delivery 0: start work: true
	// delivery 1 failed: INVALID_ARGUMENT INVALID_FIELD: job_id is required: set job_id, or send a payload that has it
	// delivery 2: start work: true
}

// GetJob reads what was recorded, the payload included when asked for.
func ExampleClient_GetJob() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.RecordDelivery(context.Background(), &joboncev1.RecordDeliveryRequest{
		JobId: "job-1",
		Body:  &joboncev1.RecordDeliveryRequest_Payload{Payload: "the body as received"},
	})
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.GetJob(context.Background(), "job-1", joboncev1.JobView_JOB_VIEW_FULL)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.GetPayload())

	_, err = c.GetJob(context.Background(), "job-2", joboncev1.JobView_JOB_VIEW_BASIC)
	if errors.Is(err, client.ErrJobNotFound) {
		fmt.Println("job-2 was never recorded")
	}
	// Output:
	// the body as received
	// job-2 was never recorded
}

// Errors are matched by reason; what else is known about one stands in its fields.
func ExampleError() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.RecordDelivery(context.Background(), &joboncev1.RecordDeliveryRequest{Event: "job.completed"})
	var failure *client.Error
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("it may be recorded: let the provider deliver again")
	case errors.Is(err, client.ErrInvalidField) && errors.As(err, &failure):
		fmt.Printf("a bug of ours, in field %s: %s\n", failure.Field, failure.Message)
	case err != nil:
		fmt.Println("not recorded:", err)
	}
	// Output:
	// a bug of ours, in field job_id: job_id is required: set job_id, or send a payload that has it
}

// To another machine the connection is encrypted, and a token says who calls.
func ExampleNew() {
	address, roots, stop := exampleTLSService("the-token")
	defer stop()

	c, err := client.New(address,
		client.WithTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}),
		client.WithToken("the-token"),
		client.WithTimeout(5*time.Second),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	answer, err := c.RecordDelivery(context.Background(), &joboncev1.RecordDeliveryRequest{JobId: "job-1"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetStartWork())
	// Output:
	// true
}

// exampleTLSService serves over TLS, for callers with the token.
func exampleTLSService(token string) (address string, roots *x509.CertPool, stop func()) {
	web := httptest.NewTLSServer(nil) // For its certificate.
	web.Close()
	roots = x509.NewCertPool()
	roots.AddCert(web.Certificate())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS13})))
	joboncev1.RegisterIdempotencyServiceServer(server, &fake{record: func(ctx context.Context, _ *request) (*response, error) {
		return &response{StartWork: header(ctx, "authorization") == "Bearer "+token}, nil
	}})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis)
	}()
	return lis.Addr().String(), roots, func() {
		server.Stop()
		<-served
	}
}

// A caller does the work itself, under a lease. The directory examples/frontend has a whole webhook handler.
func ExampleClient_Do() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ship := func(ctx context.Context, work *client.Work) error {
		// Hand the generation on to a system that must never take an order from a holder that was overtaken.
		fmt.Printf("ship %s, fencing number given: %v\n", work.Job.GetJobId(), work.Lease.GetGeneration() > 0)
		return work.SetResult("shipped")
	}

	// The provider delivers the same event twice.
	for range 2 {
		result, err := c.Do(context.Background(), &joboncev1.RecordDeliveryRequest{
			Body:   &joboncev1.RecordDeliveryRequest_Payload{Payload: `{"job_id":"order-1"}`},
			Source: "webhook",
		}, ship)
		if err != nil {
			log.Print(err)
		}
		// Settled: answer 2xx. Else: 503, with result.RetryAfter.
		fmt.Println("settled:", result.Settled, "ran:", result.Ran)
	}
	// Output:
	// ship order-1, fencing number given: true
	// settled: true ran: true
	// settled: true ran: false
}

// A frontend queues the work and answers at once; workers, in this process or in others, do it.
func ExampleWorker() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, body := range []string{`{"job_id":"order-1"}`, `{"job_id":"order-2"}`} {
		_, err := c.RecordDelivery(context.Background(), &joboncev1.RecordDeliveryRequest{
			Body:     &joboncev1.RecordDeliveryRequest_Payload{Payload: body},
			WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED,
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	// In a program: signal.NotifyContext, so that SIGTERM stops the worker in order.
	ctx, cancel := context.WithCancel(context.Background())
	shipped := 0
	worker, err := client.NewWorker(c, client.WorkerConfig{Concurrency: 1, Lease: 30 * time.Second},
		func(ctx context.Context, work *client.Work) error {
			fmt.Println("ship", work.Job.GetPayload())
			if shipped++; shipped == 2 {
				cancel()
			}
			return nil // An error would have it tried again later.
		})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// ship {"job_id":"order-1"}
	// ship {"job_id":"order-2"}
}

// An error that no further try can mend makes the job dead.
func ExamplePermanent() {
	address, stop := exampleJobOnce()
	defer stop()

	c, err := client.New(address)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	result, err := c.Do(context.Background(), &joboncev1.RecordDeliveryRequest{JobId: "order-1"},
		func(context.Context, *client.Work) error {
			return client.Permanent(errors.New("no such customer"))
		})
	fmt.Println("settled:", result.Settled)
	fmt.Println("error:", err)

	job, err := c.GetJob(context.Background(), "order-1", joboncev1.JobView_JOB_VIEW_BASIC)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.GetWork().GetState())
	// Output:
	// settled: true
	// error: no such customer
	// WORK_STATE_DEAD
}

// exampleJobOnce serves JobOnce with an embedded store on a free port of this machine.
func exampleJobOnce() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "jobonce")
	if err != nil {
		log.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	store, err := sqlitestore.Open(context.Background(), dir, sqlitestore.Options{Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	jobs := batch.New(store, batch.Config{Logger: quiet})
	srv, err := server.New(server.Config{Logger: quiet}, jobs)
	if err != nil {
		log.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Run(ctx, lis) }()
	return lis.Addr().String(), func() {
		cancel()
		if err := errors.Join(<-served, jobs.Close(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}
}
