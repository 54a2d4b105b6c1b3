package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// failing is a service that answers every call with the same error.
type failing struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	joboncev1.UnimplementedWorkServiceServer
	joboncev1.UnimplementedAdminServiceServer
}

// serveFailure returns the address of a service that answers each call with the error. Without a reason there are no details.
func serveFailure(t *testing.T, code codes.Code, reason, message string, more ...protoadapt.MessageV1) string {
	t.Helper()
	st := status.New(code, message)
	if reason != "" {
		var err error
		if st, err = st.WithDetails(append(more, &errdetails.ErrorInfo{Domain: "jobonce", Reason: reason})...); err != nil {
			t.Fatal(err)
		}
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, st.Err()
	}))
	joboncev1.RegisterIdempotencyServiceServer(srv, failing{})
	joboncev1.RegisterWorkServiceServer(srv, failing{})
	joboncev1.RegisterAdminServiceServer(srv, failing{})
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

// TestExitCodes gives each reason that there is to a command. A new reason must be decided on here.
func TestExitCodes(t *testing.T) {
	want := map[string]struct {
		code codes.Code
		exit int
	}{
		"INVALID_FIELD":         {codes.InvalidArgument, 3},
		"PAYLOAD_TOO_LARGE":     {codes.InvalidArgument, 3},
		"WRONG_STATE":           {codes.FailedPrecondition, 3},
		"JOB_NOT_FOUND":         {codes.NotFound, 4},
		"EXPECTATION_NOT_FOUND": {codes.NotFound, 4},
		"LEASE_LOST":            {codes.Aborted, 5},
		"OVERLOADED":            {codes.ResourceExhausted, 6},
		"RATE_LIMITED":          {codes.ResourceExhausted, 6},
		"STORE_UNAVAILABLE":     {codes.Unavailable, 6},
		"OUTCOME_UNKNOWN":       {codes.DeadlineExceeded, 6},
		"UNAUTHENTICATED":       {codes.Unauthenticated, 1},
		"PERMISSION_DENIED":     {codes.PermissionDenied, 1},
		"INTERNAL":              {codes.Internal, 1},
		"UNIMPLEMENTED":         {codes.Unimplemented, 1},
		"RECORD_UNUSABLE":       {codes.FailedPrecondition, 1},
	}
	for number, name := range joboncev1.ErrorReason_name {
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		w, decided := want[reason]
		if number == 0 || !decided {
			if number != 0 {
				t.Errorf("no exit code is decided on for %s", reason)
			}
			continue
		}
		addr := serveFailure(t, w.code, reason, "because")
		for _, line := range []string{"get j", "work renew j --lease-token t"} {
			code, stdout, stderr := run(append(strings.Fields(line), "--server", addr, "--timeout", "200ms")...)
			if code != w.exit || stdout != "" || !strings.Contains(stderr, reason+": because") {
				t.Errorf("%s for %s: exit code %d, want %d; standard error %q", line, reason, code, w.exit, stderr)
			}
		}
	}
	// What has no reason comes from the connection, or from something in between.
	for code, exit := range map[codes.Code]int{
		codes.Unavailable: 6, codes.DeadlineExceeded: 6, codes.Canceled: 6, codes.Unknown: 1, codes.Internal: 1, codes.NotFound: 1,
		codes.ResourceExhausted: 1, codes.Unimplemented: 1,
	} {
		if got, _, stderr := run("get", "j", "--timeout", "200ms", "--server", serveFailure(t, code, "", "")); got != exit {
			t.Errorf("%v: exit code %d, want %d; standard error %q", code, got, exit, stderr)
		}
	}
}

// TestExitCodesAreTold holds the help and the README to the codes that there are.
func TestExitCodesAreTold(t *testing.T) {
	_, help, _ := run("--help")
	readme, err := os.ReadFile("../../README.md")
	testenv.Must(t, err)
	for code, word := range map[int]string{
		exitOK: "done", exitFailed: "failed", exitUsage: "wrong usage", exitRefused: "refuses", exitNotFound: "not found",
		exitLeaseLost: "lease is lost", exitRetry: "again",
	} {
		if line := fmt.Sprintf("\n  %d  ", code); !strings.Contains(help, line) || !strings.Contains(strings.SplitN(help, line, 2)[1], word) {
			t.Errorf("the help does not tell of exit code %d", code)
		}
		if row := fmt.Sprintf("\n| %d | ", code); !strings.Contains(string(readme), row) || !strings.Contains(strings.SplitN(string(readme), row, 2)[1], word) {
			t.Errorf("README.md does not tell of exit code %d", code)
		}
	}
}

// TestHintsAgreeWithTheReadme: what is not to be retried has no hint to repeat it, and what may be done is told by what it is.
func TestHintsAgreeWithTheReadme(t *testing.T) {
	const record, claim, renew = "record --job-id j --request-id R", "work claim --request-id R", "work renew j --lease-token t"
	for _, tc := range []struct {
		code               codes.Code
		reason, line, want string
	}{
		{codes.Unavailable, "OUTCOME_UNKNOWN", record, "; it may be recorded: repeat it with --request-id R"},
		{codes.Unavailable, "OUTCOME_UNKNOWN", claim, "; jobs may be leased to this call: repeat it with --request-id R"},
		{codes.Unavailable, "OUTCOME_UNKNOWN", renew, "; the lease may be renewed: repeat it as it is"},
		{codes.Unavailable, "OUTCOME_UNKNOWN", "work complete j --lease-token t", "; the work may be completed: repeat it as it is"},
		{codes.Unavailable, "OUTCOME_UNKNOWN", "work release j --lease-token t", "; the work may be released: repeat it as it is"},
		{codes.Internal, "INTERNAL", record, "; it may be recorded all the same"},
		{codes.Internal, "INTERNAL", claim, "; jobs may be leased to this call all the same"},
		{codes.Internal, "INTERNAL", renew, "; the lease may be renewed all the same"},
		{codes.Internal, "INTERNAL", "get j", ""},
		{codes.Unavailable, "STORE_UNAVAILABLE", record, ""},
		{codes.ResourceExhausted, "OVERLOADED", claim, ""},
	} {
		_, _, stderr := run(append(strings.Fields(tc.line), "--server", serveFailure(t, tc.code, tc.reason, "because"))...)
		if want := ": because" + tc.want + "\n"; !strings.HasSuffix(stderr, want) {
			t.Errorf("%s, %s: %q, want %q", tc.reason, tc.line, stderr, want)
		}
	}
}

// TestInterruptedClaimTellsWhatMayBe: a call that Ctrl-C ended is of the kind that it is.
func TestInterruptedClaimTellsWhatMayBe(t *testing.T) {
	for line, want := range map[string]string{
		"work claim --request-id R":                "; jobs may be leased to this call: repeat it with --request-id R",
		"work complete j --lease-token t":          "; the work may be completed: repeat it as it is",
		"record --job-id j --request-id R":         "; it may be recorded: repeat it with --request-id R",
		"record --job-id j --request-id R -o json": "it may be recorded: repeat it with --request-id R",
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Must(t, err)
		srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			interrupt()
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		joboncev1.RegisterIdempotencyServiceServer(srv, failing{})
		joboncev1.RegisterWorkServiceServer(srv, failing{})
		go func() { _ = srv.Serve(lis) }()
		var stderr strings.Builder
		_, err = execute(ctx, append(strings.Fields(line), "--server", lis.Addr().String()), strings.NewReader(""), &stderr, &stderr)
		if !errors.Is(err, context.Canceled) || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: %v, %q", line, err, &stderr)
		}
		srv.Stop()
		interrupt()
	}
}

// TestFailuresAsJSON reads what -o json says of failures: one object, and nothing else.
func TestFailuresAsJSON(t *testing.T) {
	overloaded := serveFailure(t, codes.ResourceExhausted, "OVERLOADED", "later", &errdetails.RetryInfo{RetryDelay: durationpb.New(1500e6)})
	invalid := serveFailure(t, codes.InvalidArgument, "INVALID_FIELD", "lease_duration is too short",
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "lease_duration"}}})
	unknown := serveFailure(t, codes.Unavailable, "OUTCOME_UNKNOWN", "who knows")
	t.Setenv("JOBONCE_CONFIG", writeFile(t, "f.yaml", []byte("client: {timeout: 2s}")))
	for _, tc := range []struct {
		line string
		want jsonFailure
	}{
		{"record --job-id j --request-id R -o json --server " + overloaded, jsonFailure{Code: "RESOURCE_EXHAUSTED", Reason: "OVERLOADED",
			Message: "later", RequestID: "R", RetrySeconds: 1.5, ExitCode: 6}},
		{"work claim --request-id R --output=json --server " + invalid, jsonFailure{Code: "INVALID_ARGUMENT", Reason: "INVALID_FIELD",
			Message: "lease_duration is too short", Field: "lease_duration", Hint: "the flag is --lease", RequestID: "R", ExitCode: 3}},
		{"work renew j --lease-token t -o json --server " + unknown, jsonFailure{Code: "UNAVAILABLE", Reason: "OUTCOME_UNKNOWN",
			Message: "who knows", Hint: "the lease may be renewed: repeat it as it is", OutcomeUnknown: true, ExitCode: 6}},
		{"requeue --state dead --max 10 -o json --server " + unknown, jsonFailure{Code: "UNAVAILABLE", Reason: "OUTCOME_UNKNOWN", Message: "who knows",
			Hint: "0 jobs requeued, and up to 10 more may be: --dry-run says what is left", OutcomeUnknown: true, ExitCode: 6}},
		{"get j -o json --token-file missing", jsonFailure{Message: "cannot read the token: open missing: no such file or directory", ExitCode: 1}},
		{"get -o json", jsonFailure{Message: "needs one argument, the JOB_ID, and got 0", Hint: "see 'jobonce get --help'", ExitCode: 2}},
		{"get j --nonsense -o json", jsonFailure{Message: "unknown flag: --nonsense", Hint: "see 'jobonce get --help'", ExitCode: 2}},
		{"recrod --job-id j -o json", jsonFailure{Message: `unknown command "recrod", did you mean "record"?`, Hint: "see 'jobonce --help'", ExitCode: 2}},
		{"get j -ojson --server=", jsonFailure{Message: "--server is empty; give it a value, or leave it out", Hint: "see 'jobonce get --help'", ExitCode: 2}},
		{"version x -o json", jsonFailure{Message: `unexpected argument "x"`, Hint: "see 'jobonce version --help'", ExitCode: 2}},
	} {
		code, stdout, stderr := run(strings.Fields(tc.line)...)
		dec := json.NewDecoder(strings.NewReader(stderr))
		dec.DisallowUnknownFields()
		var got struct{ Error jsonFailure }
		if err := dec.Decode(&got); err != nil || dec.More() {
			t.Errorf("%s: %q (%v)", tc.line, stderr, err)
		}
		if fmt.Sprint(got.Error) != fmt.Sprint(tc.want) || code != tc.want.ExitCode || stdout != "" {
			t.Errorf("%s: exit code %d, standard output %q\ngot  %+v\nwant %+v", tc.line, code, stdout, got.Error, tc.want)
		}
	}
	// From the environment, which the flags were not asked for yet.
	t.Setenv("JOBONCE_OUTPUT", "json")
	if _, _, stderr := run("get", "j", "--nonsense"); !strings.HasPrefix(stderr, `{"error":{"message":"unknown flag: --nonsense"`) {
		t.Errorf("standard error %q", stderr)
	}
	if _, _, stderr := run("get", "-o", "text"); strings.HasPrefix(stderr, "{") {
		t.Errorf("standard error %q", stderr)
	}
}

// TestUnwrittenAnswerAsJSON has the lease and the request id as fields.
func TestUnwrittenAnswerAsJSON(t *testing.T) {
	f := &fakeService{answer: func() (*joboncev1.RecordDeliveryResponse, error) {
		return &joboncev1.RecordDeliveryResponse{Job: &joboncev1.Job{JobId: "j"}, Lease: &joboncev1.Lease{Token: "T", Generation: 7}}, nil
	}}
	var stderr strings.Builder
	code := Main([]string{"record", "--server", f.serve(t), "--job-id", "j", "--request-id", "R", "-o", "json"}, nil, brokenWriter{}, &stderr)
	const want = `{"error":{"message":"the service has done it, but the answer could not be written: broken pipe",` +
		`"hint":"to get the answer again, repeat the call with --request-id R","requestId":"R",` +
		`"leases":[{"jobId":"j","leaseToken":"T","generation":7}],"exitCode":1}}` + "\n"
	if code != 1 || stderr.String() != want {
		t.Errorf("exit code %d\ngot  %swant %s", code, &stderr, want)
	}
}

// TestSecurityOnOneSideAlone: with TLS on one side alone the error looks as if nobody were there, so it names the flag.
func TestSecurityOnOneSideAlone(t *testing.T) {
	plain := serveFailure(t, codes.NotFound, "JOB_NOT_FOUND", "")
	_, port, err := net.SplitHostPort(plain)
	testenv.Must(t, err)
	// It is this machine too, but not by its name.
	other := net.JoinHostPort("0.0.0.0", port)
	want := "; is the service running, and ready, at " + other + "? This was over TLS, as is the default to another machine: for a service that has none, " +
		"add --tls=false; --ca-cert names the authorities to trust instead of the system's\n"
	if code, _, stderr := run("get", "j", "--server", other); code != exitRetry || !strings.HasSuffix(stderr, want) {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	if code, _, stderr := run("get", "j", "--server", other, "--tls=false"); code != exitNotFound {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
}

// TestNotReadyIsNotCalledAbsent: of several instances none is called that says NOT_SERVING, as one does whose store is away.
// They run, and the hint does not put that in question alone.
func TestNotReadyIsNotCalledAbsent(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	s, well := grpc.NewServer(), health.NewServer()
	well.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, well)
	go s.Serve(lis)
	t.Cleanup(s.Stop)
	several := lis.Addr().String() + "," + lis.Addr().String()
	code, _, stderr := run("get", "j", "--server", several)
	if code != exitRetry || !strings.Contains(stderr, "NOT_SERVING; is the service running, and ready, at "+several+"?") {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
}
