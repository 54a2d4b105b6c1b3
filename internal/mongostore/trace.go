package mongostore

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// commandKey names a command that is under way.
type commandKey struct {
	connection string
	request    int64
}

// commandSpans has the driver make a span of each command whose context has one that is sampled. What a command says is never
// in it: there may be bodies. Attributes are named by OpenTelemetry's semantic conventions for MongoDB. next hears of the
// commands too.
func commandSpans(tracer trace.Tracer, next *event.CommandMonitor) *event.CommandMonitor {
	var running sync.Map // by commandKey
	end := func(e *event.CommandFinishedEvent, failure error) {
		v, ok := running.LoadAndDelete(commandKey{e.ConnectionID, e.RequestID})
		if !ok {
			return
		}
		span := v.(trace.Span)
		if failure != nil {
			span.SetStatus(codes.Error, "the command failed") // The driver's text may repeat what the command said.
		}
		span.End()
	}
	return &event.CommandMonitor{
		Started: func(ctx context.Context, e *event.CommandStartedEvent) {
			next.Started(ctx, e)
			if !trace.SpanContextFromContext(ctx).IsSampled() {
				return
			}
			attrs := []attribute.KeyValue{
				attribute.String("db.system.name", "mongodb"), attribute.String("db.operation.name", e.CommandName),
				attribute.String("db.namespace", e.DatabaseName),
			}
			name := e.CommandName
			if coll, ok := e.Command.Lookup(e.CommandName).StringValueOK(); ok {
				name += " " + coll
				attrs = append(attrs, attribute.String("db.collection.name", coll))
			}
			_, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
			running.Store(commandKey{e.ConnectionID, e.RequestID}, span)
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { end(&e.CommandFinishedEvent, nil) },
		Failed: func(ctx context.Context, e *event.CommandFailedEvent) {
			next.Failed(ctx, e)
			end(&e.CommandFinishedEvent, e.Failure)
		},
	}
}
