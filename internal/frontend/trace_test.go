package frontend_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobonce/jobonce/internal/frontend"
)

// TestTraced: a webhook is a span that begins a trace and is linked with the sender's, which the job does not go on with; the
// delivery is recorded within it. Without a tracer the job has the sender's trace context.
func TestTraced(t *testing.T) {
	const sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	for _, tc := range []struct {
		name, sent, kept string
		tracer           trace.Tracer
	}{{"off", sent, sent, nil}, {"on", sent, "", tracer}, {"on, none sent", "", "", tracer}, {"on, nonsense sent", "nonsense", "", tracer}} {
		t.Run(tc.name, func(t *testing.T) {
			spans.Reset()
			var within trace.SpanContext
			j := &jobs{before: func(ctx context.Context) error {
				within = trace.SpanContextFromContext(ctx)
				return nil
			}}
			f, err := open(t, j, shop("job_id: body.id"), func(cfg *frontend.Config) { cfg.Tracer = tc.tracer })
			must(t, f, err)
			r := post(`{"id":"a"}`)
			r.Header.Set("Traceparent", tc.sent)
			if status, body := answer(f, r); status/100 != 2 {
				t.Fatalf("it answers %d, %s", status, body)
			}
			if got := j.all[0].GetTraceparent(); got != tc.kept {
				t.Errorf("the job has the trace %q, want %q", got, tc.kept)
			}
			if tc.tracer == nil {
				if within.IsValid() {
					t.Errorf("there is a span: %v", within)
				}
				return
			}
			s := spans.GetSpans()[0]
			if !within.Equal(s.SpanContext) || s.Name != "webhook shop" || s.Parent.IsValid() {
				t.Errorf("the delivery is recorded in %v, the span is %+v", within, s)
			}
			if linked := len(s.Links) == 1; linked != (tc.sent == sent) {
				t.Errorf("the links are %v", s.Links)
			}
		})
	}
}
