package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
)

func newExpect() *cobra.Command {
	req := &joboncev1.ExpectJobRequest{}
	var overdueAfter, giveUpAfter time.Duration
	var cancel bool
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "expect JOB_ID",
		Short: "Say that a webhook is to come",
		Long: `Says that a webhook of the job is to come, and where the provider tells how the job stands. When no delivery was recorded in time,
'jobonce poll' asks the provider. Repeated, the first values stay. The text output says when the webhook is overdue, or that the job is
recorded already.`,
		Example: `  jobonce expect job_demo --status-url https://provider.example/jobs/demo --overdue-after 30m
  jobonce expect job_demo --cancel`,
		Args: oneArg("JOB_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cancel {
				if req.GetStatusUrl() != "" {
					return usagef("--cancel goes without --status-url")
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
