package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// bearer sends a token with every call.
type bearer struct {
	source    func(context.Context) (string, error)
	mayBeSeen bool
}

// asked is what the source gave for one attempt.
type asked struct {
	token string
	err   error
}

// ask asks the source, and returns a context whose calls send what it gave.
func (b *bearer) ask(ctx context.Context) (context.Context, string, error) {
	token, err := b.source(ctx)
	return context.WithValue(ctx, b, asked{token, err}), token, err
}

// with returns a context whose calls send the token.
func (b *bearer) with(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, b, asked{token: token})
}

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b *bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	got, ok := ctx.Value(b).(asked)
	if !ok {
		got.token, got.err = b.source(ctx)
	}
	if got.err == nil {
		if err := checkToken(got.token); err != nil {
			got.err = status.Error(codes.Unauthenticated, "the token source: "+err.Error())
		}
	}
	if got.err != nil {
		if info, _ := credentials.RequestInfoFromContext(ctx); info.Method == grpc_health_v1.Health_Watch_FullMethodName {
			return nil, nil // gRPC asks for the health, and not for a caller: a token is not needed.
		}
		return nil, got.err
	}
	return map[string]string{"authorization": "Bearer " + got.token}, nil
}

// RequireTransportSecurity makes gRPC refuse the token on a connection that turns out to be plaintext, whoever set it.
func (b *bearer) RequireTransportSecurity() bool { return !b.mayBeSeen }

// checkToken never repeats the token: its error may be logged.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("the token is empty")
	case len(token) > maxMetadata:
		return fmt.Errorf("the token is %d bytes; the limit is %d", len(token), maxMetadata)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return errors.New("the token holds a space, a line break or another character that a header cannot carry")
		}
	}
	return nil
}
