package frontend

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traced is a request in a span of its own, which end ends. A sender is a stranger, so its trace context decides nothing: the
// span begins a trace, which the job goes on with, and is linked with the sender's.
func (f *Frontend) traced(r *http.Request, source string) (_ *http.Request, end func()) {
	opts := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer), trace.WithNewRoot(), trace.WithAttributes(attribute.String("jobonce.source", source)),
	}
	sent := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
	if sent.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sent}))
	}
	ctx, span := f.cfg.Tracer.Start(r.Context(), "webhook "+source, opts...)
	r = r.WithContext(ctx)
	r.Header = r.Header.Clone()
	r.Header.Del("Traceparent") // The handler would give the job the sender's.
	return r, func() { span.End() }
}
