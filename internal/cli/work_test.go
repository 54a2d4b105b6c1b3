package cli

import (
	"strconv"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
)

func TestWrongUsageOfWork(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"work nonsense", `unknown command "nonsense"; see 'jobonce work --help'`},
		{"work complet", `unknown command "complet", did you mean "complete"?; see 'jobonce work --help'`},
		{"work complet j --lease-token t", `unknown command "complet", did you mean "complete"?; see 'jobonce work --help'`},
		{"work nonsense -x", `unknown command "nonsense"; see 'jobonce work --help'`},
		{"work claim x", `unexpected argument "x"; see 'jobonce work claim --help'`},
		{"work claim --max-jobs many", `invalid argument "many" for "--max-jobs" flag: `},
		{"work renew", `needs one argument, the JOB_ID, and got 0; see 'jobonce work renew --help'`},
		{"work complete a b", `needs one argument, the JOB_ID, and got 2; see 'jobonce work complete --help'`},
		{"work release a --delay soon", `invalid argument "soon" for "--delay" flag: `},
	} {
		code, stdout, stderr := run(strings.Fields(tc.args)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.want) {
			t.Errorf("jobonce %s: exit code %d, standard output %q, standard error %q; want %q", tc.args, code, stdout, stderr, tc.want)
		}
	}
	for _, args := range []string{"work", "work --help", "help work"} {
		if code, stdout, stderr := run(strings.Fields(args)...); code != 0 || stderr != "" || !strings.Contains(stdout, "jobonce work claim --lease 5m") {
			t.Errorf("jobonce %s: exit code %d, standard error %q, standard output:\n%s", args, code, stderr, stdout)
		}
	}
}

// TestWorkFlags holds the flags to the defaults and limits of what they set.
func TestWorkFlags(t *testing.T) {
	claim, renew := newWorkClaim().Flags(), newWorkRenew().Flags()
	if got := claim.Lookup("lease").DefValue; got != client.DefaultLease.String() || renew.Lookup("lease").DefValue != got {
		t.Errorf("--lease is %s and %s by default, want %v", got, renew.Lookup("lease").DefValue, client.DefaultLease)
	}
	if usage := claim.Lookup("max-jobs").Usage; !strings.Contains(usage, strconv.Itoa(job.MaxClaimJobs)) {
		t.Errorf("--max-jobs: %s", usage)
	}
}
