package telemetry

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// noOTel leaves OpenTelemetry's variables of whoever runs the tests out.
func noOTel(t *testing.T) {
	for _, name := range []string{"SDK_DISABLED", "TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_TRACES_ENDPOINT",
		"EXPORTER_OTLP_PROTOCOL", "EXPORTER_OTLP_TRACES_PROTOCOL", "RESOURCE_ATTRIBUTES", "SERVICE_NAME"} {
		t.Setenv("OTEL_"+name, "")
	}
}

// TestTracingIsAskedFor: there are traces when the environment asks for them, and otherwise nothing is put anywhere.
func TestTracingIsAskedFor(t *testing.T) {
	for _, tc := range []struct {
		env string
		on  bool
		err string
	}{
		{"", false, ""},
		{"OTEL_SERVICE_NAME=a", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/v1/traces", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_TRACES_EXPORTER=none", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_SDK_DISABLED=true", false, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json", false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
	} {
		t.Run(tc.env, func(t *testing.T) {
			noOTel(t)
			for pair := range strings.FieldsSeq(tc.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			tracing, err := NewTracing(t.Context(), "test", Build{}, slog.New(slog.DiscardHandler))
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got %v, want %q", err, tc.err)
			}
			if on := tracing != nil; on != tc.on || (tracing.Tracer() != nil) != on || (tracing.ServerHandler() != nil) != on ||
				(tracing.ClientHandler() != nil) != on {
				t.Errorf("tracing is %v, with %v and %v; want it on: %t", tracing, tracing.Tracer(), tracing.ServerHandler(), tc.on)
			}
			testenv.OK(t, tracing.Close())
		})
	}
}

// TestCollectorAway: spans that nobody takes hold up nothing, and the log says so.
func TestCollectorAway(t *testing.T) {
	noOTel(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // milliseconds
	log := new(testenv.Tail)
	tracing, err := NewTracing(t.Context(), "test", Build{}, slog.New(slog.NewTextHandler(log, nil)))
	testenv.Must(t, err)
	_, span := tracing.Tracer().Start(t.Context(), "span")
	span.End()
	if err := tracing.Close(); err == nil && !strings.Contains(log.String(), "traces cannot be sent") {
		t.Error("nobody is told that a span was lost")
	}
}
