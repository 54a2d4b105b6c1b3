package client_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/jobonce/jobonce/client"
)

// caller is the key of what a context says about who calls.
type caller struct{}

// whoCalls gives the caller's token, and a fallback where the context names none.
func whoCalls(ctx context.Context) string {
	if name, ok := ctx.Value(caller{}).(string); ok {
		return name
	}
	return "fallback"
}

// perCall is credentials that read the caller's context.
type perCall struct{}

func (perCall) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + whoCalls(ctx)}, nil
}

func (perCall) RequireTransportSecurity() bool { return false }

// tagger is a stats handler that reads the caller's context.
type tagger struct{ stats.Handler }

func (tagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+whoCalls(ctx))
}
func (tagger) HandleRPC(context.Context, stats.RPCStats)                         {}
func (tagger) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (tagger) HandleConn(context.Context, stats.ConnStats)                       {}

// interceptor reads the caller's context.
func interceptor(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return invoker(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+whoCalls(ctx)), method, req, reply, cc, opts...)
}

// TestEachCallerIsItself: however many call at once, each delivery goes out as its own caller's.
func TestEachCallerIsItself(t *testing.T) {
	for name, opt := range map[string]client.Option{
		"token source":               client.WithTokenSource(func(ctx context.Context) (string, error) { return whoCalls(ctx), nil }),
		"credentials":                client.WithDialOptions(grpc.WithPerRPCCredentials(perCall{})),
		"credentials of the options": client.WithDialOptions(grpc.WithDefaultCallOptions(grpc.PerRPCCredentials(perCall{}))),
		"interceptor":                client.WithDialOptions(grpc.WithUnaryInterceptor(interceptor)),
		"stats handler":              client.WithDialOptions(grpc.WithStatsHandler(tagger{})),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd()
				c.answer = func(ctx context.Context, req *request) (*response, error) {
					if got := header(ctx, "authorization"); got != "Bearer "+req.GetSource() {
						t.Errorf("%s of %s came as %q", req.GetJobId(), req.GetSource(), got)
					}
					return &response{StartWork: true}, nil
				}
				cl, _ := startAt(t, "passthrough:///memory", c.fake(), client.WithInsecure(), client.WithTokenOverPlaintext(), opt)
				var got []<-chan outcome
				for i := range 40 {
					who := fmt.Sprint("caller-", i/2%10)
					got = append(got, call(context.WithValue(t.Context(), caller{}, who), cl, &request{JobId: fmt.Sprint(i), Source: who}))
				}
				for range got {
					c.let <- struct{}{}
				}
				for i, ch := range got {
					if o := <-ch; o.err != nil {
						t.Errorf("%d: %v", i, o.err)
					}
				}
			})
		})
	}
}

// TestCallersOfOneTokenShareCalls: those of one token go out together, those of another neither join nor wait for them.
func TestCallersOfOneTokenShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		f := c.fake()
		together := f.batch
		f.batch = func(ctx context.Context, req *batchRequest) (*batchResponse, error) {
			for _, d := range req.GetDeliveries() {
				if got := header(ctx, "authorization"); got != "Bearer "+d.GetSource() {
					t.Errorf("a delivery of %s went out as %q", d.GetSource(), got)
				}
			}
			return together(ctx, req)
		}
		cl, _ := start(t, f, client.WithTokenOverPlaintext(),
			client.WithTokenSource(func(ctx context.Context) (string, error) { return whoCalls(ctx), nil }))
		one := context.WithValue(t.Context(), caller{}, "one")
		two := context.WithValue(t.Context(), caller{}, "two")
		var got []<-chan outcome
		for i := range 14 {
			got = append(got, call(one, cl, &request{JobId: fmt.Sprint("one-", i), Source: "one"}),
				call(two, cl, &request{JobId: fmt.Sprint("two-", i), Source: "two"}))
		}
		if len(c.singles) != 8 {
			t.Errorf("%d calls are under way, want 4 of each", len(c.singles))
		}
		for range 8 {
			c.let <- struct{}{}
		}
		for _, ch := range got {
			if o := <-ch; o.err != nil {
				t.Error(o.err)
			}
		}
		if len(c.batches) != 2 || len(c.batches[0]) != 10 || len(c.batches[1]) != 10 {
			t.Errorf("batches %v", c.batches)
		}
	})
}
