package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc/tap"

	"github.com/jobonce/jobonce/internal/job"
)

// maxMetadataBytes bounds the metadata of a call. It lies well below what grpc-go takes, [maxHeaderBytes]: a call between the
// two is refused alone and in words, while grpc-go closes the connection, with all calls on it.
const maxMetadataBytes = 64 << 10

// metadataSize is the context's key for the size of metadata that is over the limit.
type metadataSize struct{}

// markMetadata notes in the context of a call that it has too much metadata. It does not refuse it: there that would leak the
// context, and no interceptor would see it. It is for grpc.InTapHandle, since everywhere else the metadata is a copy, which
// costs every call a microsecond.
func markMetadata(ctx context.Context, call *tap.Info) (context.Context, error) {
	size := 0
	for name, values := range call.Header {
		for _, v := range values {
			size += len(name) + len(v) + 32 // as HTTP/2 counts
		}
	}
	if size > maxMetadataBytes {
		ctx = context.WithValue(ctx, metadataSize{}, size)
	}
	return ctx, nil
}

// checkMetadata refuses a call with too much metadata.
func checkMetadata(ctx context.Context) error {
	size, over := ctx.Value(metadataSize{}).(int)
	if !over {
		return nil
	}
	return &job.InvalidError{Problem: fmt.Sprintf("the call's metadata is %d bytes; the limit is %d", size, maxMetadataBytes)}
}
