package server

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// door sees every call before its body is read: who it is, whether it may, and whether there is room. It then receives the
// message, decodes it and runs the chain and the handler.
//
// grpc-go receives and decodes the message of a unary method before any interceptor runs. Unary methods are therefore
// registered as streams, see [entrance]. What is wrong with a call does not end it at the door: the call goes through the
// chain to a handler that returns the error, so that metrics and log see it.
type door struct {
	callers *callers
	room    *room
	// line is where calls wait to be received, health where those of the health service do: who asks for the state of an
	// overloaded server is to get an answer.
	line, health *line
	chain        grpc.UnaryServerInterceptor
	calls        callLog
	observer     Observer
}

// entrance registers services behind the door.
type entrance struct {
	*grpc.Server
	door *door
	// ours tells that calls count in the room and wait in the line. Those of health do neither.
	ours bool
}

// RegisterService registers a copy of desc whose unary methods are streams. The bytes on the wire are the same, and
// reflection shows them as unary.
func (e entrance) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods, d.Streams = nil, slices.Clone(desc.Streams)
	for _, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: m.MethodName, Handler: e.door.unary(name, m.Handler, e.ours)})
	}
	e.Server.RegisterService(&d, impl)
}

// unary makes a stream handler of the generated handler of a unary method.
func (d *door) unary(method string, generated grpc.MethodHandler, ours bool) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) (err error) {
		growStack(0)
		msg, line := &message{limit: smallMessage}, d.health
		ctx, bad := d.ask(stream.Context(), method)
		if ours {
			conn := connection(ctx)
			conn.begin()
			defer func() { conn.end(status.Code(err)) }()
		} else if bad == nil {
			var leave func()
			leave, bad = d.callers.health(ctx, method)
			defer leave()
		}
		if bad == nil && ours {
			msg.limit, line = maxReceiveBytes, d.line
			if msg.place = d.room.enter(); msg.place == nil {
				bad = job.ErrOverloaded
			} else {
				defer msg.place.leave()
			}
		}
		if bad == nil {
			bad = receive(stream, msg, line)
		}
		decode := func(req any) error {
			if bad == nil {
				bad = msg.decode(req.(proto.Message))
			}
			return nil // An error that is returned here would pass the chain by.
		}
		var large *answer
		ctx = context.WithValue(ctx, largeKey{}, &large)
		resp, err := generated(srv, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if bad != nil {
				refusal := d.refuse(ctx, bad)
				handler = func(context.Context, any) (any, error) { return nil, refusal }
			}
			return d.chain(ctx, req, info, handler)
		})
		switch {
		case large == nil:
		case err != nil || resp != any(large.msg): // An interceptor had it otherwise.
			large.release()
		default:
			resp = large
		}
		if err != nil {
			return err
		}
		return stream.SendMsg(resp)
	}
}

// growStack has the goroutine's stack grow to what a call needs while there is little on it to copy. Step by step, deep down in
// the call, that takes a tenth of the call's time.
//
//go:noinline
func growStack(i int) byte {
	var space [8 << 10]byte
	return space[i]
}

// streams is the door for streams that are not ours: those of health and reflection.
func (d *door) streams(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (ended error) {
	ctx, err := d.ask(stream.Context(), info.FullMethod)
	line := d.line
	conn := connection(ctx)
	switch {
	case !isHealth(info.FullMethod):
		conn.begin()
		defer func() { conn.end(status.Code(ended)) }()
	case err == nil:
		line = d.health
		var leave func()
		if leave, err = d.callers.health(ctx, info.FullMethod); err == nil {
			if err = conn.watch(); err == nil {
				defer conn.unwatch()
			}
		}
		defer leave()
	}
	if err != nil {
		return d.refuse(ctx, err)
	}
	if caller := auth.CallerOf(ctx); caller != nil {
		bound, release := caller.Bound(ctx)
		defer release()
		ctx = bound
	}
	return handler(srv, &smallStream{stream, ctx, d, line})
}

// unknown answers calls of unknown methods. Interceptors do not see them: peers would choose the names that metrics count by.
func (d *door) unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	method = clip(method, 256) // Peers choose it, and it is logged.
	ctx := stream.Context()
	conn := connection(ctx)
	conn.begin()
	err := checkMetadata(ctx)
	if err == nil {
		err = d.callers.known(ctx)
	}
	if err == nil {
		err = newProblem(joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED, "this server has no method "+method)
	}
	err = d.refuse(ctx, err)
	conn.end(status.Code(err))
	log, _ := d.calls.ServerReporter(ctx, interceptors.NewServerCallMeta(method, nil, nil))
	log.PostCall(err, 0)
	return err
}

// ask decides by a call's headers whether it may come in. The context that it returns has the caller.
func (d *door) ask(ctx context.Context, method string) (context.Context, error) {
	if err := checkMetadata(ctx); err != nil {
		return ctx, err
	}
	return d.callers.admit(ctx, method)
}

// receive waits for the call's turn and receives a message. The error is a status of grpc-go, which has been sent then, or
// one for [refuse].
func receive(stream grpc.ServerStream, msg *message, line *line) error {
	t, err := line.enter(stream.Context())
	if err != nil {
		return err
	}
	if msg.place != nil && !msg.place.count(reserved) {
		line.leave(t)
		return job.ErrOverloaded
	}
	// Only the return of the handler stops RecvMsg. When the call is cut, this goroutine therefore ends after the handler.
	go func() {
		err := stream.RecvMsg(msg)
		line.leave(t)
		t.news <- err
	}()
	switch err := <-t.news; {
	case status.Code(err) == codes.ResourceExhausted && !isProblem(err):
		// grpc-go answers so only when the message is too large, and has sent the caller its own status by now.
		p := newProblem(joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE, status.Convert(err).Message())
		p.code = codes.ResourceExhausted
		return p
	case err != nil:
		return err
	}
	return msg.bad
}

// grpcReason is what the observer is told in place of a reason when grpc-go has ended a call.
const grpcReason = "GRPC"

// refuse is the error of a call that does not come to its handler, as the caller is told of it.
func (d *door) refuse(ctx context.Context, err error) error {
	if _, ok := status.FromError(err); ok && !isProblem(err) {
		d.observer.Refused(grpcReason)
		return &refusal{err}
	}
	p := fail(ctx, err, "")
	d.observer.Refused(reasonName(p.reason))
	return &refusal{p}
}

func isProblem(err error) bool {
	var p *problem
	return errors.As(err, &p)
}

// refusal marks the error of a call that did not come to its handler.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// GRPCStatus is how grpc-go asks an error for its status.
func (r *refusal) GRPCStatus() *status.Status { return status.Convert(r.error) }

// smallStream is a stream whose messages are received like those of calls, and are small.
type smallStream struct {
	grpc.ServerStream
	ctx  context.Context
	door *door
	line *line
}

// Context has the caller.
func (s *smallStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message.
func (s *smallStream) RecvMsg(m any) error {
	msg := &message{limit: smallMessage}
	err := receive(s.ServerStream, msg, s.line)
	if err == nil {
		err = msg.decode(m.(proto.Message))
	}
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.door.refuse(s.ctx, err)
}

// bypass lets an interceptor of streams see only the streams of health and reflection. The chain sees our calls, and no
// interceptor sees unknown methods.
func bypass(next grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		calls := !info.IsClientStream && !info.IsServerStream
		if calls || srv == nil {
			return handler(srv, stream)
		}
		return next(srv, stream, info, handler)
	}
}
