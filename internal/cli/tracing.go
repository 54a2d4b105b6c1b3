package cli

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/telemetry"
)

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
