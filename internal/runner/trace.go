package runner

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// traceparent is the trace context that whoever does the work is to go on with; empty when there is none.
func traceparent(job *joboncev1.Job) string {
	if trace := job.GetTraceparent(); httpguts.ValidHeaderFieldValue(trace) { // In a record that somebody else wrote it may be anything.
		return trace
	}
	return ""
}

// Trace makes a span of each job's work, which goes on with the trace that was stored with the job, and hands the job to fn with
// the trace context of that span. The error's text is left out, as from the log: what a program says may hold anything.
func Trace(fn client.WorkFunc, tracer trace.Tracer) client.WorkFunc {
	var w3c propagation.TraceContext
	return func(ctx context.Context, w *client.Work) error {
		job := w.Job
		ctx, span := tracer.Start(w3c.Extract(ctx, propagation.MapCarrier{"traceparent": job.GetTraceparent()}), "work",
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
				attribute.String("jobonce.job_id", job.GetJobId()), attribute.String("jobonce.event", job.GetEvent()),
				attribute.Int("jobonce.attempt", int(job.GetWork().GetAttempts())),
				attribute.Int64("jobonce.generation", w.Lease.GetGeneration())))
		defer span.End()
		carrier := propagation.MapCarrier{}
		w3c.Inject(ctx, carrier)
		w.Job = proto.Clone(job).(*joboncev1.Job)
		w.Job.Traceparent = carrier["traceparent"]
		err := fn(ctx, w)
		if err != nil {
			span.SetStatus(codes.Error, "the work was not done")
		}
		return err
	}
}
