package failuretest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// span is what a collector has been told of a span.
type span struct{ service, name, trace, id, parent string }

// collector takes spans as OpenTelemetry's collectors do: over gRPC and over HTTP.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	http, grpc string // the addresses

	mu    sync.Mutex
	spans []span
	raw   bytes.Buffer // all that came
	news  chan struct{}
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{news: make(chan struct{}, 1)}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	web := httptest.NewServer(http.HandlerFunc(c.post))
	t.Cleanup(web.Close)
	c.grpc, c.http = "http://"+lis.Addr().String(), web.URL
	return c
}

func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, _ := proto.Marshal(req)
	c.raw.Write(raw)
	for _, rs := range req.GetResourceSpans() {
		service := ""
		for _, kv := range rs.GetResource().GetAttributes() {
			if kv.GetKey() == "service.name" {
				service = kv.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				id := hex.EncodeToString
				c.spans = append(c.spans, span{service, s.GetName(), id(s.GetTraceId()), id(s.GetSpanId()), id(s.GetParentSpanId())})
			}
		}
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *collector) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	req := &collectorv1.ExportTraceServiceRequest{}
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), req)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// span waits for the first span of that name in a trace.
func (c *collector) span(t *testing.T, name, traceID string) span {
	t.Helper()
	for {
		c.mu.Lock()
		for _, s := range c.spans {
			if s.name == name && s.trace == traceID {
				c.mu.Unlock()
				return s
			}
		}
		c.mu.Unlock()
		await(t, "a span "+name+" comes", c.news)
	}
}

// tracedFrontend is a webhook frontend with spans of its own, as a program has them that uses the client with OpenTelemetry.
func tracedFrontend(t *testing.T, addr, secret string) (url string, spans *tracetest.InMemoryExporter) {
	t.Helper()
	spans = tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	calls := otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(provider), otelgrpc.WithPropagators(propagation.TraceContext{}))
	jobs := newClient(t, addr, client.WithDialOptions(grpc.WithStatsHandler(calls)))
	handler, err := webhook.NewHandler(jobs, webhook.Source{Name: "github", Provider: "github", Secrets: webhook.Secrets(secret)})
	must(t, err)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := provider.Tracer("frontend").Start(r.Context(), "POST /github", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		handler.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(web.Close)
	return web.URL, spans
}

var workerLine = regexp.MustCompile(`^jobonce worker runs (\S+), `)

// TestOneTrace: one trace shows the webhook, the record, the batch, what the database was sent, and the work; what the
// worker's program calls goes on with it. No body is in any of it.
func TestOneTrace(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { oneTrace(t, nil, "", "--data-dir", t.TempDir()) })
	t.Run("mongodb", func(t *testing.T) {
		oneTrace(t, []string{"MONGODB_URI=" + testenv.MongoURI(t)}, "update sume_jobs", "--mongodb-database", testenv.Database(t))
	})
}

func oneTrace(t *testing.T, env []string, command string, args ...string) {
	const secret, private = "a secret of the webhook", "nobody but the worker is to see this"
	c := startCollector(t)
	often := "OTEL_BSP_SCHEDULE_DELAY=50"
	service := startServe(t, append(env, often, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.http), args...)
	worker, err := testenv.Program{
		Role: "jobonce", Args: []string{"worker", "--server", service.Direct, "--exec", "sh", "--", "-c", `echo "$TRACEPARENT"`},
		Env: []string{often, "OTEL_EXPORTER_OTLP_ENDPOINT=" + c.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_SERVICE_NAME=shipping"},
	}.Start()
	must(t, err)
	defer func() { testenv.OK(t, worker.Stop()) }()
	_, err = worker.Ready(workerLine)
	must(t, err)

	url, own := tracedFrontend(t, service.Direct, secret)
	body := `{"action":"opened","text":"` + private + `"}`
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "issues")
	req.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("the webhook was answered %s", resp.Status)
	}

	call := own.GetSpans()[0] // It ends before the frontend's own.
	id := call.SpanContext.TraceID().String()
	record := c.span(t, "jobonce.v1.IdempotencyService/RecordDelivery", id)
	batch := c.span(t, "write batch of deliveries", id)
	work := c.span(t, "work", id)
	if record.parent != call.SpanContext.SpanID().String() || batch.parent != record.id || work.parent != record.id {
		t.Errorf("the spans are %+v, %+v and %+v below the call's %v", record, batch, work, call.SpanContext.SpanID())
	}
	if record.service != "jobonce" || work.service != "shipping" {
		t.Errorf("the services are called %q and %q", record.service, work.service)
	}
	if command != "" {
		if s := c.span(t, command, id); s.parent != batch.id {
			t.Errorf("the command %+v is not below the batch %+v", s, batch)
		}
	}
	jobs := newClient(t, service.Direct)
	var job *joboncev1.Job
	for job.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_COMPLETED { // The span ends before the service is told.
		job = stored(t, jobs, "github:72d3162e-cc78-11e3-81ab-4c9367dc0958")
	}
	if want := "00-" + id + "-" + record.id + "-01"; job.GetTraceparent() != want {
		t.Errorf("the job has the trace %q, want %q", job.GetTraceparent(), want)
	}
	if want := "00-" + id + "-" + work.id + "-01\n"; job.GetWork().GetResult() != want {
		t.Errorf("the command was told %q, want %q", job.GetWork().GetResult(), want)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes.Contains(c.raw.Bytes(), []byte(private)) {
		t.Error("the spans have a body in them")
	}
	for _, s := range c.spans {
		if strings.Contains(s.name, "Health") {
			t.Errorf("a span of the health service: %+v", s)
		}
	}
}
