package batch_test

import (
	"context"
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// spanned is a store that notes the span in whose context it is called.
type spanned struct {
	job.Store
	within []trace.SpanContext
}

func (s *spanned) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	s.within = append(s.within, trace.SpanContextFromContext(ctx))
	return make([]job.Outcome, len(ds))
}

func (*spanned) Close() error { return nil }

// TestBatchSpans: a batch has one span, below the first caller that is sampled, and linked with the others both ways. Without
// one there is no span.
func TestBatchSpans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tracer := provider.Tracer("test")
	none, _ := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test").Start(t.Context(), "not sampled")
	store := &spanned{}
	jobs := batch.New(store, batch.Config{Tracer: tracer, Logger: testenv.Logger(t)})
	defer func() { testenv.OK(t, jobs.Close()) }()

	for _, ctx := range []context.Context{t.Context(), none} {
		testenv.OK(t, jobs.RecordOne(ctx, job.Delivery{JobID: "a"}).Err)
	}
	for _, within := range store.within {
		if within.IsValid() || len(spans.GetSpans()) > 0 {
			t.Errorf("a batch of callers without spans was in %v, with %d spans", within, len(spans.GetSpans()))
		}
	}

	// A store that holds the first batch up has the others wait for the next.
	held, let := make(chan struct{}), make(chan struct{})
	slow := batch.New(&holding{spanned: store, held: held, let: let}, batch.Config{Tracer: tracer, Logger: testenv.Logger(t)})
	done := make(chan error, 3)
	record := func(ctx context.Context) { done <- slow.RecordOne(ctx, job.Delivery{JobID: "a"}).Err }
	go record(t.Context())
	<-held
	callers := make([]trace.Span, 2)
	for i := range callers {
		var ctx context.Context
		ctx, callers[i] = tracer.Start(t.Context(), "caller")
		go record(ctx)
	}
	for {
		if n, _ := slow.Queued(); n == 3 {
			break
		}
	}
	close(let)
	for range 3 {
		testenv.OK(t, <-done)
	}
	for _, s := range callers {
		s.End()
	}
	testenv.OK(t, slow.Close()) // which waits for the batches' spans; callers are answered before these end
	stubs := spans.GetSpans()
	i := slices.IndexFunc(stubs, func(s tracetest.SpanStub) bool { return s.Name == "write batch of deliveries" })
	if i < 0 || len(stubs) != 3 {
		t.Fatalf("the spans are %v", stubs)
	}
	own := stubs[i]
	if last := store.within[len(store.within)-1]; !last.Equal(own.SpanContext) {
		t.Errorf("the store was called in %v, not in the batch's span", last)
	}
	parent := slices.IndexFunc(callers, func(s trace.Span) bool { return s.SpanContext().SpanID() == own.Parent.SpanID() })
	if parent < 0 || len(own.Links) != 1 || !own.Links[0].SpanContext.Equal(callers[1-parent].SpanContext()) {
		t.Fatalf("the batch is below %v and linked with %v", own.Parent, own.Links)
	}
	for _, s := range stubs {
		other := s.SpanContext.Equal(callers[1-parent].SpanContext())
		if other && (len(s.Links) != 1 || !s.Links[0].SpanContext.Equal(own.SpanContext)) {
			t.Errorf("the other caller is linked with %v", s.Links)
		}
	}
}

// holding holds up its first batch.
type holding struct {
	*spanned
	held, let chan struct{}
	began     bool
}

func (h *holding) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	if !h.began {
		h.began = true
		close(h.held)
		<-h.let
	}
	return h.spanned.Record(ctx, ds)
}
