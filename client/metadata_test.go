package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/jobonce/jobonce/client"
)

// TestTooMuchMetadataIsNotSent, wherever it comes from: the service would refuse it, or the connection end with all its calls.
func TestTooMuchMetadataIsNotSent(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	adding := func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		return invoke(metadata.AppendToOutgoingContext(ctx, "long", long), method, req, reply, cc, opts...)
	}
	many := metadata.MD{}
	for range 3000 {
		many.Append("many", "x")
	}
	fits := metadata.Pairs("fits", strings.Repeat("x", 60<<10))
	for name, test := range map[string]struct {
		md   metadata.MD
		opts []client.Option
		want error
	}{
		"fits":           {md: fits},
		"long":           {md: metadata.Pairs("long", long), want: client.ErrInvalidField},
		"huge":           {md: metadata.Pairs("long", strings.Repeat(long, 8)), want: client.ErrInvalidField},
		"many":           {md: many, want: client.ErrInvalidField},
		"by a token":     {opts: []client.Option{client.WithTokenSource(func(context.Context) (string, error) { return long, nil })}, want: client.ErrUnauthenticated},
		"by interceptor": {opts: []client.Option{client.WithDialOptions(grpc.WithUnaryInterceptor(adding))}, want: client.ErrInvalidField},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				c, _ := start(t, &fake{record: s.record}, append(test.opts, client.WithTokenOverPlaintext())...)
				_, err := c.RecordDelivery(metadata.NewOutgoingContext(t.Context(), test.md), &request{JobId: "j"})
				if !errors.Is(err, test.want) || errors.Is(err, client.ErrOutcomeUnknown) || (len(s.ids) == 0) != (test.want != nil) {
					t.Errorf("got %v after %d calls", err, len(s.ids))
				}
				if err != nil && (!strings.Contains(err.Error(), " bytes; the limit is ") || len(err.Error()) > 200) {
					t.Errorf("the error says %.300s", err)
				}
			})
		})
	}
	if _, err := client.New("localhost:50051", client.WithToken(long)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a token of %d bytes: %.300v", len(long), err)
	}
}
