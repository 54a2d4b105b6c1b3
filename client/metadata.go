package client

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// maxMetadata is how many bytes of metadata a call may have. The service takes 64 KiB, gRPC's own headers included.
const maxMetadata = 62 << 10

// limitMetadata is an interceptor that does not send what the service would refuse.
func limitMetadata(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	size := 0
	for name, values := range md {
		for _, v := range values {
			size += len(name) + len(v) + 32 // As HTTP/2 counts.
		}
	}
	if size > maxMetadata {
		return invalid("", fmt.Sprintf("the call's metadata is %d bytes; the limit is %d", size, maxMetadata)).GRPCStatus().Err()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}
