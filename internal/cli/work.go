package cli

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
)

func newWork() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "work",
		Short: "Claim the work of jobs, and say what became of it",
		Long: `Does by hand or in a script what a worker does: claims work that is due, keeps its lease, and completes it or gives it
back. The lease's token proves the holder.`,
		Example: `  jobonce work claim --lease 5m
  jobonce work renew job_demo --lease-token TOKEN --lease 5m
  jobonce work complete job_demo --lease-token TOKEN --result shipped
  jobonce work release job_demo --lease-token TOKEN --delay 30s --error 'the warehouse is closed'`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWorkClaim(), newWorkRenew(), newWorkComplete(), newWorkRelease())
	return cmd
}

func newWorkClaim() *cobra.Command {
	req := &joboncev1.ClaimWorkRequest{}
	var lease, wait time.Duration
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "Lease jobs whose work is due, and print them",
		Long: `Leases jobs whose work is due, oldest due first. The text output is one line of key=value pairs for each job, and nothing
when no work is due:

  job_id=job_demo lease_token=TOKEN generation=1767360000000 lease_expires=2026-01-02T13:20:00.000Z attempts=1

event, status, and the error of the last attempt follow where there are any. A value with spaces, quotes or unprintable
characters in it is quoted. Pairs may be added in later versions. The payload comes with -o json, which prints one object
a line, and from 'jobonce get JOB_ID --payload-only'.`,
		Example: `  jobonce work claim --wait 1m
  jobonce work claim --prefix shop: --lease 5m
  jobonce work claim --max-jobs 10 --lease 5m --event job.completed --event job.failed -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.LeaseDuration, req.Wait = durationpb.New(lease), durationpb.New(wait)
			// The wait is no time of trying.
			conn.timeout += max(0, wait)
			if req.GetRequestId() == "" {
				req.RequestId = rand.Text() // for when the answer cannot be written
			}
			var resp *joboncev1.ClaimWorkResponse
			err := conn.change(cmd.Context(), "jobs may be leased to this call", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.ClaimWork(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			var text strings.Builder
			kept := unwrittenError{requestID: req.GetRequestId()}
			for _, claimed := range resp.GetJobs() {
				text.WriteString(claimedLine(claimed) + "\n")
				kept.leases = append(kept.leases, grant{claimed.GetJob().GetJobId(), claimed.GetLease()})
			}
			answer, err := answerOf(conn.output.Value, text.String(), resp.GetJobs()...)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, kept)
		},
	}
	flags := cmd.Flags()
	flags.Int32Var(&req.MaxJobs, "max-jobs", 1, "how many jobs at most: 1 to 100")
	leaseFlag(flags, &lease)
	flags.StringArrayVar(&req.Events, "event", nil, "claim only jobs with this `event`; may be given several times")
	flags.StringVar(&req.JobIdPrefix, "prefix", "", "claim only jobs whose id begins with this `text`, which ends in a colon")
	flags.DurationVar(&wait, "wait", 0, "how long to wait for work when none is due: up to 1m; comes on top of --timeout")
	flags.StringVar(&req.WorkerId, "worker-id", "", "`name` of the worker, for the service's log")
	flags.StringVar(&req.RequestId, "request-id", "", "`name` of this call, to get the answer again if it was lost; a random one when left out")
	config.CommandLineAlone(flags, "request-id")
	configured(cmd, "client", keys)
	return cmd
}

// leaseFlag adds --lease.
func leaseFlag(flags *pflag.FlagSet, lease *time.Duration) {
	flags.DurationVar(lease, "lease", client.DefaultLease, "how long the lease runs from now: 1s to 24h")
}

// claimedLine is the text output for one job: what names it and its lease, then what says something.
func claimedLine(claimed *joboncev1.ClaimedJob) string {
	job := claimed.GetJob()
	var b strings.Builder
	pair(&b, "job_id", job.GetJobId())
	leasePairs(&b, claimed.GetLease())
	pair(&b, "attempts", job.GetWork().GetAttempts())
	for _, p := range []struct{ key, value string }{
		{"event", job.GetEvent()}, {"status", job.GetStatus()}, {"last_error", job.GetWork().GetLastError()},
	} {
		if p.value != "" {
			pair(&b, p.key, p.value)
		}
	}
	return b.String()[1:]
}

// leasePairs are the pairs of a lease, under the same keys in every command.
func leasePairs(b *strings.Builder, l *joboncev1.Lease) {
	pair(b, "lease_token", l.GetToken())
	pair(b, "generation", l.GetGeneration())
	pair(b, "lease_expires", timestamp(l.GetExpireTime()))
}
