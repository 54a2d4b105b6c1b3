package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
)

// keeps tells whether an expectation is as it was asked for; its times are in whole milliseconds.
func keeps(e *joboncev1.Expectation, req *joboncev1.ExpectJobRequest) bool {
	after := func(t *timestamppb.Timestamp, d *durationpb.Duration) bool {
		return (t.AsTime().Sub(e.GetCreateTime().AsTime()) - d.AsDuration()).Abs() <= time.Millisecond
	}
	return e.GetStatusUrl() == req.GetStatusUrl() && after(e.GetOverdueTime(), req.GetOverdueAfter()) &&
		(req.GetGiveUpAfter() == nil || after(e.GetGiveUpTime(), req.GetGiveUpAfter()))
}

func newExpect() *cobra.Command {
	req := &joboncev1.ExpectJobRequest{}
	var overdueAfter, giveUpAfter time.Duration
	var cancel bool
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "expect JOB_ID",
		Short: "Say that a webhook is to come",
		Long: `Says that a webhook of the job is to come, and where the provider tells how the job stands. When no delivery was recorded in time,
'jobonce poll' asks the provider. Repeated, the first values stay: to change them, cancel it first. The text output says when the webhook
is overdue, or that the job is recorded already.`,
		Example: `  jobonce expect job_demo --status-url https://provider.example/jobs/demo --overdue-after 30m
  jobonce expect job_demo --cancel`,
		Args: oneArg("JOB_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cancel {
				for _, other := range []string{"status-url", "overdue-after", "give-up-after"} {
					if cmd.Flags().Changed(other) {
						return usagef("--cancel goes without --%s", other)
					}
				}
				err := conn.change(cmd.Context(), "the expectation may be removed", func(ctx context.Context, c *client.Client) error {
					return c.CancelExpectation(ctx, args[0])
				})
				return printDone(cmd, conn, &joboncev1.CancelExpectationResponse{}, err)
			}
			if req.GetStatusUrl() == "" {
				return usagef("needs --status-url")
			}
			req.JobId, req.OverdueAfter = args[0], durationpb.New(overdueAfter)
			if cmd.Flags().Changed("give-up-after") {
				req.GiveUpAfter = durationpb.New(giveUpAfter)
			}
			var resp *joboncev1.ExpectJobResponse
			err := conn.change(cmd.Context(), "the expectation may be kept", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.ExpectJob(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			text := printable(args[0]) + ": recorded already\n"
			if e := resp.GetExpectation(); e != nil {
				text = printable(args[0]) + ": overdue from " + timestamp(e.GetOverdueTime()) + " on\n"
				if !keeps(e, req) {
					text = printable(args[0]) + ": was expected already, and its first values stay: overdue from " + timestamp(e.GetOverdueTime()) + " on\n"
				}
			}
			answer, err := answerOf(conn.output.Value, text, resp)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&req.StatusUrl, "status-url", "", "`URL` at which the provider tells how the job stands")
	flags.DurationVar(&overdueAfter, "overdue-after", time.Hour, "how long from now the webhook is overdue: up to 720h")
	flags.DurationVar(&giveUpAfter, "give-up-after", 72*time.Hour, "how long from now it is given up: up to 2160h")
	flags.BoolVar(&cancel, "cancel", false, "expect it no more")
	config.CommandLineAlone(flags, "status-url", "cancel")
	configured(cmd, "client", keys)
	return cmd
}
