package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// exitSignalled plus a signal's number is what a shell makes of a process that died by it.
const exitSignalled = 128

// interruption is the cause of a context that a signal ended.
type interruption struct{ os.Signal }

func (i interruption) Error() string { return "ended by a signal: " + i.String() }

// watchSignals returns a context that the first SIGINT or SIGTERM ends, with an [interruption] as its cause. A second one
// kills the process. stop must be called at the end.
func watchSignals() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			cancel(interruption{s})
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() {
		cancel(nil)
		<-watched
	}
}

// dieAsAsked ends the process by the signal that ended ctx, if one did and if that is how it is to end; err is what became
// of the command. A shell goes on with its script after a command that ended by itself, whatever its exit code, so after
// Ctrl-C nothing else will do. SIGTERM comes from a supervisor, which has no use for it: a command that ended well ended well.
func dieAsAsked(ctx context.Context, err error) {
	var asked interruption
	if !errors.As(context.Cause(ctx), &asked) {
		return
	}
	if asked.Signal != os.Interrupt && !errors.Is(err, context.Canceled) {
		return
	}
	signal.Reset(asked.Signal)
	if self, err := os.FindProcess(os.Getpid()); err == nil && self.Signal(asked.Signal) == nil {
		time.Sleep(time.Second) // it is on its way
	}
	// Not reached, but where the signal cannot be sent or is ignored.
	number, _ := asked.Signal.(syscall.Signal)
	os.Exit(exitSignalled + int(number))
}

// outliveReaders has writing to a pipe that nobody reads fail like any other writing, instead of ending the process.
func outliveReaders() { signal.Ignore(syscall.SIGPIPE) }

// outliveTerminal is outliveReaders for a service, which also goes on when its terminal goes away.
func outliveTerminal() { signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP) }
