package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http/httptest"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// A webhook frontend records each delivery and starts the work only when it is told to.
func ExampleClient_RecordDelivery() {
	address, stop := exampleService()
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
	address, stop := exampleService()
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
	// delivery 1 failed: INVALID_ARGUMENT INVALID_FIELD: job_id is required
	// delivery 2: start work: true
}

// GetJob reads what was recorded, the payload included when asked for.
func ExampleClient_GetJob() {
	address, stop := exampleService()
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
	address, stop := exampleService()
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
	// a bug of ours, in field job_id: job_id is required
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

// exampleService serves a memory of jobs on a free port of this machine.
func exampleService(opts ...grpc.ServerOption) (address string, stop func()) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	joboncev1.RegisterIdempotencyServiceServer(server, newMemory())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis)
	}()
	return lis.Addr().String(), func() {
		server.Stop()
		<-served
	}
}

// exampleTLSService is exampleService with TLS, for callers with the token.
func exampleTLSService(token string) (address string, roots *x509.CertPool, stop func()) {
	web := httptest.NewTLSServer(nil) // For its certificate.
	web.Close()
	roots = x509.NewCertPool()
	roots.AddCert(web.Certificate())
	authenticate := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if header(ctx, "authorization") != "Bearer "+token {
			return nil, failure(codes.Unauthenticated, "UNAUTHENTICATED", "no or wrong token", "", 0)
		}
		return next(ctx, req)
	}
	tlsConfig := &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS13}
	address, stop = exampleService(grpc.Creds(credentials.NewTLS(tlsConfig)), grpc.UnaryInterceptor(authenticate))
	return address, roots, stop
}

// newMemory returns a service that keeps its jobs in memory.
func newMemory() *fake {
	var mu sync.Mutex
	jobs := map[string]*joboncev1.Job{}
	record := func(_ context.Context, req *request) (*response, error) {
		if req.GetJobId() == "" {
			return nil, failure(codes.InvalidArgument, "INVALID_FIELD", "job_id is required", "job_id", 0)
		}
		mu.Lock()
		defer mu.Unlock()
		if _, found := jobs[req.GetJobId()]; found {
			return &response{Disposition: joboncev1.Disposition_DISPOSITION_DUPLICATE}, nil
		}
		jobs[req.GetJobId()] = &joboncev1.Job{
			JobId: req.GetJobId(), Body: &joboncev1.Job_Payload{Payload: req.GetPayload()},
		}
		return &response{Disposition: joboncev1.Disposition_DISPOSITION_FIRST, StartWork: true, FirstDelivery: true}, nil
	}
	return &fake{
		record: record,
		batch: func(ctx context.Context, req *batchRequest) (*batchResponse, error) {
			resp := &batchResponse{}
			for _, d := range req.GetDeliveries() {
				answer, err := record(ctx, d)
				item := itemError(codes.InvalidArgument, joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD, 0)
				if err == nil {
					item = &result{Outcome: &joboncev1.BatchRecordDeliveriesResponse_Result_Response{Response: answer}}
				} else {
					item.GetError().Message = "job_id is required"
				}
				resp.Results = append(resp.Results, item)
			}
			return resp, nil
		},
		get: func(_ context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			if job, found := jobs[req.GetJobId()]; found {
				return &joboncev1.GetJobResponse{Job: job}, nil
			}
			return nil, failure(codes.NotFound, "JOB_NOT_FOUND", "no job of this id", "", 0)
		},
	}
}
