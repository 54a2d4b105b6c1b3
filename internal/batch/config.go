package batch

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Config bounds the batches and the queue. The zero value of each field means its default.
type Config struct {
	// Lanes is how many batches of deliveries may be under way at once, and of each kind of changes of leases, those left out
	// that take longer than usual. A job's deliveries always take the same lane, so that one job is hardly ever in two
	// batches of this process. Default 1, which is right for a store with a single writer.
	Lanes int
	// MaxItems and MaxBytes bound one batch. Defaults 256 items and 8 MiB of bodies or results; a single item always fits.
	MaxItems int
	MaxBytes int
	// QueueItems and QueueBytes bound what waits or has no outcome yet, of the deliveries together and of each kind of changes;
	// past them an item is refused with job.ErrOverloaded. Defaults 8192 items and 128 MiB of bodies or results.
	QueueItems int
	QueueBytes int
	// Timeout bounds one batch, whatever its callers' deadlines are. Default 10 s.
	Timeout time.Duration
	// Patience is how long the items of one call that have their outcomes wait for those that take longer. Default 1 s.
	Patience time.Duration
	// Observe hears of each write of deliveries before the lane goes on: how many it had and how long it took. nil: nobody
	// does.
	Observe func(deliveries int, took time.Duration)
	// Tracer makes a span of each batch of which a caller has one. nil: there are none, and nothing is looked for.
	Tracer trace.Tracer
	// Logger hears of panics in the store. Default slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&c.Lanes, 1)
	def(&c.MaxItems, 256)
	def(&c.MaxBytes, 8<<20)
	def(&c.QueueItems, 8192)
	def(&c.QueueBytes, 128<<20)
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Patience <= 0 {
		c.Patience = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}
