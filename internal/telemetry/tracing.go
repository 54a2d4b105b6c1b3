package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/stats"
)

// flushTimeout is how long the spans that are left may take to be sent when the process ends.
const flushTimeout = 5 * time.Second

// Tracing sends the spans of one process to a collector. The nil one is off: it makes no spans, and nothing is put where it would
// be asked.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// NewTracing reads OpenTelemetry's environment variables. It returns nil unless they ask for traces, by OTEL_TRACES_EXPORTER=otlp
// or by the address of a collector. service names the process unless OTEL_SERVICE_NAME does. Errors name the variable at fault. A
// collector that is away is no error: its spans are dropped, and the log says so. The caller must close it.
func NewTracing(ctx context.Context, service string, b Build, logger *slog.Logger) (*Tracing, error) {
	on, err := tracesWanted()
	if !on || err != nil {
		return nil, err
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, err
	}
	// What the environment says comes last, and wins.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", b.Version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	few := rate.NewLimiter(rate.Every(time.Minute), 1)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if few.Allow() {
			logger.Warn("traces cannot be sent; the service goes on without", "error", err)
		}
	}))
	// The sampler and the sizes of the queue are those of OTEL_TRACES_SAMPLER and OTEL_BSP_*, which the library reads.
	return &Tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))}, nil
}

// tracesWanted tells whether the environment asks for traces.
func tracesWanted() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "otlp":
		return true, nil
	case "none":
		return false, nil
	case "": // By the standard it would be otlp, and a service without a collector would look for one.
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, it must be otlp or none", exporter)
	}
}

// newExporter makes the exporter of the protocol that the environment names. It reads the rest of the environment itself.
func newExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf"); protocol {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q, it must be grpc or http/protobuf", protocol)
	}
}

// Tracer makes spans; nil when tracing is off.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/jobonce/jobonce")
}

// ServerHandler makes a span of each call to a server, but for those of health; nil when tracing is off.
func (t *Tracing) ServerHandler() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider())) // The metrics of calls are those of /metrics.
}

// ClientHandler makes a span of each call of a client, and sends its context along; nil when tracing is off.
func (t *Tracing) ClientHandler() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.Not(filters.HealthCheck())), otelgrpc.WithMeterProvider(noop.NewMeterProvider()))
}

// Close sends what is left, for 5 seconds at most.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}
