package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/config"
)

// The exit codes. Scripts go by them, so a code keeps its meaning; a later version may give what is 1 now one of its own.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitRefused   = 3
	exitNotFound  = 4
	exitLeaseLost = 5
	exitRetry     = 6
	exitBroken    = 7
)

const exitHelp = `Exit codes, which later versions keep:
  0  done
  1  failed, for a reason that is not below
  2  wrong usage; nothing was tried
  3  the service refuses what it was sent, and always will
  4  not found: no such job, or it has no payload
  5  the lease is lost; stop the work
  6  may be tried again, with the same --request-id if the command has one: the service cannot be
     reached, is overloaded, or does not know whether it was written; then requeue --state, tried again,
     requeues others: see --dry-run first
  7  serve ended because of its embedded store, which a restart may mend
A command that a signal ends dies by it.`

// usageError is a call that was wrong before anything was tried.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// codedError is a failure of our own that has an exit code of its own.
type codedError struct {
	error
	code int
}

// hintedError is an error with what a person at a terminal can do about it.
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Error() string { return e.error.Error() + "; " + e.hint }

func (e *hintedError) Unwrap() error { return e.error }

// exitCode is the exit code of a command that ended with err.
func exitCode(err error) int {
	var coded *codedError
	var failed *client.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(*usageError)):
		return exitUsage
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, client.ErrInvalidField), errors.Is(err, client.ErrPayloadTooLarge), errors.Is(err, client.ErrWrongState):
		return exitRefused
	case errors.Is(err, client.ErrJobNotFound), errors.Is(err, client.ErrExpectationNotFound):
		return exitNotFound
	case errors.Is(err, client.ErrLeaseLost):
		return exitLeaseLost
	case errors.As(err, &failed) && retryable(failed):
		return exitRetry
	}
	return exitFailed
}

// retryable tells whether the same call may succeed later, as README.md says.
func retryable(e *client.Error) bool {
	switch {
	case errors.Is(e, client.ErrOverloaded), errors.Is(e, client.ErrRateLimited), errors.Is(e, client.ErrStoreUnavailable):
		return true
	case e.ReasonText == "OUTCOME_UNKNOWN":
		return true
	}
	return e.ReasonText == "" && (e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded || e.Code == codes.Canceled)
}

// jsonFailure is what -o json prints of an error, under the key "error". A field that says nothing is left out.
type jsonFailure struct {
	Code           string      `json:"code,omitempty"`   // Of gRPC, such as NOT_FOUND; only of a call.
	Reason         string      `json:"reason,omitempty"` // Of the service, such as JOB_NOT_FOUND.
	Message        string      `json:"message"`
	Hint           string      `json:"hint,omitempty"`
	Field          string      `json:"field,omitempty"`
	RequestID      string      `json:"requestId,omitempty"`
	OutcomeUnknown bool        `json:"outcomeUnknown,omitempty"` // It may have been written.
	RetrySeconds   float64     `json:"retrySeconds,omitempty"`   // How long the service asks to wait.
	Leases         []jsonGrant `json:"leases,omitempty"`         // What an answer held that could not be written.
	ExitCode       int         `json:"exitCode"`
}

type jsonGrant struct {
	JobID      string `json:"jobId"`
	LeaseToken string `json:"leaseToken"`
	Generation int64  `json:"generation"`
}

// reportFailure says on stderr why the command failed, in a line.
func reportFailure(stderr io.Writer, cmd *cobra.Command, args []string, err error) {
	if errors.As(err, new(*usageError)) {
		err = &hintedError{err, fmt.Sprintf("see '%s --help'", cmd.CommandPath())}
	}
	if !wantsJSON(cmd, args) {
		fmt.Fprintln(stderr, oneLine(err.Error()))
		return
	}
	f := jsonFailure{ExitCode: exitCode(err)}
	var hinted *hintedError
	if errors.As(err, &hinted) {
		f.Hint, err = hinted.hint, hinted.error
	}
	f.Message = oneLine(err.Error())
	var failed *client.Error
	var unwritten *unwrittenError
	switch {
	case errors.As(err, &failed):
		f.Code, f.Reason, f.Message, f.Field = code.Code(failed.Code).String(), failed.ReasonText, failed.Message, failed.Field
		f.RequestID, f.OutcomeUnknown, f.RetrySeconds = failed.RequestID, failed.OutcomeUnknown, failed.RetryDelay.Seconds()
	case errors.As(err, &unwritten):
		f.Message, f.Hint, f.RequestID = unwritten.message(), unwritten.hint(), unwritten.requestID
		for _, g := range unwritten.leases {
			f.Leases = append(f.Leases, jsonGrant{g.jobID, g.lease.GetToken(), g.lease.GetGeneration()})
		}
	}
	_ = json.NewEncoder(stderr).Encode(map[string]jsonFailure{"error": f})
}

// wantsJSON tells whether the command was to print JSON, also when it failed over its flags.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	if output := cmd.Flags().Lookup("output"); output != nil && output.Changed {
		return output.Value.String() == outputJSON
	}
	lenient := pflag.NewFlagSet("", pflag.ContinueOnError)
	lenient.ParseErrorsAllowlist.UnknownFlags = true
	lenient.Usage = func() {}
	output := lenient.StringP("output", "o", os.Getenv(config.EnvName("output")), "")
	_ = lenient.Parse(args)
	return strings.EqualFold(*output, outputJSON)
}

// oneLine keeps an error to one line, whatever it was joined from.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
