package server

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// refusalsLogged is how many calls a second are logged that did not come to their handler.
const refusalsLogged = 20

// callLog logs calls when they end: failed ones and slow ones, or all. The logging interceptor of go-grpc-middleware
// builds its fields for every call, also for those that it does not log, so this is a reporter of its own on that
// library's frame. It never logs a payload.
type callLog struct {
	log  *slog.Logger
	all  bool
	slow time.Duration
	// few bounds the lines about calls that are refused at the door: everybody can make as many as they like.
	few *rate.Limiter
}

func (l callLog) unary() grpc.UnaryServerInterceptor { return interceptors.UnaryServerInterceptor(l) }
func (l callLog) stream() grpc.StreamServerInterceptor {
	return interceptors.StreamServerInterceptor(l)
}

// ServerReporter implements interceptors.ServerReportable.
func (l callLog) ServerReporter(ctx context.Context, call interceptors.CallMeta) (interceptors.Reporter, context.Context) {
	return &callReporter{callLog: l, ctx: ctx, call: call}, ctx
}

// callReporter logs one call.
type callReporter struct {
	interceptors.NoopReporter
	callLog
	ctx  context.Context
	call interceptors.CallMeta
}

// PostCall implements interceptors.Reporter.
func (r *callReporter) PostCall(err error, took time.Duration) {
	// A stream lasts for as long as its caller likes.
	slow := r.call.Typ == interceptors.Unary && took >= r.slow+askedWait(r.call.ReqOrNil)
	if err == nil && !slow && !r.all {
		return
	}
	refused := (*refusal)(nil)
	if errors.As(err, &refused) {
		err = refused.error
	}
	code := status.Code(err)
	level := levelOf(code)
	p := (*problem)(nil)
	errors.As(err, &p)
	switch {
	case p == nil && refused != nil, p != nil && !p.ours(): // grpc-go has refused what the caller sent, or the door has.
		level = min(level, slog.LevelInfo)
	case p != nil:
		level = max(level, slog.LevelWarn)
	}
	if slow && refused == nil {
		level = max(level, slog.LevelWarn)
	}
	if !r.log.Enabled(r.ctx, level) || refused != nil && !r.few.Allow() {
		return
	}

	attrs := []slog.Attr{
		slog.String("method", r.call.FullMethod()), slog.String("code", code.String()), slog.Duration("duration", took),
	}
	if c := auth.CallerOf(r.ctx); c != nil {
		attrs = append(attrs, slog.String("caller", c.Name))
	}
	// An id may be anything before it is checked.
	if req, ok := r.call.ReqOrNil.(interface{ GetJobId() string }); ok && job.CheckJobID(req.GetJobId()) == nil {
		attrs = append(attrs, slog.String("job_id", req.GetJobId()))
	}
	if p != nil {
		attrs = append(attrs, slog.String("reason", reasonName(p.reason)))
		if p.field != "" {
			attrs = append(attrs, slog.String("field", p.field))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if from, ok := peer.FromContext(r.ctx); ok && refused != nil {
		attrs = append(attrs, slog.String("from", from.Addr.String()))
	}
	if cause := errors.Unwrap(err); cause != nil && (serverFault(code) || p != nil && p.ours()) {
		attrs = append(attrs, slog.String("cause", cause.Error()))
	}
	msg := "call"
	switch {
	case err != nil:
		msg = "call failed"
	case slow:
		msg = "slow call"
	}
	r.log.LogAttrs(r.ctx, level, msg, attrs...)
}

// levelOf is how loud an outcome is: a fault of ours wakes somebody up, a fault of the caller's does not.
func levelOf(c codes.Code) slog.Level {
	switch c {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return slog.LevelError
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return slog.LevelWarn
	case codes.NotFound, codes.Canceled:
		// An ordinary answer, and a caller who left.
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
