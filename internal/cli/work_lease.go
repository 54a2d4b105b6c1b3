package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
)

func newWorkRenew() *cobra.Command {
	req := &joboncev1.RenewLeaseRequest{}
	var lease time.Duration
	own := func(flags *pflag.FlagSet) { leaseFlag(flags, &lease) }
	cmd := holderCommand("renew", &req.LeaseToken, own, func(cmd *cobra.Command, conn *connection, jobID string) error {
		req.JobId, req.LeaseDuration = jobID, durationpb.New(lease)
		renewed := &joboncev1.RenewLeaseResponse{}
		err := conn.change(cmd.Context(), "the lease may be renewed", func(ctx context.Context, c *client.Client) (err error) {
			renewed.Lease, err = c.RenewLease(ctx, req)
			return err
		})
		if err != nil {
			return err
		}
		var b strings.Builder
		pair(&b, "job_id", jobID)
		leasePairs(&b, renewed.GetLease())
		answer, err := answerOf(conn.output.Value, b.String()[1:]+"\n", renewed)
		if err != nil {
			return err
		}
		return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{leases: []grant{{jobID, renewed.GetLease()}}})
	})
	cmd.Short = "Let a lease run anew, and print it"
	cmd.Long = `Lets a lease run anew from now; it never makes it shorter. The text output is one line of key=value pairs, as from 'jobonce work claim'. When the
token does not hold the lease any more it fails with ABORTED LEASE_LOST.`
	cmd.Example = `  jobonce work renew job_demo --lease-token TOKEN --lease 5m`
	return cmd
}

func newWorkComplete() *cobra.Command {
	req := &joboncev1.CompleteWorkRequest{}
	var result string
	own := func(flags *pflag.FlagSet) {
		flags.StringVar(&result, "result", "", "what later deliveries of the job are told: the `text` itself, @FILE, or - for\n"+
			"standard input; empty is none")
		config.MayBeEmpty(flags, "result")
		config.CommandLineAlone(flags, "result")
	}
	cmd := holderCommand("complete", &req.LeaseToken, own, func(cmd *cobra.Command, conn *connection, jobID string) (err error) {
		req.JobId = jobID
		if req.Result, err = readText(cmd.Context(), "result", job.MaxResultBytes, result, cmd.InOrStdin()); err != nil {
			return err
		}
		err = conn.change(cmd.Context(), "the work may be completed", func(ctx context.Context, c *client.Client) error { return c.CompleteWork(ctx, req) })
		return printDone(cmd, conn, &joboncev1.CompleteWorkResponse{}, err)
	})
	cmd.Short = "Say that the work of a job is done"
	cmd.Long = `Says that the work is done. It prints nothing in text. Repeated with the same token it succeeds, and the first result
stays. When the token does not hold the lease any more it fails with ABORTED LEASE_LOST.`
	cmd.Example = `  jobonce work complete job_demo --lease-token TOKEN --result shipped
  jobonce work complete job_demo --lease-token TOKEN --result @receipt.json`
	return cmd
}

func newWorkRelease() *cobra.Command {
	req := &joboncev1.ReleaseWorkRequest{}
	var delay time.Duration
	own := func(flags *pflag.FlagSet) {
		flags.DurationVar(&delay, "delay", 0, "how long nobody may claim the work: up to 24h; not with --dead")
		flags.StringVar(&req.Error, "error", "", "why the work was not done: a `text` for people; empty is none")
		config.MayBeEmpty(flags, "error")
		flags.BoolVar(&req.Dead, "dead", false, "give the work up: nobody gets it any more")
		config.CommandLineAlone(flags, "error", "dead")
	}
	cmd := holderCommand("release", &req.LeaseToken, own, func(cmd *cobra.Command, conn *connection, jobID string) error {
		req.JobId = jobID
		if cmd.Flags().Changed("delay") {
			req.RetryDelay = durationpb.New(delay)
		}
		err := conn.change(cmd.Context(), "the work may be released", func(ctx context.Context, c *client.Client) error { return c.ReleaseWork(ctx, req) })
		return printDone(cmd, conn, &joboncev1.ReleaseWorkResponse{}, err)
	})
	cmd.Short = "Give the work of a job back, or up"
	cmd.Long = `Gives the work back undone, or with --dead gives it up. It prints nothing in text. Repeated with the same token it
succeeds and changes nothing. When the token does not hold the lease any more it fails with ABORTED LEASE_LOST.`
	cmd.Example = `  jobonce work release job_demo --lease-token TOKEN --delay 30s --error 'the warehouse is closed'
  jobonce work release job_demo --lease-token TOKEN --dead --error 'no such customer'`
	return cmd
}

// holderCommand is a command of whoever holds the lease on a job; own adds its flags.
func holderCommand(
	name string, token *string, own func(*pflag.FlagSet),
	run func(cmd *cobra.Command, conn *connection, jobID string) error,
) *cobra.Command {
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:  name + " JOB_ID",
		Args: oneArg("JOB_ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, conn, args[0]) },
	}
	cmd.Flags().StringVar(token, "lease-token", "", "`token` of the lease")
	config.CommandLineAlone(cmd.Flags(), "lease-token")
	own(cmd.Flags())
	configured(cmd, "client", keys)
	return cmd
}

// printDone prints the answer of a call that says nothing but that it succeeded: to scripts only.
func printDone(cmd *cobra.Command, conn *connection, answer proto.Message, err error) error {
	if err != nil || conn.output.Value != outputJSON {
		return err
	}
	line, err := answerOf(outputJSON, "", answer)
	if err != nil {
		return err
	}
	return writeAnswer(cmd.OutOrStdout(), line, unwrittenError{})
}
