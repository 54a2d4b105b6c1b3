package cli

import (
	"context"
	"log/slog"

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
