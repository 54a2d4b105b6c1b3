package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxWait is the longest time that a caller may ask the server to wait.
const maxWait = 60 * time.Second

// chain is what every call goes through, the outermost first. A panic is turned into an error innermost, so
// that it is logged and counted like any other.
func chain(cfg Config) []grpc.ServerOption {
	calls := callLog{log: cfg.Logger, all: cfg.LogCalls, slow: cfg.SlowCall}
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		cfg.Logger.LogAttrs(ctx, slog.LevelError, "panic", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		return fail(ctx, fmt.Errorf("panic: %v", p), "")
	})
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append(slices.Clone(cfg.UnaryInterceptors),
			calls.unary(),
			// Authentication goes here.
			capDeadline(cfg.MaxCallTime),
			recovery.UnaryServerInterceptor(recovered),
		)...),
		// Streams, those of health and reflection, have no deadline: they last for as long as their caller likes.
		grpc.ChainStreamInterceptor(append(slices.Clone(cfg.StreamInterceptors),
			calls.stream(),
			limitMetadata,
			recovery.StreamServerInterceptor(recovered),
		)...),
	}
}

// askedWait is how long the caller asks the server to wait for something to happen: requests say it in a field `wait`.
func askedWait(req any) time.Duration {
	w, ok := req.(interface{ GetWait() *durationpb.Duration })
	if !ok {
		return 0
	}
	return min(max(w.GetWait().AsDuration(), 0), maxWait)
}

// capDeadline cuts the deadline of calls to the limit, to which the time comes that the caller asks to wait.
func capDeadline(limit time.Duration) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		limit := limit + askedWait(req)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= limit {
			return handler(ctx, req)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return handler(ctx, req)
	}
}
