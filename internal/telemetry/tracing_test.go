package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// withOTel sets OpenTelemetry's variables, and leaves those of whoever runs the tests out.
func withOTel(t *testing.T, env string) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for pair := range strings.FieldsSeq(env) {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv("OTEL_"+name, strings.ReplaceAll(value, "_SPACE_", " "))
	}
}

// incoming is the context of a call that came with a trace context.
func incoming(traceparent string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs("traceparent", traceparent))
}

// open opens the tracing that the environment asks for, with the log of it.
func open(t *testing.T, env string) (*Tracing, *testenv.Tail) {
	withOTel(t, env)
	log := new(testenv.Tail)
	return NewTracing(t.Context(), "test", Build{}, slog.New(slog.NewTextHandler(log, nil))), log
}

// TestTracingIsAskedFor: there are traces when the environment asks for them, and otherwise nothing is put anywhere. What is wrong in
// the environment ends nothing: the log names it, without the secrets that may be in it.
func TestTracingIsAskedFor(t *testing.T) {
	const url = "EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 "
	for _, tc := range []struct {
		env  string
		on   bool
		said string // in the log; nothing when it is empty
	}{
		{"", false, ""},
		{"SERVICE_NAME=a", false, ""},
		{"TRACES_EXPORTER=otlp", true, ""},
		{url, true, ""},
		{"EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/v1/traces", true, ""},
		{url + "EXPORTER_OTLP_PROTOCOL=grpc", true, ""},
		{"EXPORTER_OTLP_ENDPOINT=collector:4317 EXPORTER_OTLP_PROTOCOL=grpc", true, ""},
		{url + "TRACES_EXPORTER=none", false, ""},
		{url + "SDK_DISABLED=true", false, ""},

		{"TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER"},
		{url + "EXPORTER_OTLP_PROTOCOL=http/json", false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{"EXPORTER_OTLP_ENDPOINT=collector:4318", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"EXPORTER_OTLP_ENDPOINT=://swordfish", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"EXPORTER_OTLP_ENDPOINT=http://:swordfish", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"EXPORTER_OTLP_ENDPOINT=10.0.0.1:4317 EXPORTER_OTLP_PROTOCOL=grpc", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"EXPORTER_OTLP_TRACES_ENDPOINT=http://user:swordfish@127.0.0.1:1", false, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
		{url + "EXPORTER_OTLP_HEADERS=Bearer_SPACE_swordfish", true, "parse headers"},
		{url + "EXPORTER_OTLP_HEADERS=Authorization=%swordfish", true, "escape header value"},
		{url + "EXPORTER_OTLP_CERTIFICATE=/no/swordfish", true, "read tls ca cert file"},
		{url + "TRACES_SAMPLER=often", true, "unsupported sampler"},
		{url + "RESOURCE_ATTRIBUTES=alone", true, "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(tc.env, func(t *testing.T) {
			tracing, log := open(t, tc.env)
			if on := tracing != nil; on != tc.on || (tracing.Tracer() != nil) != on || (tracing.ServerHandler() != nil) != on ||
				(tracing.ClientHandler() != nil) != on {
				t.Errorf("tracing is %v, with %v and %v; want it on: %t", tracing, tracing.Tracer(), tracing.ServerHandler(), tc.on)
			}
			testenv.OK(t, tracing.Close())
			said := log.String()
			if !strings.Contains(said, tc.said) || (said != "") != (tc.said != "") || strings.Contains(said, "swordfish") {
				t.Errorf("the log says %q, want %q", said, tc.said)
			}
		})
	}
}

// TestCollectorAway: a collector that is away, or takes connections and never answers, holds up neither who makes spans, many more than
// the queue takes, nor for long the end of the process. The log says that spans were lost.
func TestCollectorAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // The system takes connections for it.
	testenv.Must(t, err)
	defer silent.Close()
	for _, where := range []string{"http://127.0.0.1:1", "http://" + silent.Addr().String()} {
		for _, protocol := range []string{"grpc", "http/protobuf"} {
			t.Run(where+" "+protocol, func(t *testing.T) {
				tracing, log := open(t, "EXPORTER_OTLP_ENDPOINT="+where+" EXPORTER_OTLP_PROTOCOL="+protocol+
					" EXPORTER_OTLP_TIMEOUT=200 BSP_EXPORT_TIMEOUT=200 BSP_MAX_QUEUE_SIZE=16 BSP_MAX_EXPORT_BATCH_SIZE=8") // in milliseconds
				began := time.Now()
				for range 10_000 {
					_, span := tracing.Tracer().Start(t.Context(), "span")
					span.End()
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("10,000 spans took %v", took)
				}
				began = time.Now()
				if err := tracing.Close(); err == nil && !strings.Contains(log.String(), "something is wrong with the traces") {
					t.Error("nobody is told that spans were lost")
				}
				if took := time.Since(began); took > flushTimeout+time.Second {
					t.Errorf("the end took %v", took)
				}
			})
		}
	}
}

// TestCollectorRefuses: the log says what a collector answered, and neither its address, in which a token may stand, nor its words.
func TestCollectorRefuses(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "swordfish", http.StatusForbidden) }))
	t.Cleanup(refusing.Close)
	for where, want := range map[string]string{
		refusing.URL + "/swordfish":    "403 Forbidden",
		"http://127.0.0.1:1/swordfish": "refused",
	} {
		for _, protocol := range []string{"grpc", "http/protobuf"} {
			t.Run(where+" "+protocol, func(t *testing.T) {
				tracing, log := open(t, "EXPORTER_OTLP_ENDPOINT="+where+" EXPORTER_OTLP_PROTOCOL="+protocol+" EXPORTER_OTLP_TIMEOUT=2000")
				_, span := tracing.Tracer().Start(t.Context(), "span")
				span.End()
				err := tracing.Close()
				said := fmt.Sprint(log.String(), err)
				if strings.Contains(said, "swordfish") || !strings.Contains(said, "collector") || protocol != "grpc" && !strings.Contains(said, want) {
					t.Errorf("the log says %q, want %q", said, want)
				}
			})
		}
	}
}

// TestSpansOfCalls: there are spans of the service's own methods, and none with a name that a peer made up. What a status says is in
// none of them.
func TestSpansOfCalls(t *testing.T) {
	withOTel(t, "")
	spans := tracetest.NewInMemoryExporter()
	tracing := newTracing(spans, resource.Empty())
	t.Cleanup(func() { testenv.OK(t, tracing.Close()) })
	for _, handler := range []stats.Handler{tracing.ServerHandler(), tracing.ClientHandler()} {
		for _, method := range []string{
			joboncev1.AdminService_DeleteJob_FullMethodName, "/grpc.health.v1.Health/Check", "/jobonce.v1.AdminService/" + strings.Repeat("x", 1<<16), "x",
		} {
			ctx := handler.TagRPC(context.Background(), &stats.RPCTagInfo{FullMethodName: method})
			handler.HandleRPC(ctx, &stats.End{Error: status.Error(grpccodes.Internal, "swordfish")})
		}
	}
	testenv.Must(t, tracing.provider.ForceFlush(t.Context()))
	got := spans.GetSpans()
	if len(got) != 2 {
		t.Errorf("there are %d spans, want one of the server and one of the client", len(got))
	}
	for _, s := range got {
		if s.Name != "jobonce.v1.AdminService/DeleteJob" || s.Status.Code != codes.Error || s.Status.Description != "" {
			t.Errorf("the span %.100q has the status %+v", s.Name, s.Status)
		}
	}
}

// TestSampling: a call goes with the decision of its caller, and one without goes by the sampler.
func TestSampling(t *testing.T) {
	for env, want := range map[string]int{"": 1, "TRACES_SAMPLER=parentbased_always_off": 1, "TRACES_SAMPLER=always_off": 0, "TRACES_SAMPLER=always_on": 2} {
		withOTel(t, env)
		spans := tracetest.NewInMemoryExporter()
		tracing := newTracing(spans, resource.Empty())
		handler := tracing.ServerHandler()
		for _, flags := range []string{"00", "01"} {
			ctx := incoming("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-" + flags)
			ctx = handler.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: joboncev1.AdminService_DeleteJob_FullMethodName})
			handler.HandleRPC(ctx, &stats.End{})
		}
		testenv.Must(t, tracing.provider.ForceFlush(t.Context()))
		if got := len(spans.GetSpans()); got != want {
			t.Errorf("%s: %d spans, want %d", env, got, want)
		}
		testenv.OK(t, tracing.Close())
	}
}
