package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/internal/job"
)

// grpc-go decodes a request before any interceptor runs, and answers a request that it cannot decode with INTERNAL and
// the decoder's text: unseen by logging, metrics and authentication, and wrong, since the fault is the client's. Besides,
// it takes the whole message into memory before anybody is asked. Here the registrar reads and decodes the message
// itself, as far as there is room, and lets the call go through the interceptors in any case, to a handler that returns
// what was wrong with it.

// decode decodes data, which stays the caller's, into msg. The error is about the request, for its caller.
func decode(data mem.BufferSlice, msg proto.Message) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	md := msg.ProtoReflect().Descriptor()
	if err := checkLists(buf.ReadOnlyData(), md); err != nil {
		return err
	}
	if proto.Unmarshal(buf.ReadOnlyData(), msg) != nil {
		return malformed(checkWire(buf.ReadOnlyData(), md))
	}
	return nil
}

// malformed turns what [checkWire] found into the error that the caller is told.
func malformed(err error) error {
	var text *textError
	switch {
	case !errors.As(err, &text):
		return &job.InvalidError{Problem: "the request is not a well-formed protocol buffer message"}
	case text.name == "payload":
		return &job.InvalidError{Field: text.path, Problem: "is not valid UTF-8; send it as payload_bytes"}
	}
	return &job.InvalidError{Field: text.path, Problem: "is not valid UTF-8"}
}

// registrar registers services whose unary methods take their messages in here.
type registrar struct {
	*grpc.Server
	admission *admission
	answers   *answers
	// patience is how long a message may take to arrive.
	patience time.Duration
}

// RegisterService registers a copy of desc.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		d.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: r.intake(m.Handler)}
	}
	r.Server.RegisterService(&d, impl)
}

// intake wraps a generated handler. It relies on there being interceptors, which [chain] sees to.
func (r registrar) intake(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, _ func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		stream, ok := grpc.ServerTransportStreamFromContext(ctx).(wireStream)
		if !ok {
			return nil, fail(ctx, errors.New("this version of grpc-go has other streams"), "")
		}
		bad := checkMetadata(ctx)
		var call *admitted
		if bad == nil {
			call = r.admission.enter(time.Now(), func(p *problem) { _ = stream.WriteStatus(p.of(ctx).GRPCStatus()) })
		}
		if call != nil {
			defer call.leave()
		}
		take := func(v any) error {
			if bad == nil {
				bad = r.take(stream, call, v.(proto.Message))
			}
			// An error that is returned here would pass the interceptors by.
			bad = refusal(ctx, bad)
			return nil
		}
		var large *answer
		resp, err := next(srv, ctx, take, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if bad != nil {
				handler = func(context.Context, any) (any, error) { return nil, bad }
			}
			return interceptor(ctx, req, info, r.answers.reserving(info.FullMethod, handler, &large))
		})
		switch {
		case large == nil:
			return resp, err
		case err != nil:
			large.release()
			return nil, err
		}
		return large, nil
	}
}

// refusal is the error of a call that does not come to its handler, as the caller is told of it.
func refusal(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if p := (*problem)(nil); errors.As(err, &p) {
		return p.of(ctx)
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return fail(ctx, err, "")
}

// take reads the message of a call, which is nil when there is no room for it.
func (r registrar) take(stream wireStream, call *admitted, msg proto.Message) error {
	if call == nil {
		return job.ErrOverloaded
	}
	timer := time.AfterFunc(r.patience, call.expire)
	data, err := receive(stream, call)
	timer.Stop()
	if cut := call.received(); cut != nil {
		data.Free()
		return cut
	}
	if err != nil {
		return err
	}
	defer data.Free()
	return decode(data, msg)
}
