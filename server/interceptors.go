package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// maxWait is the longest time that a caller may ask the server to wait.
const maxWait = 60 * time.Second

// link is an interceptor of the chain: of calls, of streams that are not ours, or of both.
type link struct {
	name   string
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

// chain is what every call goes through when it has passed the door, the outermost first. A panic is turned into an error
// far inside, so that it is logged and counted like any other. Streams have no deadline: they last for as long as their
// caller likes.
func chain(cfg Config, calls callLog, answers *answers) []link {
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		cfg.Logger.LogAttrs(ctx, slog.LevelError, "panic", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		return fail(ctx, fmt.Errorf("panic: %v", p), "")
	})
	var links []link
	for _, i := range cfg.UnaryInterceptors {
		links = append(links, link{name: "configured", unary: i})
	}
	for _, i := range cfg.StreamInterceptors {
		links = append(links, link{name: "configured", stream: i})
	}
	return append(links,
		link{"log", calls.unary(), calls.stream()},
		link{name: "audit", unary: audit(cfg.Logger)},
		link{name: "deadline", unary: capDeadline(cfg.MaxCallTime)},
		link{name: "answers", unary: answers.intercept},
		link{name: "observer", unary: observeWork(cfg.Observer)},
		link{"recovery", recovery.UnaryServerInterceptor(recovered), recovery.StreamServerInterceptor(recovered)},
	)
}

// joinUnary makes one interceptor of the chain.
func joinUnary(links []link) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, l := range slices.Backward(links) {
			if l.unary == nil {
				continue
			}
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return l.unary(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// observeWork tells the observer of the calls of WorkService.
func observeWork(o Observer) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method, ours := strings.CutPrefix(info.FullMethod, "/"+joboncev1.WorkService_ServiceDesc.ServiceName+"/")
		resp, err := handler(ctx, req)
		if !ours || errors.As(err, new(*refusal)) {
			return resp, err
		}
		jobs, p := 1, (*problem)(nil)
		switch resp := resp.(type) {
		case *joboncev1.ClaimWorkResponse:
			jobs = len(resp.GetJobs())
		case *joboncev1.BatchChangeLeasesResponse:
			if batch, ok := req.(*joboncev1.BatchChangeLeasesRequest); ok && err == nil {
				observeChanges(o, batch, resp)
				return resp, nil
			}
		}
		switch {
		case errors.As(err, &p):
			o.Work(method, 0, reasonName(p.reason))
		case err == nil:
			o.Work(method, jobs, "")
		}
		return resp, err
	}
}

// observeChanges tells the observer of each change of a batch, as of a call of its own.
func observeChanges(o Observer, req *joboncev1.BatchChangeLeasesRequest, resp *joboncev1.BatchChangeLeasesResponse) {
	for i, result := range resp.GetResults() {
		method, _ := asCall(req.GetChanges()[i])
		if method == "" {
			method = "BatchChangeLeases"
		}
		if e := result.GetError(); e != nil {
			o.Work(method, 0, reasonName(e.GetReason()))
		} else {
			o.Work(method, 1, "")
		}
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

// capDeadline cuts the deadline of calls to the limit. The time that the caller asks the server to wait is added to the limit.
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
