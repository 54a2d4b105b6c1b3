package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// The values that [Config] fields get when they are zero.
const (
	DefaultMaxCallTime     = 30 * time.Second
	DefaultShutdownTimeout = 15 * time.Second
	DefaultHealthInterval  = time.Second
	DefaultSlowCall        = time.Second
	DefaultMaxCalls        = 16384
	DefaultMaxCallBytes    = 128 << 20
	DefaultMaxAnswerBytes  = 128 << 20
	DefaultMaxConnections  = 4096
	DefaultReceiveTimeout  = 30 * time.Second
	// DefaultMaxConnectionAge is how soon an instance that is new gets its share of long-lived connections.
	DefaultMaxConnectionAge = 5 * time.Minute
)

// Config is what the server is made with. The zero value is ready for use. Operators set MaxBodyBytes, MaxConnections,
// MaxConnectionAge and LogCalls, by the flags of `jobonce serve`; the other bounds are for tests, and fixed in the service.
type Config struct {
	// MaxBodyBytes is the limit of a webhook's body. 0: job.DefaultMaxBodyBytes; at most job.MaxBodyBytes.
	MaxBodyBytes int
	// MaxCalls bounds the calls that are under way, those that wait for work among them. More are refused with
	// OVERLOADED. 0: DefaultMaxCalls.
	MaxCalls int
	// MaxCallBytes bounds the requests of all calls under way together. Each counts for 64 KiB until it has arrived. More are
	// refused with OVERLOADED. 0: DefaultMaxCallBytes.
	MaxCallBytes int64
	// MaxAnswerBytes bounds the answers of 64 KiB or more that have not been sent, all together. GetJob is refused with
	// OVERLOADED where there is no room for its answer. 0: DefaultMaxAnswerBytes.
	MaxAnswerBytes int64
	// MaxConnections bounds the connections. More are closed at once. 0: DefaultMaxConnections.
	MaxConnections int
	// MaxConnectionAge is how long a connection is used, give or take a tenth at random: then the client is asked to make a new
	// one, and looks its name up again. 0: DefaultMaxConnectionAge.
	MaxConnectionAge time.Duration
	// ReceiveTimeout is how long a request may take to arrive. 0: DefaultReceiveTimeout.
	ReceiveTimeout time.Duration
	// MaxCallTime cuts the deadline of calls that come with none or with a later one, from when their request is there.
	// 0: DefaultMaxCallTime.
	MaxCallTime time.Duration
	// ShutdownTimeout is how long calls under way may go on once the server is to stop. 0: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// HealthInterval is how often the store is asked whether it can serve. 0: DefaultHealthInterval.
	HealthInterval time.Duration
	// StoreReady is closed when the store has become ready, which is then asked at once. nil: it is asked at intervals alone.
	StoreReady <-chan struct{}
	// LogCalls logs every call, which about doubles what a call costs, instead of only failed and slow ones.
	LogCalls bool
	// SlowCall is the time from which on a call is logged as slow. 0: DefaultSlowCall.
	SlowCall time.Duration
	// DueAlert is how long work may be due before that is an ERROR line, once a minute. 0: it never is.
	DueAlert time.Duration
	// Logger takes the server's log. Payloads are never written to it. nil: slog.Default().
	Logger *slog.Logger
	// Certificates secure the connections. nil: plaintext.
	Certificates *auth.Certificates
	// Callers are those who may call, and what. nil: everybody may do everything.
	Callers *auth.Authority
	// UnaryInterceptors and StreamInterceptors go around all that the server does with a call, the first one outermost.
	// They see malformed requests and panics as the errors that the caller gets.
	UnaryInterceptors  []grpc.UnaryServerInterceptor
	StreamInterceptors []grpc.StreamServerInterceptor
	// StatsHandler hears of every call and connection, outside of the interceptors, as tracing does. nil: nobody does.
	StatsHandler stats.Handler
	// Observer hears what became of each delivery, and of calls about work. nil: nobody does.
	Observer Observer
}

// Observer is told of each delivery of a RecordDelivery or BatchRecordDeliveries call, and of each call of WorkService, that
// reached its handler, and of calls that waited or were refused before. It is told from many goroutines at once.
type Observer interface {
	// Recorded is told the verdict on a delivery that was recorded.
	Recorded(v job.Verdict)
	// Failed is told the reason, without its prefix, why a delivery got an error instead.
	Failed(reason string)
	// Unread is told "event" or "status" when a well-formed delivery has none because the one in its body could not be
	// taken, before it is recorded.
	Unread(field string)
	// Waited is told how long a call was in line before its request was received, or it was refused. Calls that need not
	// wait do not count.
	Waited(took time.Duration)
	// Refused is told the reason, without its prefix, why a call did not come to its handler: "GRPC" when grpc-go has ended
	// it, as when its message was malformed.
	Refused(reason string)
	// Work is told the method of a call of WorkService, such as "ClaimWork", and how many jobs it leased or changed; or the
	// reason, without its prefix, why it got an error, which is empty otherwise.
	Work(method string, jobs int, reason string)
	// GivenUp is told of a webhook that never came and is waited for no longer.
	GivenUp()
}

// nobody is the observer when there is none.
type nobody struct{}

func (nobody) Recorded(job.Verdict) {}
func (nobody) Failed(string)        {}
func (nobody) Unread(string)        {}
func (nobody) Waited(time.Duration) {}
func (nobody) Refused(string)       {}
func (nobody) GivenUp()             {}

func (nobody) Work(string, int, string) {}

// withDefaults checks the configuration and returns a copy without zero values.
func (c Config) withDefaults() (Config, error) {
	if c.MaxBodyBytes < 0 || c.MaxBodyBytes > job.MaxBodyBytes {
		return c, fmt.Errorf("server: MaxBodyBytes is %d, it must be 1 to %d", c.MaxBodyBytes, job.MaxBodyBytes)
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = job.DefaultMaxBodyBytes
	}
	if c.DueAlert < 0 {
		return c, fmt.Errorf("server: DueAlert is %v, it must not be negative", c.DueAlert)
	}
	if c.MaxCalls < 0 || c.MaxCallBytes < 0 || c.MaxAnswerBytes < 0 || c.MaxConnections < 0 {
		return c, errors.New("server: MaxCalls, MaxCallBytes, MaxAnswerBytes and MaxConnections must not be negative")
	}
	c.MaxCalls = cmp.Or(c.MaxCalls, DefaultMaxCalls)
	c.MaxCallBytes = cmp.Or(c.MaxCallBytes, int64(DefaultMaxCallBytes))
	c.MaxAnswerBytes = cmp.Or(c.MaxAnswerBytes, int64(DefaultMaxAnswerBytes))
	c.MaxConnections = cmp.Or(c.MaxConnections, DefaultMaxConnections)
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"MaxConnectionAge", &c.MaxConnectionAge, DefaultMaxConnectionAge},
		{"ReceiveTimeout", &c.ReceiveTimeout, DefaultReceiveTimeout},
		{"MaxCallTime", &c.MaxCallTime, DefaultMaxCallTime},
		{"ShutdownTimeout", &c.ShutdownTimeout, DefaultShutdownTimeout},
		{"HealthInterval", &c.HealthInterval, DefaultHealthInterval},
		{"SlowCall", &c.SlowCall, DefaultSlowCall},
	} {
		if *f.value < 0 {
			return c, fmt.Errorf("server: %s is %v, it must not be negative", f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	return c, nil
}
