package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/server"
)

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
