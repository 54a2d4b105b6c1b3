package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// bare is a gRPC server that takes the same requests, with nothing around the generated code. With no database it does
// nothing with them (the echo: the limit of the transport), with one it does the plain upsert for them (the
// relay: what any service between a caller and the database costs).
type bare struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	database *directTarget
}

func (b bare) RecordDelivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	first := true
	if b.database != nil {
		var err error
		if first, err = b.database.Record(ctx, "", req.GetPayload()); err != nil {
			return nil, err
		}
	}
	return &joboncev1.RecordDeliveryResponse{
		Disposition: joboncev1.Disposition_DISPOSITION_FIRST, StartWork: first, FirstDelivery: first, Deliveries: 1,
	}, nil
}

// serveEcho prints its address and serves until its input ends.
func serveEcho(stdin io.Reader, stdout io.Writer) error { return serveBare(bare{}, stdin, stdout) }

// serveRelay reads a spec, which names the collection, from its input, and goes on as serveEcho does.
func serveRelay(stdin io.Reader, stdout io.Writer) error {
	in := json.NewDecoder(stdin)
	var s spec
	if err := in.Decode(&s); err != nil {
		return err
	}
	database, _, end, err := connectDirect(s)
	if err != nil {
		return err
	}
	defer end()
	return serveBare(bare{database: &database}, stdin, stdout)
}

func serveBare(service bare, stdin io.Reader, stdout io.Writer) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	joboncev1.RegisterIdempotencyServiceServer(server, service)
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
	return startBare(ctx, dir, childEcho, nil)
}

func startRelay(ctx context.Context, dir string, s spec) (*process, string, error) {
	return startBare(ctx, dir, childRelay, s)
}

// startBare starts a bare server, which reads input first unless that is nil, and returns its address.
func startBare(ctx context.Context, dir, command string, input any) (*process, string, error) {
	p, err := startSelf(dir, command, command)
	if err != nil {
		return nil, "", err
	}
	if input != nil {
		if err := json.NewEncoder(p.stdin).Encode(input); err != nil {
			p.stop()
			return nil, "", p.failed(err)
		}
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

func newBare(s spec) (runner, string, error) {
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
