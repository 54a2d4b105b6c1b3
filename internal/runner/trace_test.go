package runner

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

const jobTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func traced(traceparent string) *client.Work {
	return &client.Work{Job: &joboncev1.Job{JobId: "j", Traceparent: traceparent}, Lease: &joboncev1.Lease{Generation: 7}}
}

// TestTraceContextIsHandedOn: the receiver and the command get the job's trace context, and nothing that is no header.
func TestTraceContextIsHandedOn(t *testing.T) {
	t.Setenv("TRACEPARENT", "that of the worker itself")
	got := make(chan []string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Values("Traceparent") }))
	t.Cleanup(receiver.Close)
	forward := forwardTo(t, ForwardConfig{URL: receiver.URL})
	command := shell(t, `test "$TRACEPARENT" = "`+jobTrace+`" && exit 0; test -z "$TRACEPARENT" && exit 65; exit 1`, ExecConfig{DeadExit: []int{65}})
	for traceparent, want := range map[string]string{jobTrace: jobTrace, "": "", "two\r\nlines": ""} {
		testenv.Must(t, forward(t.Context(), traced(traceparent)))
		if values := <-got; strings.Join(values, ",") != want {
			t.Errorf("%q: the receiver got %q", traceparent, values)
		}
		err := command(t.Context(), traced(traceparent))
		if none := err != nil && err.Error() == "the command ended with exit status 65"; (err == nil) != (want != "") || !none && err != nil {
			t.Errorf("%q: the command got something else: %v", traceparent, err)
		}
	}
}

// TestTrace: the span of the work goes on with the job's trace, what is called goes on with the span, and the failure's text is
// in none of it.
func TestTrace(t *testing.T) {
	for _, tc := range []struct {
		stored string
		err    error
	}{{jobTrace, nil}, {jobTrace, errors.New("a secret")}, {"", nil}, {"nonsense", nil}} {
		spans := tracetest.NewInMemoryExporter()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
		w := traced(tc.stored)
		var told string
		stored := w.Job
		err := Trace(func(_ context.Context, w *client.Work) error {
			told = w.Job.GetTraceparent()
			return tc.err
		}, tracer)(t.Context(), w)
		s := spans.GetSpans()[0]
		if err != tc.err || stored.GetTraceparent() != tc.stored {
			t.Errorf("got %v, and the job as it came has now %q", err, stored.GetTraceparent())
		}
		if want := "00-" + s.SpanContext.TraceID().String() + "-" + s.SpanContext.SpanID().String() + "-01"; told != want {
			t.Errorf("the work was told %q, want %q", told, want)
		}
		if child := strings.Contains(jobTrace, s.SpanContext.TraceID().String()+"-"+s.Parent.SpanID().String()); child != (tc.stored == jobTrace) {
			t.Errorf("%q: the span is %v below %v", tc.stored, s.SpanContext.TraceID(), s.Parent.SpanID())
		}
		if failed := s.Status.Code == codes.Error; failed != (tc.err != nil) || strings.Contains(s.Status.Description, "secret") {
			t.Errorf("the status is %+v", s.Status)
		}
	}
}
