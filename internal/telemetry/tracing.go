package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// flushTimeout is how long the spans that are left may take to be sent when the process ends.
const flushTimeout = 5 * time.Second

// Tracing sends the spans of one process to a collector. The nil one is off: it makes no spans, and nothing is put where it would
// be asked.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// NewTracing reads OpenTelemetry's environment variables. It returns nil unless they ask for traces, by OTEL_TRACES_EXPORTER=otlp
// or by the address of a collector. service names the process unless OTEL_SERVICE_NAME does. Nothing here ends a service that
// works without traces: what is wrong in the environment, or with the collector, is a warning in the log, which names the variable
// where it can, and shows no address or header. Spans that cannot be sent are dropped. The caller must close it.
func NewTracing(ctx context.Context, service string, b Build, logger *slog.Logger) *Tracing {
	otel.SetLogger(logr.New(libraryLog{logger}))
	few := rate.NewLimiter(rate.Every(time.Minute), 1)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if few.Allow() {
			logger.Warn("something is wrong with the traces; the service goes on without", "error", told(err))
		}
	}))
	on, err := tracesWanted()
	var exporter sdktrace.SpanExporter
	if on && err == nil {
		exporter, err = newExporter(ctx)
	}
	if err != nil {
		logger.Warn("there are no traces, though the environment asks for some", "error", err)
	}
	if !on || err != nil {
		return nil
	}
	// What the environment says comes last, and wins.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", b.Version)), resource.WithFromEnv())
	if err != nil { // It has what could be read.
		logger.Warn("OTEL_RESOURCE_ATTRIBUTES cannot be read, wholly or in part")
	}
	return newTracing(exporter, res)
}

func newTracing(exporter sdktrace.SpanExporter, res *resource.Resource) *Tracing {
	// The sampler and the sizes of the queue are those of OTEL_TRACES_SAMPLER and OTEL_BSP_*, which the library reads.
	return &Tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(wordless{exporter}), sdktrace.WithResource(res))}
}

// wordless sends spans without the texts of errors. gRPC's handlers take these from the status of a call: from a peer, that is.
type wordless struct{ sdktrace.SpanExporter }

// ExportSpans implements [sdktrace.SpanExporter].
func (w wordless) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, s := range spans {
		out[i] = wordlessSpan{s}
	}
	return w.SpanExporter.ExportSpans(ctx, out)
}

type wordlessSpan struct{ sdktrace.ReadOnlySpan }

// Status implements [sdktrace.ReadOnlySpan].
func (s wordlessSpan) Status() sdktrace.Status {
	return sdktrace.Status{Code: s.ReadOnlySpan.Status().Code}
}

// libraryLog is where OpenTelemetry's library says what it does not understand of the environment. What it was at is logged, and
// not the value: that of OTEL_EXPORTER_OTLP_HEADERS is a secret, as a rule.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Init(logr.RuntimeInfo)          {}
func (l libraryLog) Enabled(int) bool               { return false }
func (l libraryLog) Info(int, string, ...any)       {}
func (l libraryLog) WithValues(...any) logr.LogSink { return l }
func (l libraryLog) WithName(string) logr.LogSink   { return l }
func (l libraryLog) Error(_ error, at string, _ ...any) {
	l.log.Warn("a variable OTEL_EXPORTER_OTLP_... is not understood, and left out, wholly or in part", "at", at)
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
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "grpc" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q, it must be grpc or http/protobuf", protocol)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		value := strings.TrimSpace(os.Getenv(name))
		if value == "" {
			continue
		}
		// The library takes what it does not understand for its own default address.
		u, err := url.Parse(value)
		if err != nil || u.User != nil || protocol != "grpc" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			return nil, fmt.Errorf("%s is not a URL such as http://otel-collector:4318, without a user", name)
		}
		break
	}
	if protocol == "grpc" {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

// Tracer makes spans; nil when tracing is off.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/jobonce/jobonce")
}

// ours are the methods whose calls get spans: those of the service itself. Peers choose the names of calls, of any length, and may
// call what is not there.
var ours = func() map[string]bool {
	methods := make(map[string]bool)
	for _, service := range []grpc.ServiceDesc{joboncev1.IdempotencyService_ServiceDesc, joboncev1.WorkService_ServiceDesc,
		joboncev1.ExpectationService_ServiceDesc, joboncev1.AdminService_ServiceDesc} {
		for _, method := range service.Methods {
			methods["/"+service.ServiceName+"/"+method.MethodName] = true
		}
	}
	return methods
}()

// options are those of both handlers. The metrics of calls are those of /metrics.
func (t *Tracing) options() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(propagation.TraceContext{}), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool { return ours[call.FullMethodName] }),
	}
}

// ServerHandler makes a span of each call to the service's own methods; nil when tracing is off.
func (t *Tracing) ServerHandler() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewServerHandler(t.options()...)
}

// ClientHandler makes a span of each call of a client, and sends its context along; nil when tracing is off.
func (t *Tracing) ClientHandler() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewClientHandler(t.options()...)
}

// Close sends what is left, for 5 seconds at most.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %s", cause(err))
	}
	return nil
}

// told is an error as it may stand in the log.
func told(err error) string {
	if strings.HasPrefix(err.Error(), "traces export: ") {
		return cause(err)
	}
	return err.Error()
}

// cause is why spans could not be sent, as far as it can be said without the address, the headers and the answer of the collector,
// in which tokens may stand.
func cause(err error) string {
	var network *net.OpError
	var answer interface{ GRPCStatus() *status.Status }
	switch {
	case errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err):
		return "the collector did not answer in time"
	case errors.As(err, &network):
		return "the connection to the collector: " + network.Err.Error()
	case errors.As(err, &answer):
		return "the collector answered " + answer.GRPCStatus().Code().String()
	case httpStatus.MatchString(err.Error()):
		return "the collector answered " + httpStatus.FindString(err.Error())
	}
	return "the collector did not take them"
}

// httpStatus is how net/http tells a status of a failed call.
var httpStatus = regexp.MustCompile(`\b[345][0-9]{2} [A-Z][a-z]+( [A-Za-z]+)*`)
