package batch

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// traced makes a span of a batch if any of its callers has one that is sampled: a child of the first such, linked with the
// others in both directions. The context that it returns has the span, which end ends.
func (l *lanes[T, O]) traced(ctx context.Context, batch []*call[T, O]) (_ context.Context, end func()) {
	if l.cfg.Tracer == nil {
		return ctx, func() {}
	}
	var callers []trace.Span
	for _, c := range batch {
		if c.span.SpanContext().IsSampled() {
			callers = append(callers, c.span)
		}
	}
	if len(callers) == 0 {
		return ctx, func() {}
	}
	links := make([]trace.Link, 0, len(callers)-1)
	for _, s := range callers[1:] {
		links = append(links, trace.Link{SpanContext: s.SpanContext()})
	}
	ctx, span := l.cfg.Tracer.Start(trace.ContextWithSpan(ctx, callers[0]), "write batch of "+l.name,
		trace.WithLinks(links...), trace.WithAttributes(attribute.Int("jobonce.batch.size", len(batch))))
	for _, s := range callers[1:] {
		s.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	return ctx, func() { span.End() }
}
