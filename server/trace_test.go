package server

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const (
	eventTrace   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	callTrace    = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled    = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	callTraceID  = "0af7651916cd43dd8448eb211c80319c"
	eventTraceID = "4bf92f3577b34da6a3ce929d0e0e4736"
)

// TestTraceOfJob: a job keeps the trace context of its event; where the request names none, that of the call's span, or else
// the one that came with the call.
func TestTraceOfJob(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tracing := Config{StatsHandler: otelgrpc.NewServerHandler(otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))))}
	for _, tc := range []struct {
		name, field, header string
		cfg                 Config
		want                string // the stored trace context; "own": that of the call's span
		linked              bool   // the call's span, with the trace of the event
	}{
		{"off, nothing", "", "", Config{}, "", false},
		{"off, the event's", eventTrace, callTrace, Config{}, eventTrace, false},
		{"off, the call's", "", callTrace, Config{}, callTrace, false},
		{"off, not sampled", "", unsampled, Config{}, "", false},
		{"off, nonsense", "", "nonsense", Config{}, "", false},
		{"on, the call's", "", callTrace, tracing, "own", false},
		{"on, not sampled", "", unsampled, tracing, "", false},
		{"on, the event's", eventTrace, callTrace, tracing, eventTrace, true},
		{"on, one trace", "00-" + callTraceID + "-00f067aa0ba902b7-01", callTrace, tracing, "00-" + callTraceID + "-00f067aa0ba902b7-01", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spans.Reset()
			s := start(t, tc.cfg, &memoryJobs{})
			ctx := t.Context()
			if tc.header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", tc.header)
			}
			req := text("a", "{}")
			req.Traceparent = tc.field
			_, err := s.RecordDelivery(ctx, req)
			testenv.Must(t, err)
			got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "a"})
			testenv.Must(t, err)
			s.conn.Close()
			s.stop()
			testenv.OK(t, <-s.stopped) // Now the spans have ended.
			want, stubs := tc.want, spans.GetSpans()
			if want == "own" {
				want = "00-" + callTraceID + "-" + stubs[0].SpanContext.SpanID().String() + "-01"
			}
			if got.GetJob().GetTraceparent() != want {
				t.Errorf("the job has %q, want %q", got.GetJob().GetTraceparent(), want)
			}
			linked := len(stubs) > 0 && len(stubs[0].Links) == 1 && stubs[0].Links[0].SpanContext.TraceID().String() == eventTraceID
			if linked != tc.linked {
				t.Errorf("linked with the event's trace: %t, want %t", linked, tc.linked)
			}
		})
	}
}

// TestTraceOffIsFree: to look for a trace that is not there allocates nothing.
func TestTraceOffIsFree(t *testing.T) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user-agent", "x"))
	if n := testing.AllocsPerRun(100, func() { traceOf(ctx) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// BenchmarkTraceOff is what a delivery without a trace pays for the look.
func BenchmarkTraceOff(b *testing.B) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user-agent", "x", ":authority", "y", "content-type", "z"))
	for b.Loop() {
		traceOf(ctx)
	}
}

// TestHostileTraceContext: whatever a caller says of its trace, what is kept of it is well-formed, or nothing.
func TestHostileTraceContext(t *testing.T) {
	wellFormed := regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-01$`)
	for _, tc := range []struct {
		values []string
		kept   bool
	}{
		{[]string{callTrace}, true},
		{[]string{"01" + callTrace[2:] + "-what-is-still-to-come"}, true}, // a later version of the standard
		{[]string{"ff" + callTrace[2:]}, false},
		{[]string{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"}, false},
		{[]string{"00-" + callTraceID + "-" + strings.Repeat("0", 16) + "-01"}, false},
		{[]string{strings.ToUpper(callTrace)}, false},
		{[]string{callTrace, callTrace}, false},
		{[]string{callTrace + "\x00"}, false},
		{[]string{strings.Repeat("0", 1<<16)}, false},
		{[]string{callTrace + strings.Repeat("-01", 1<<14)}, false},
		{[]string{""}, false},
	} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{
			"traceparent": tc.values, "tracestate": {strings.Repeat("a=b,", 1<<14)},
		})
		if got := traceOf(ctx); (got != "") != tc.kept || got != "" && !wellFormed.MatchString(got) {
			t.Errorf("%.80q: kept %q", tc.values, got)
		}
	}
}
