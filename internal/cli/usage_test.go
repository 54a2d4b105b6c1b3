package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

// run runs a command in this process.
func run(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

func TestWrongUsage(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"serv", `unknown command "serv", did you mean "serve"?; see 'jobonce --help'`},
		{"nonsense", `unknown command "nonsense"; see 'jobonce --help'`},
		{"recrod --job-id x", `unknown command "recrod", did you mean "record"?; see 'jobonce --help'`},
		{"recrod -x json --payload x", `unknown command "recrod", did you mean "record"?; see 'jobonce --help'`},
		{"recrod --help", `unknown command "recrod", did you mean "record"?; see 'jobonce --help'`},
		{"work renwe -h", `unknown command "renwe", did you mean "renew"?; see 'jobonce work --help'`},
		{"nonsense --server=x", `unknown command "nonsense"; see 'jobonce --help'`},
		{"help nonsense", `unknown command "nonsense"; see 'jobonce help --help'`},
		{"--nonsense", `unknown flag: --nonsense; see 'jobonce --help'`},
		{"record --job x", `unknown flag: --job; see 'jobonce record --help'`},
		{"record --job-id", `flag needs an argument: --job-id; see 'jobonce record --help'`},
		{"record x", `unexpected argument "x"; see 'jobonce record --help'`},
		{"record --work-mode lazy", `must be one of untracked, leased, queued; see 'jobonce record --help'`},
		{"record --lease soon", `invalid argument "soon" for "--lease" flag: `},
		{"get", `needs one argument, the JOB_ID, and got 0; see 'jobonce get --help'`},
		{"get a b", `needs one argument, the JOB_ID, and got 2; see 'jobonce get --help'`},
		{"get a -o xml", `must be one of text, json; see 'jobonce get --help'`},
		{"get a --view all", `must be one of basic, full; see 'jobonce get --help'`},
		{"get a --timeout 0s", `--timeout must be above zero; see 'jobonce get --help'`},
		{"get a --cert c.pem", `--cert and --key go together; see 'jobonce get --help'`},
		{"get a --tls=false --ca-cert c.pem", `--tls=false excludes --ca-cert, --cert and --key; see 'jobonce get --help'`},
		{"serve --max-connection-age 0s", `--max-connection-age must be at least 1s; see 'jobonce serve --help'`},
		{"serve x", `unexpected argument "x"; see 'jobonce serve --help'`},
		{"serve --max-payload-bytes 3145729", `must be a whole number from 1 to 3145728; see 'jobonce serve --help'`},
		{"serve --max-payload-bytes 0", `must be a whole number from 1 to 3145728; see 'jobonce serve --help'`},
		{"serve --log-level loud", `must be one of debug, info, warn, error; see 'jobonce serve --help'`},
		{"copy --timeout 0s", `--timeout must be above zero; see 'jobonce copy --help'`},
		{"version x", `unexpected argument "x"; see 'jobonce version --help'`},
	} {
		code, stdout, stderr := run(strings.Fields(tc.args)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.want) {
			t.Errorf("jobonce %s: exit code %d, standard output %q, standard error %q; want %q", tc.args, code, stdout, stderr, tc.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"", `(?m)^  jobonce record --job-id job_demo `},
		{"--help", `^JobOnce answers one question`},
		{"help version", `-o, --output text\|json`},
		{"serve --help", `--data-dir directory +directory of the embedded store \(default "./jobonce-data"\)`},
		{"record --help", `--work-mode untracked\|leased\|queued +who does the work \(default untracked\)`},
		{"get --help", `--payload-only`},
		{"get --help", `For what the exit codes mean: jobonce --help\n$`},
		{"work renew --help", `For what the exit codes mean: jobonce --help\n$`},
		{"get --help --timeout 1s", `--payload-only`},
	} {
		code, stdout, stderr := run(strings.Fields(tc.args)...)
		if code != 0 || stderr != "" || !regexp.MustCompile(tc.want).MatchString(stdout) {
			t.Errorf("jobonce %s: exit code %d, standard error %q, standard output:\n%s", tc.args, code, stderr, stdout)
		}
	}
}
