package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
)

// readJob reads the job that a command is to change: the change is then made to the job as it was read, or not at all.
func readJob(ctx context.Context, conn *connection, id string) (j *joboncev1.Job, err error) {
	err = conn.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		j, err = c.GetJob(ctx, id, joboncev1.JobView_JOB_VIEW_BASIC)
		return err
	})
	return j, err
}

func newRequeue() *cobra.Command {
	var filter filterFlags
	var force, dryRun bool
	most := config.IntRange{Value: 0, Min: 0, Max: 1 << 30}
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "requeue [JOB_ID]",
		Short: "Start the work of a job anew, or of many",
		Long: `Puts work into the queue, due now and without attempts, whatever state it is in: so that a job that died, or whose result was
wrong, is done again. Of JOB_ID, or without it of all jobs that a filter finds, which must have a --state. Work under a running
lease, or of a job without its payload, needs --force, and JOB_ID. Untracked work cannot be requeued.

The text output is a line for each job: its id and what became of it. To see what would be done, use --dry-run.`,
		Example: `  jobonce requeue job_demo
  jobonce requeue --state dead --since 24h --dry-run
  jobonce requeue --state dead --prefix shop:`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneArg("JOB_ID")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter.filter()
			switch {
			case err != nil:
				return err
			case len(args) == 0 && f.GetState() == joboncev1.WorkState_WORK_STATE_UNSPECIFIED:
				return usagef("needs a JOB_ID, or --state for many jobs")
			case len(args) == 0 && force:
				return usagef("--force is for one job")
			case len(args) == 0:
				return requeueMany(cmd, conn, &joboncev1.RequeueJobsRequest{Filter: f, DryRun: dryRun}, most.Value)
			case filter != (filterFlags{}) || dryRun || most.Value > 0:
				return usagef("a filter, --max and --dry-run are for many jobs, and go without JOB_ID")
			}
			j, err := readJob(cmd.Context(), conn, args[0])
			if err != nil {
				return err
			}
			var resp *joboncev1.RequeueWorkResponse
			err = conn.change(cmd.Context(), "the work may be requeued", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.RequeueWork(ctx, &joboncev1.RequeueWorkRequest{JobId: args[0], ExpectedGeneration: j.GetWork().GetGeneration(),
					ExpectedFirstSeenTime: j.GetFirstSeenTime(), ExpectedState: j.GetWork().GetState(), Force: force})
				return err
			})
			if err != nil {
				return err
			}
			text := printable(args[0]) + ": requeued\n"
			if !resp.GetChanged() {
				text = printable(args[0]) + ": was queued and due already\n"
			}
			answer, err := answerOf(conn.output.Value, text, resp)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{})
		},
	}
	flags := cmd.Flags()
	filter.declare(flags)
	flags.BoolVar(&force, "force", false, "also while a lease runs, whose holder loses it, and without the payload")
	flags.Var(&most, "max", "how many jobs to look at, at most; 0 is all")
	flags.BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	config.CommandLineAlone(flags, "force", "max", "dry-run")
	configured(cmd, "client", keys)
	return cmd
}

func requeueMany(cmd *cobra.Command, conn *connection, req *joboncev1.RequeueJobsRequest, most int) error {
	outliveReaders()
	requeued, refused := 0, 0
	_, _, err := eachPage(cmd.Context(), conn, most, func(ctx context.Context, c *client.Client, size int32) (int, bool, error) {
		req.MaxJobs = size
		resp, err := c.RequeueJobs(ctx, req)
		if err != nil {
			return 0, false, err
		}
		for _, r := range resp.GetResults() {
			text := printable(r.GetJobId()) + ": "
			switch e := r.GetError(); {
			case e != nil:
				refused++
				text += e.GetMessage()
			case !r.GetRequeued():
				text += "was queued and due already"
			case req.GetDryRun():
				requeued++
				text += "would be requeued"
			default:
				requeued++
				text += "requeued"
			}
			answer, err := answerOf(conn.output.Value, text+"\n", r)
			if err != nil {
				return 0, false, err
			}
			if err := writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{}); err != nil {
				return 0, false, err
			}
		}
		req.PageToken = resp.GetNextPageToken()
		return len(resp.GetResults()), req.GetPageToken() != "", nil
	})
	if failed := (*client.Error)(nil); errors.As(err, &failed) && failed.OutcomeUnknown && !req.GetDryRun() {
		return &hintedError{failed, fmt.Sprintf("%s requeued, and up to %d more may be: --dry-run says what is left", counted(requeued, "job"), req.GetMaxJobs())}
	}
	if err == nil && refused > 0 {
		did := "were requeued"
		if req.GetDryRun() {
			did = "would be requeued"
		}
		return fmt.Errorf("%s %s, %d could not be", counted(requeued, "job"), did, refused)
	}
	return err
}

func newDelete() *cobra.Command {
	var force, payloadOnly bool
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "delete JOB_ID",
		Short: "Delete a job, or its payload alone",
		Long: `Deletes a job and what is expected of it. JobOnce forgets that it ever knew the job: should the provider deliver again, that
delivery is FIRST, and the work starts once more.

With --payload-only the decision stays, and what may be somebody's data goes: the payload, the result, the last error and the last
conflict. On work that is not done that needs --force, and makes it DEAD. The id, the event and the status stay; backups
and the database's own logs are not touched. docs/operations.md says how to find the jobs of a person.`,
		Example: `  jobonce delete job_demo --payload-only
  jobonce delete job_demo`,
		Args: oneArg("JOB_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := readJob(cmd.Context(), conn, args[0])
			if err != nil {
				return err
			}
			var resp *joboncev1.DeleteJobResponse
			err = conn.change(cmd.Context(), "it may be deleted", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.DeleteJob(ctx, &joboncev1.DeleteJobRequest{JobId: args[0], ExpectedGeneration: j.GetWork().GetGeneration(),
					ExpectedFirstSeenTime: j.GetFirstSeenTime(), ExpectedState: j.GetWork().GetState(), Force: force, PayloadOnly: payloadOnly})
				return err
			})
			if err != nil {
				return err
			}
			text := printable(args[0]) + ": deleted\n"
			switch {
			case !resp.GetDeleted() && payloadOnly:
				text = printable(args[0]) + ": payload was gone already\n"
			case !resp.GetDeleted():
				text = printable(args[0]) + ": was gone already\n"
			case payloadOnly:
				text = printable(args[0]) + ": payload deleted\n"
			}
			answer, err := answerOf(conn.output.Value, text, resp)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&force, "force", false, "also while a lease runs, whose holder loses it; with --payload-only, while the work is not done")
	flags.BoolVar(&payloadOnly, "payload-only", false, "keep the decision, and delete what may be somebody's data")
	config.CommandLineAlone(flags, "force", "payload-only")
	configured(cmd, "client", keys)
	return cmd
}

// pausePrefix is the prefix that a command about pauses names: an argument, or all jobs.
func pausePrefix(args []string, all bool) (string, error) {
	switch {
	case len(args) > 1:
		return "", usagef("needs one PREFIX, and got %d", len(args))
	case len(args) == 1 && all:
		return "", usagef("PREFIX and --all both say which jobs; leave one out")
	case len(args) == 1 && args[0] == "":
		return "", usagef("PREFIX is empty; for all jobs use --all")
	case len(args) == 0 && !all:
		return "", usagef("needs a PREFIX, or --all")
	case all:
		return "", nil
	}
	return args[0], nil
}

func newPause() *cobra.Command {
	var all, list bool
	var reason string
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "pause [PREFIX]",
		Short: "Keep the work of jobs from being started",
		Long: `Pauses claims of jobs whose ids begin with PREFIX, or of all: workers get none of them, and a LEASED delivery of work that is free
hears PENDING. Deliveries are recorded as ever, leases that run go on, and the first delivery of a LEASED job still starts its work. It
holds at every instance within two seconds, and until 'jobonce resume'.`,
		Example: `  jobonce pause shop: --reason 'the warehouse is closed'
  jobonce pause --all
  jobonce pause --list`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				if len(args) > 0 || all {
					return usagef("--list goes alone")
				}
				return listPauses(cmd, conn)
			}
			prefix, err := pausePrefix(args, all)
			if err != nil {
				return err
			}
			var resp *joboncev1.PauseClaimsResponse
			err = conn.change(cmd.Context(), "claims may be paused", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.PauseClaims(ctx, &joboncev1.PauseClaimsRequest{JobIdPrefix: prefix, Reason: reason})
				return err
			})
			if err != nil {
				return err
			}
			answer, err := answerOf(conn.output.Value, fmt.Sprintf("claims of %s are paused since %s\n", paused(prefix), timestamp(resp.GetPause().GetPauseTime())), resp)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "all jobs, instead of PREFIX")
	flags.StringVar(&reason, "reason", "", "why: a `text` for people; empty is none")
	config.MayBeEmpty(flags, "reason")
	flags.BoolVar(&list, "list", false, "list the pauses, and change nothing")
	config.CommandLineAlone(flags, "all", "reason", "list")
	configured(cmd, "client", keys)
	return cmd
}

// paused says which jobs a prefix is of.
func paused(prefix string) string {
	if prefix == "" {
		return "all jobs"
	}
	return printable(prefix)
}

func listPauses(cmd *cobra.Command, conn *connection) error {
	var resp *joboncev1.ListClaimPausesResponse
	err := conn.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
		resp, err = c.ListClaimPauses(ctx)
		return err
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"PREFIX", "SINCE", "REASON"}}
	for _, p := range resp.GetPauses() {
		if conn.output.Value == outputJSON {
			if err := printJSON(cmd.OutOrStdout(), p); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{paused(p.GetJobIdPrefix()), timestamp(p.GetPauseTime()), printable(p.GetReason())})
	}
	if len(rows) == 1 {
		return nil
	}
	return table(cmd.OutOrStdout(), rows)
}

func newResume() *cobra.Command {
	var all bool
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "resume [PREFIX]",
		Short: "End a pause of claims",
		Long: `Ends the pause of PREFIX, or with --all that of all jobs. Pauses of other prefixes stay; 'jobonce pause --list' lists
them. A prefix that is not paused is no error.`,
		Example: `  jobonce resume shop:
  jobonce resume --all`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := pausePrefix(args, all)
			if err != nil {
				return err
			}
			var resp *joboncev1.ResumeClaimsResponse
			err = conn.change(cmd.Context(), "the pause may be ended", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.ResumeClaims(ctx, &joboncev1.ResumeClaimsRequest{JobIdPrefix: prefix})
				return err
			})
			if err != nil {
				return err
			}
			text := fmt.Sprintf("claims of %s go on\n", paused(prefix))
			if !resp.GetResumed() {
				text = fmt.Sprintf("claims of %s were not paused\n", paused(prefix))
			}
			answer, err := answerOf(conn.output.Value, text, resp)
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), answer, unwrittenError{})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the pause of all jobs, instead of PREFIX")
	config.CommandLineAlone(cmd.Flags(), "all")
	configured(cmd, "client", keys)
	return cmd
}

// expectationRow is a row of a table of expectations.
func expectationRow(e *joboncev1.Expectation) []string {
	state := "waits"
	switch {
	case e.GetGivenUpTime() != nil:
		state = "given up"
	case e.GetLeased():
		state = "is polled"
	}
	url, _, _ := strings.Cut(e.GetStatusUrl(), "?")
	return []string{printable(e.GetJobId()), state, timestamp(e.GetOverdueTime()), timestamp(e.GetDueTime()), fmt.Sprint(e.GetPolls()), printable(url), printable(e.GetLastError())}
}

var expectationColumns = []string{"JOB_ID", "STATE", "OVERDUE", "NEXT_POLL", "POLLS", "STATUS_URL", "ERROR"}

func newOverdue() *cobra.Command {
	limit := config.IntRange{Value: job.DefaultPageSize, Min: 0, Max: 1 << 30}
	which := config.Choice{Value: "overdue", Words: []string{"overdue", "given-up", "all"}}
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "overdue",
		Short: "List webhooks that are overdue",
		Long: `Lists webhooks that were expected and did not come, in the order of their jobs' ids. A webhook that came meanwhile is listed until
a poller looks. The table shows the status URLs without their queries, which may hold secrets; -o json prints all that the caller may see, one
object a line: the queries to those who may poll or administer.`,
		Example: `  jobonce overdue
  jobonce overdue --show given-up`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &joboncev1.ListExpectationsRequest{Filter: map[string]joboncev1.ExpectationFilter{
				"overdue":  joboncev1.ExpectationFilter_EXPECTATION_FILTER_OVERDUE,
				"given-up": joboncev1.ExpectationFilter_EXPECTATION_FILTER_GIVEN_UP,
			}[which.Value]}
			table := pagedTable{w: cmd.OutOrStdout(), header: expectationColumns}
			return listPages(cmd, conn, limit.Value, func(ctx context.Context, c *client.Client, size int32) (int, bool, error) {
				req.PageSize = size
				resp, err := c.ListExpectations(ctx, req)
				if err != nil {
					return 0, false, err
				}
				var rows [][]string
				for _, e := range resp.GetExpectations() {
					if conn.output.Value == outputJSON {
						if err := printJSON(cmd.OutOrStdout(), e); err != nil {
							return 0, false, err
						}
						continue
					}
					rows = append(rows, expectationRow(e))
				}
				req.PageToken = resp.GetNextPageToken()
				return len(resp.GetExpectations()), req.GetPageToken() != "", table.print(rows)
			})
		},
	}
	cmd.Flags().Var(&which, "show", "those that are overdue, those that were given up, or all that are expected")
	cmd.Flags().Var(&limit, "limit", "how many at most; 0 is all")
	config.CommandLineAlone(cmd.Flags(), "show", "limit")
	configured(cmd, "client", keys)
	return cmd
}
