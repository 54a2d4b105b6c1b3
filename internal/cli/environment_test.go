package cli

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
)

// ofOneCall are the flags that say what one call is about. In the environment they would make every call the same one.
var ofOneCall = []string{
	"job-id", "event", "status", "payload", "opaque-payload", "request-id", "lease-token", "result", "error", "dead",
}

// TestOneCallsFlagsAreNotInTheEnvironment sets them there, and wants requests as if they were not set.
func TestOneCallsFlagsAreNotInTheEnvironment(t *testing.T) {
	for _, name := range ofOneCall {
		t.Setenv(config.EnvName(name), "true")
	}
	f := &fakeService{answer: func() (*joboncev1.RecordDeliveryResponse, error) { return &joboncev1.RecordDeliveryResponse{}, nil }}
	addr := f.serve(t)
	ids := make(map[string]bool)
	for range 2 {
		code, _, stderr := run("record", "--server", addr, "--job-id", "j")
		if code != 0 {
			t.Fatal(stderr)
		}
		ids[f.request.GetRequestId()] = true
		f.request.RequestId = ""
		want := &joboncev1.RecordDeliveryRequest{JobId: "j", WorkMode: joboncev1.WorkMode_WORK_MODE_UNTRACKED}
		if !proto.Equal(f.request, want) {
			t.Errorf("sent %v, want %v", f.request, want)
		}
		if want := "warning: JOBONCE_REQUEST_ID is not read: --request-id is of one call, and is for the command line alone\n"; !strings.Contains(stderr, want) {
			t.Errorf("standard error is %q", stderr)
		}
	}
	if len(ids) != 2 {
		t.Errorf("two calls have the request ids %v", ids)
	}
	// The others have no service here that keeps their requests: it is looked at the flags.
	eachCommand(func(cmd *cobra.Command, line []string) {
		if line[0] != "work" {
			return
		}
		cmd.Run, cmd.RunE = func(cmd *cobra.Command, _ []string) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Changed && f.Name != "event" { // of several claims, of which jobs they want
					t.Errorf("%v: --%s is set", line, f.Name)
				}
			})
		}, nil
		root := cmd.Root()
		root.SetArgs(line)
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil {
			t.Errorf("%v: %v", line, err)
		}
	})
}

func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	for name, want := range map[string]string{
		"JOBONCE_SERVRE":      "JOBONCE_SERVRE is set, and is not read; did you mean JOBONCE_SERVER?",
		"JOBONCE_DATADIR":     "JOBONCE_DATADIR is set, and is not read; did you mean JOBONCE_DATA_DIR?",
		"JOBONCE_NONSENSE":    "JOBONCE_NONSENSE is set, and is not read",
		"JOBONCE_LEASE_TOKEN": "JOBONCE_LEASE_TOKEN is not read: --lease-token is of one call, and is for the command line alone",
		"JOBONCE_":            "JOBONCE_ is set, and is not read",

		// Of another command, of the tests, and of others.
		"JOBONCE_DATA_DIR": "", "JOBONCE_MAX_JOBS": "", "JOBONCE_TEST_CACHE": "", "SERVRE": "", "MYJOBONCE_SERVRE": "",
		// What Kubernetes sets for each port of the services jobonce, jobonce-server and jobonce-test.
		"JOBONCE_SERVICE_HOST": "", "JOBONCE_SERVICE_PORT": "", "JOBONCE_SERVICE_PORT_GRPC": "", "JOBONCE_PORT": "",
		"JOBONCE_PORT_50051_TCP": "", "JOBONCE_PORT_50051_TCP_PROTO": "", "JOBONCE_PORT_50051_TCP_PORT": "",
		"JOBONCE_PORT_50051_TCP_ADDR": "", "JOBONCE_PORT_53_UDP_ADDR": "", "JOBONCE_SERVER_PORT_50051_TCP": "",
		"JOBONCE_SERVER_SERVICE_HOST": "", "JOBONCE_SERVER_PORT": "", "JOBONCE_SERVER_SERVICE_PORT_HTTP_METRICS": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "x")
			code, _, stderr := run("version")
			if want != "" {
				want = "warning: " + want + "\n"
			}
			if code != 0 || stderr != want {
				t.Errorf("exit code %d, standard error %q, want %q", code, stderr, want)
			}
		})
	}
}

// TestWarningsAreWrittenLikeTheRest: as JSON where the output or the log is.
func TestWarningsAreWrittenLikeTheRest(t *testing.T) {
	t.Setenv("JOBONCE_SERVRE", "x")
	for line, key := range map[string]string{
		"version -o json": "warning",
		"serve --listen 127.0.0.1:0 --data-dir /dev/null/x --log-format json": "msg",
	} {
		_, _, stderr := run(strings.Fields(line)...)
		first, _, _ := strings.Cut(stderr, "\n")
		var got map[string]string
		if err := json.Unmarshal([]byte(first), &got); err != nil || !strings.HasPrefix(got[key], "JOBONCE_SERVRE is set, ") {
			t.Errorf("%s: %s (%v)", line, stderr, err)
		}
	}
}

// eachCommand visits all commands, with arguments that fit.
func eachCommand(visit func(cmd *cobra.Command, line []string)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() {
			return
		}
		line := strings.Fields(cmd.CommandPath())[1:]
		for _, word := range strings.Fields(cmd.Use)[1:] {
			if !strings.HasPrefix(word, "[") {
				line = append(line, "x")
			}
		}
		visit(cmd, line)
	}
	walk(newRoot())
}

// TestEmptyValuesAreRefused gives each flag of each command an empty value, on the command line and in the environment.
// An empty one means something only where the help says what.
func TestEmptyValuesAreRefused(t *testing.T) {
	flags := 0
	eachCommand(func(cmd *cobra.Command, line []string) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			flags++
			if strings.Contains(strings.ReplaceAll(f.Usage, "\n", " "), "empty is ") {
				return
			}
			code, stdout, stderr := run(append(line, "--"+f.Name+"=")...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, "--"+f.Name) {
				t.Errorf("%v --%s=: exit code %d, standard output %q, standard error %q", line, f.Name, code, stdout, stderr)
			}
			if config.IsCommandLineAlone(f) {
				return
			}
			for _, name := range config.EnvNames(f.Name) {
				t.Run(name, func(t *testing.T) {
					t.Setenv(name, "")
					code, stdout, stderr := run(line...)
					if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, name+" is set, and empty; ") {
						t.Errorf("%s= %v: exit code %d, standard output %q, standard error %q", name, line, code, stdout, stderr)
					}
				})
			}
		})
	})
	if flags < 50 {
		t.Errorf("only %d flags were tried", flags)
	}
}

// TestEmptyArgumentsAreRefused is the same for arguments that are no flags.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	for _, line := range []string{"get", "work renew", "work complete", "work release", "backup", "check"} {
		code, stdout, stderr := run(append(strings.Fields(line), "")...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, " is empty; see 'jobonce "+line) {
			t.Errorf("jobonce %s '': exit code %d, standard output %q, standard error %q", line, code, stdout, stderr)
		}
	}
}
