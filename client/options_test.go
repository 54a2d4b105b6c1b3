package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
)

func TestPlaintextOnlyToThisMachine(t *testing.T) {
	for target, plaintext := range map[string]bool{
		"127.0.0.1:50051":                              true,
		"dns:///127.0.0.9:50051":                       true,
		"passthrough:///localhost:50051":               true,
		"passthrough:///[::1]:50051":                   true,
		"passthrough:///[::ffff:127.0.0.1]:50051":      true,
		"unix:///run/jobonce.sock":                     true,
		"192.0.2.1:50051":                              false,
		"passthrough:///0.0.0.0:50051":                 false,
		"passthrough:///jobonce.example:50051":         false,
		"passthrough:///localhost.jobonce.example:443": false,
		"passthrough:///127.0.0.1.jobonce.example:443": false,
	} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				c, _ := startAt(t, target, &fake{record: s.record}, client.WithoutRetry())
				_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
				if plaintext && err != nil {
					t.Errorf("got %v", err)
				}
				if !plaintext && (status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "tls:") ||
					!strings.Contains(err.Error(), "WithInsecure allows plaintext")) {
					t.Errorf("got %v, want a failed handshake and the option that mends it", err)
				}
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	const remote = "jobonce.example:50051"
	token := client.WithToken("s3cret")
	for name, test := range map[string]struct {
		target string
		opts   []client.Option
		want   string // Part of the error; empty when there is to be none.
	}{
		"nothing wrong":               {remote, nil, ""},
		"both transports":             {remote, []client.Option{client.WithTLS(nil), client.WithInsecure()}, "exclude each other"},
		"token, encrypted":            {remote, []client.Option{token}, ""},
		"token to this machine":       {"localhost:50051", []client.Option{token}, ""},
		"token in plaintext":          {remote, []client.Option{token, client.WithInsecure()}, "WithTokenOverPlaintext"},
		"token in plaintext, allowed": {remote, []client.Option{token, client.WithInsecure(), client.WithTokenOverPlaintext()}, ""},
		"token in plaintext by a dial option": {
			remote,
			[]client.Option{token, client.WithDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials()))},
			"transport level security",
		},
		"empty token":           {remote, []client.Option{client.WithToken("")}, "WithToken: the token is empty"},
		"token with line break": {remote, []client.Option{client.WithToken("s3cret\n")}, "line break"},
		"no token source":       {remote, []client.Option{client.WithTokenSource(nil)}, "WithTokenSource"},
		"keepalive too often":   {remote, []client.Option{client.WithKeepalive(time.Second, time.Second)}, "below 10s"},
		"no keepalive":          {remote, []client.Option{client.WithKeepalive(0, 0)}, ""},
		"keepalive timeout":     {remote, []client.Option{client.WithKeepalive(time.Minute, 0)}, "WithKeepalive"},
		"negative timeout":      {remote, []client.Option{client.WithTimeout(-1)}, "WithTimeout"},
		"negative attempts":     {remote, []client.Option{client.WithRetry(client.RetryPolicy{MaxAttempts: -1})}, "WithRetry"},
		"base above maximum":    {remote, []client.Option{client.WithRetry(client.RetryPolicy{BaseDelay: time.Minute})}, "above MaxDelay 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := client.New(test.target, test.opts...)
			if err == nil {
				defer func() { _ = c.Close() }()
			}
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want one with %q", err, test.want)
			case err != nil && strings.Contains(err.Error(), "s3cret"):
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
}

// header returns what the client sent under a name, joined when there are several.
func header(ctx context.Context, name string) string {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, name), ", ")
}

func TestToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		f := &fake{record: func(ctx context.Context, _ *request) (*response, error) {
			seen = append(seen, header(ctx, "authorization"))
			if len(seen) == 1 {
				return nil, unavailable
			}
			return &response{}, nil
		}}
		tokens := []string{"one", "two"}
		c, _ := start(t, f, client.WithTokenOverPlaintext(), client.WithTokenSource(func(context.Context) (string, error) {
			token := tokens[0]
			tokens = tokens[1:]
			return token, nil
		}))
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(seen, "; "); got != "Bearer one; Bearer two" {
			t.Errorf("sent %q", got)
		}
	})
}

func TestTokenSourceFails(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		token string
		asked int
		want  error // Nil: the call succeeds.
	}{
		"for good":      {err: errors.New("no such file"), asked: 1, want: client.ErrUnauthenticated},
		"for a moment":  {err: status.Error(codes.Unavailable, "try again"), asked: 2},
		"empty token":   {token: "", asked: 1, want: client.ErrUnauthenticated},
		"token and eol": {token: "s3cret\n", asked: 1, want: client.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				s := &script{}
				c, _ := start(t, &fake{record: s.record}, client.WithTokenOverPlaintext(),
					client.WithTokenSource(func(context.Context) (string, error) {
						if asked++; asked > 1 {
							return "good", nil
						}
						return test.token, test.err
					}))
				_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
				if !errors.Is(err, test.want) || asked != test.asked {
					t.Errorf("got %v after asking %d times", err, asked)
				}
				if err != nil && (len(s.ids) != 0 || errors.Is(err, client.ErrOutcomeUnknown) || strings.Contains(err.Error(), "s3cret")) {
					t.Errorf("got %v after %d calls", err, len(s.ids))
				}
			})
		})
	}
}

func TestTimeoutAndUserAgent(t *testing.T) {
	for name, test := range map[string]struct {
		opts []client.Option
		own  time.Duration // The caller's own deadline.
		want time.Duration
	}{
		"default":        {want: client.DefaultTimeout},
		"option":         {opts: []client.Option{client.WithTimeout(time.Minute)}, want: time.Minute},
		"none":           {opts: []client.Option{client.WithTimeout(0)}},
		"caller's own":   {own: time.Hour, want: time.Hour},
		"caller's first": {opts: []client.Option{client.WithTimeout(time.Second)}, own: time.Minute, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var left time.Duration
				var agent string
				f := &fake{record: func(ctx context.Context, _ *request) (*response, error) {
					if deadline, ok := ctx.Deadline(); ok {
						left = time.Until(deadline)
					}
					agent = header(ctx, "user-agent")
					return &response{}, nil
				}}
				c, _ := start(t, f, append(test.opts, client.WithUserAgent("frontend/1"), client.WithoutRetry())...)
				ctx := t.Context()
				if test.own > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.own)
					defer cancel()
				}
				if _, err := c.RecordDelivery(ctx, &request{JobId: "j"}); err != nil {
					t.Fatal(err)
				}
				if left != test.want {
					t.Errorf("the call had %v, want %v", left, test.want)
				}
				if !strings.HasPrefix(agent, "frontend/1 ") {
					t.Errorf("user agent %q", agent)
				}
			})
		})
	}
}

func TestTLSToThisMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A fake in plaintext: the handshake shows that TLS is what the client speaks.
		c, _ := startAt(t, "127.0.0.1:50051", &fake{}, client.WithTLS(&tls.Config{MinVersion: tls.VersionTLS13}), client.WithoutRetry())
		if _, err := c.GetJob(t.Context(), "j", 0); err == nil ||
			!strings.Contains(err.Error(), "tls:") || strings.Contains(err.Error(), "WithInsecure") {
			t.Errorf("got %v, want a failed handshake, and no hint against what was asked for", err)
		}
	})
}

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
