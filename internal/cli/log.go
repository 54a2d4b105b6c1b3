package cli

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
)

// logConfig is what the flags about the log set, of every command that runs until it is told to end.
type logConfig struct{ level, format config.Choice }

func (c *logConfig) declare(flags *pflag.FlagSet) {
	c.level = config.Choice{Value: "info", Words: []string{"debug", "info", "warn", "error"}}
	c.format = config.Choice{Value: outputText, Words: []string{outputText, outputJSON}}
	flags.Var(&c.level, "log-level", "least severe messages to log")
	flags.Var(&c.format, "log-format", "format of the log")
}

func (c *logConfig) logger(w io.Writer) *slog.Logger {
	return newLogger(c.format.Value, c.level.Value, w)
}

// newLogger makes a log by what the flags say.
func newLogger(format, least string, w io.Writer) *slog.Logger {
	var level slog.Level
	// The choices are slog's own names.
	_ = level.UnmarshalText([]byte(least))
	opts := &slog.HandlerOptions{Level: level}
	if format == outputJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
