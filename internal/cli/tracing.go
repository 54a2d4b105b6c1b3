package cli

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/telemetry"
)

// newTracing is what the environment says about traces; nil when it asks for none.
func newTracing(ctx context.Context, service string, logger *slog.Logger) (*telemetry.Tracing, error) {
	v := readVersion()
	tracing, err := telemetry.NewTracing(ctx, service, telemetry.Build{Version: v.Version, Commit: v.Commit, Go: v.Go}, logger)
	if err != nil {
		return nil, &usageError{err}
	}
	return tracing, nil
}

// closeTracing sends what is left. That it could not is no failure of the command.
func closeTracing(tracing *telemetry.Tracing, logger *slog.Logger) {
	if err := tracing.Close(); err != nil {
		logger.Warn("the last traces were not sent", "error", err)
	}
}

// traced makes spans of a client's calls. Each call then goes alone, in its caller's context.
func traced(tracing *telemetry.Tracing) []client.Option {
	if tracing == nil {
		return nil
	}
	return []client.Option{client.WithDialOptions(grpc.WithStatsHandler(tracing.ClientHandler()))}
}
