package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
)

// filterFlags are the flags that say which jobs a command is about.
type filterFlags struct {
	state         string
	prefix        string
	conflicts     bool
	since, before string
}

func (f *filterFlags) declare(flags *pflag.FlagSet) {
	flags.StringVar(&f.state, "state", "", "only jobs whose work is in this `state`: untracked, queued, leased, completed or dead")
	flags.StringVar(&f.prefix, "prefix", "", "only jobs whose id begins with this `text`")
	flags.BoolVar(&f.conflicts, "conflicts", false, "only jobs of which a delivery disagreed with the first")
	flags.StringVar(&f.since, "since", "", "only jobs first seen at this `time` or later: such as 2026-01-02T15:04:05Z, or 24h for so long ago")
	flags.StringVar(&f.before, "before", "", "only jobs first seen before this `time`")
	config.CommandLineAlone(flags, "state", "prefix", "conflicts", "since", "before")
}

func (f *filterFlags) filter() (*joboncev1.JobFilter, error) {
	out := &joboncev1.JobFilter{ConflictsOnly: f.conflicts, JobIdPrefix: f.prefix}
	if f.state != "" {
		state := joboncev1.WorkState_value["WORK_STATE_"+strings.ToUpper(f.state)]
		if state == 0 {
			return nil, usagef("--state is %q, and must be untracked, queued, leased, completed or dead", f.state)
		}
		out.State = joboncev1.WorkState(state)
	}
	var errs [2]error
	out.FirstSeenFrom, errs[0] = timeOrAge("since", f.since)
	out.FirstSeenBefore, errs[1] = timeOrAge("before", f.before)
	return out, errors.Join(errs[:]...)
}

// timeOrAge reads a time, or how long ago it was.
func timeOrAge(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return timestamppb.New(time.Now().Add(-d)), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, usagef("--%s is %q, and must be a time such as 2026-01-02T15:04:05Z, or how long ago, such as 24h", flag, text)
	}
	return timestamppb.New(t), nil
}

func newList() *cobra.Command {
	var filter filterFlags
	var count bool
	limit := config.IntRange{Value: job.DefaultPageSize, Min: 0, Max: 1 << 30}
	order := config.Choice{Value: "newest", Words: []string{"newest", "id"}}
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, or count them",
		Long: `Lists jobs, the newest first or in the order of their ids. On a terminal the table is cut to its width; -o json prints one whole
job a line, without payload and result. The error and the conflict of a job are what 'jobonce get JOB_ID' says more about.`,
		Example: `  jobonce list --state dead
  jobonce list --since 24h --conflicts
  jobonce list --order id --prefix shop: --limit 0 -o json
  jobonce list --count`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter.filter()
			if err != nil {
				return err
			}
			if count {
				if !proto.Equal(f, &joboncev1.JobFilter{}) {
					return usagef("--count counts all jobs, by state; it goes without a filter")
				}
				return countJobs(cmd, conn)
			}
			req := &joboncev1.ListJobsRequest{Filter: f, Order: joboncev1.JobOrder_JOB_ORDER_NEWEST_FIRST}
			if order.Value == "id" {
				req.Order = joboncev1.JobOrder_JOB_ORDER_ID
			}
			return listJobs(cmd, conn, req, limit.Value)
		},
	}
	flags := cmd.Flags()
	filter.declare(flags)
	flags.Var(&order, "order", "the newest first, or by id")
	flags.Var(&limit, "limit", "how many jobs at most; 0 is all")
	flags.BoolVar(&count, "count", false, "count the jobs of each state instead, up to 10,000 of each")
	config.CommandLineAlone(flags, "order", "limit", "count")
	configured(cmd, "client", keys)
	return cmd
}

func listJobs(cmd *cobra.Command, conn *connection, req *joboncev1.ListJobsRequest, limit int) error {
	table := pagedTable{w: cmd.OutOrStdout(), header: []string{"JOB_ID", "STATE", "FIRST_SEEN", "DELIVERIES", "ATTEMPTS", "EVENT", "STATUS", "NOTE"}}
	return listPages(cmd, conn, limit, func(ctx context.Context, c *client.Client, size int32) (int, bool, error) {
		req.PageSize = size
		resp, err := c.ListJobs(ctx, req)
		if err != nil {
			return 0, false, err
		}
		var rows [][]string
		for _, j := range resp.GetJobs() {
			if conn.output.Value == outputJSON {
				if err := printJSON(cmd.OutOrStdout(), j); err != nil {
					return 0, false, err
				}
				continue
			}
			rows = append(rows, jobRow(j))
		}
		req.PageToken = resp.GetNextPageToken()
		return len(resp.GetJobs()), req.GetPageToken() != "", table.print(rows)
	})
}

// pageFunc does what is to be done with a page of a list, of that size at most: n is how many it had.
type pageFunc func(ctx context.Context, c *client.Client, size int32) (n int, more bool, err error)

// listPages prints a list by page, and says when it ends at the limit and not at its end.
func listPages(cmd *cobra.Command, conn *connection, limit int, page pageFunc) error {
	had, more, err := eachPage(cmd.Context(), conn, limit, page)
	if err == nil && more {
		fmt.Fprintf(cmd.ErrOrStderr(), "there may be more than these %d; --limit 0 lists all\n", had)
	}
	return err
}

// eachPage calls page until there is no more, or limit items were had; 0 is no limit.
func eachPage(ctx context.Context, conn *connection, limit int, page pageFunc) (had int, more bool, err error) {
	for more = true; more && (limit == 0 || had < limit); {
		size := job.MaxPageSize
		if limit > 0 {
			size = min(size, limit-had)
		}
		err := conn.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
			var n int
			n, more, err = page(ctx, c, int32(size))
			had += n
			return err
		})
		if err != nil {
			return had, more, err
		}
	}
	return had, more, nil
}

func jobRow(j *joboncev1.Job) []string {
	w := j.GetWork()
	var notes []string
	if n := j.GetConflicts(); n > 0 {
		notes = append(notes, counted(int(n), "conflict"))
	}
	if n := w.GetRequeues(); n > 0 {
		notes = append(notes, "requeued "+counted(int(n), "time"))
	}
	if j.GetPayloadDroppedTime() != nil {
		notes = append(notes, "payload dropped")
	}
	if e := w.GetLastError(); e != "" {
		notes = append(notes, printable(e))
	}
	return []string{printable(j.GetJobId()), strings.TrimPrefix(w.GetState().String(), "WORK_STATE_"), timestamp(j.GetFirstSeenTime()),
		fmt.Sprint(j.GetDeliveries()), fmt.Sprint(w.GetAttempts()), printable(j.GetEvent()), printable(j.GetStatus()), strings.Join(notes, "; ")}
}

func countJobs(cmd *cobra.Command, conn *connection) error {
	var resp *joboncev1.CountJobsResponse
	err := conn.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
		resp, err = c.CountJobs(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if conn.output.Value == outputJSON {
		return printJSON(cmd.OutOrStdout(), resp)
	}
	rows := [][]string{{"STATE", "JOBS"}}
	number := func(n int64, more bool) string {
		if more {
			return fmt.Sprintf("%d+", n)
		}
		return fmt.Sprint(n)
	}
	for _, c := range resp.GetCounts() {
		rows = append(rows, []string{strings.TrimPrefix(c.GetState().String(), "WORK_STATE_"), number(c.GetJobs(), c.GetMore())})
	}
	return table(cmd.OutOrStdout(), append(rows, []string{"in conflict", number(resp.GetConflicts(), resp.GetConflictsMore())}))
}
