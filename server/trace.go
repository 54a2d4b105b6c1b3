package server

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// traceHeader is W3C's, in the metadata of calls too.
const traceHeader = "traceparent"

var w3c propagation.TraceContext

// traceOf is the trace context of a call, for the job that it records: that of its own span, or else the one that came with it.
// Empty when there is none, or it is not sampled.
func traceOf(ctx context.Context) string {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		return textOf(span)
	}
	if came := metadata.ValueFromIncomingContext(ctx, traceHeader); len(came) == 1 {
		return textOf(parseTrace(came[0]))
	}
	return ""
}

// linkTrace links the call's span, if it has one, with the trace of a delivery, unless they are of one trace.
func linkTrace(ctx context.Context, traceparent string) {
	span := trace.SpanFromContext(ctx)
	if of := parseTrace(traceparent); of.IsSampled() && of.TraceID() != span.SpanContext().TraceID() {
		span.AddLink(trace.Link{SpanContext: of})
	}
}

func parseTrace(traceparent string) trace.SpanContext {
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier{traceHeader: traceparent}))
}

// textOf is a sampled trace context as W3C writes it.
func textOf(span trace.SpanContext) string {
	if !span.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier[traceHeader]
}
