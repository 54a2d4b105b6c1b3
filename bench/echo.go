package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// echo is a bare gRPC server that takes the same requests and does nothing with them: the limit of the transport.
type echo struct {
	joboncev1.UnimplementedIdempotencyServiceServer
}

func (echo) RecordDelivery(context.Context, *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	return &joboncev1.RecordDeliveryResponse{
		Disposition: joboncev1.Disposition_DISPOSITION_FIRST, StartWork: true, FirstDelivery: true, Deliveries: 1,
	}, nil
}

// serveEcho prints its address and serves until its input ends.
func serveEcho(stdin io.Reader, stdout io.Writer) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	joboncev1.RegisterIdempotencyServiceServer(server, echo{})
	if _, err := fmt.Fprintln(stdout, lis.Addr()); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		server.Stop()
	}()
	return server.Serve(lis)
}

func startEcho(ctx context.Context, dir string) (*process, string, error) {
	p, err := startSelf(dir, "echo", childEcho)
	if err != nil {
		return nil, "", err
	}
	address, err := p.line(ctx, time.Minute)
	if err != nil {
		p.stop()
		return nil, "", err
	}
	return p, address, nil
}

// bareClient calls without anything around the generated code.
type bareClient struct {
	service joboncev1.IdempotencyServiceClient
}

func newEcho(s spec) (runner, string, error) {
	conn, err := grpc.NewClient(s.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, "", err
	}
	return target{
		Target: bareClient{joboncev1.NewIdempotencyServiceClient(conn)},
		reason: func(err error) string { return status.Code(err).String() },
		end:    func() { _ = conn.Close() },
	}, "", nil
}

func (b bareClient) Record(ctx context.Context, _, body string) (bool, error) {
	resp, err := b.service.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{
		Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: body},
	})
	return resp.GetFirstDelivery(), err
}
