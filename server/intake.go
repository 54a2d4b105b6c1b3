package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/internal/job"
)

// grpc-go decodes a request before any interceptor runs, and answers a request that it cannot decode with INTERNAL and
// the decoder's text: unseen by logging, metrics and authentication, and wrong, since the fault is the client's. Here
// the codec keeps the decoding error instead of returning it, and the registrar lets the call go through the
// interceptors to a handler that returns it.

// incoming is a request on its way through the codec.
type incoming struct {
	msg proto.Message
	// err says why msg could not be decoded.
	err error
}

// codec is the standard codec, but understands [incoming].
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Unmarshal decodes data, which stays the caller's, into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if c.CodecV2.Unmarshal(data, in.msg) != nil {
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		in.err = malformed(checkWire(buf.ReadOnlyData(), in.msg.ProtoReflect().Descriptor()))
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

// registrar registers services whose unary methods take malformed requests through the interceptors.
type registrar struct{ *grpc.Server }

// RegisterService registers a copy of desc.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		d.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: intake(m.Handler)}
	}
	r.Server.RegisterService(&d, impl)
}

// intake wraps a generated handler. It relies on there being interceptors, which [chain] sees to.
func intake(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var bad error
		decode := func(v any) error {
			in := incoming{msg: v.(proto.Message)}
			if err := dec(&in); err != nil {
				// The transport's own error, such as a message over its limit, has been sent to the client by now. The
				// interceptors are to see it all the same.
				bad = err
				return nil
			}
			if in.err != nil {
				bad = fail(ctx, in.err, "")
			}
			return nil
		}
		return next(srv, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if bad != nil {
				handler = func(context.Context, any) (any, error) { return nil, bad }
			}
			return interceptor(ctx, req, info, handler)
		})
	}
}
