package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
)

func newGet() *cobra.Command {
	view := config.Choice{Value: "full", Words: []string{"basic", "full"}}
	var payloadOnly bool
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "get JOB_ID",
		Short: "Print what is recorded of a job",
		Long: `Prints the record of a job: "key: value" lines, then an empty line and the payload, if that can be shown. A value with
unprintable characters in it is quoted. To get the payload alone, byte for byte, use --payload-only; it fails for a job
without one. Who may read jobs and no payloads gets the rest, unless --view, --payload-only or -o json asks for the payload.`,
		Example: `  jobonce get job_demo
  jobonce get job_demo --payload-only > webhook.json
  jobonce get job_demo -o json | jq -r .firstSeenTime`,
		Args: oneArg("JOB_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if payloadOnly {
				view.Value = "full"
			}
			v := joboncev1.JobView(joboncev1.JobView_value["JOB_VIEW_"+strings.ToUpper(view.Value)])
			asked := payloadOnly || cmd.Flags().Changed("view")
			var job *joboncev1.Job
			var withheld *client.Error
			err := conn.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				job, err = c.GetJob(ctx, args[0], v)
				if asked || !errors.Is(err, client.ErrPermissionDenied) || !errors.As(err, &withheld) {
					return err
				}
				job, err = c.GetJob(ctx, args[0], joboncev1.JobView_JOB_VIEW_BASIC)
				return err
			})
			switch {
			case err == nil && withheld != nil && conn.output.Value == outputJSON:
				return &hintedError{withheld, "add --view basic to get the rest"}
			case err == nil && withheld != nil:
				_, err := io.WriteString(cmd.OutOrStdout(), jobText(job)+"payload: not shown: "+withheld.Message+"\n")
				return err
			case err != nil:
				return err
			case payloadOnly:
				return printPayload(cmd.OutOrStdout(), job)
			case conn.output.Value == outputJSON:
				return printJSON(cmd.OutOrStdout(), job)
			default:
				_, err := io.WriteString(cmd.OutOrStdout(), jobText(job))
				return err
			}
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&payloadOnly, "payload-only", false, "write the payload and nothing else, whatever --output and --view say")
	flags.Var(&view, "view", "with the payload or without")
	configured(cmd, "client", keys)
	return cmd
}

// body is the job's payload, and whether there is one: an empty one is one.
func body(job *joboncev1.Job) (data string, ok bool) {
	switch b := job.GetBody().(type) {
	case *joboncev1.Job_Payload:
		return b.Payload, true
	case *joboncev1.Job_PayloadBytes:
		return string(b.PayloadBytes), true
	}
	return "", false
}

func printPayload(w io.Writer, job *joboncev1.Job) error {
	data, ok := body(job)
	if ok {
		_, err := io.WriteString(w, data)
		return err
	}
	if t := job.GetPayloadDroppedTime(); t != nil {
		return &codedError{fmt.Errorf("the payload was dropped at %s", timestamp(t)), exitNotFound}
	}
	return &codedError{errors.New("the job has no payload"), exitNotFound}
}

// jobText is the text output: what is always there, then what says something.
func jobText(job *joboncev1.Job) string {
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, printable(value)) }
	optional := func(key, value string) {
		if value != "" {
			line(key, value)
		}
	}
	line("job_id", job.GetJobId())
	line("event", job.GetEvent())
	line("status", job.GetStatus())
	optional("source", job.GetSource())
	optional("content_type", job.GetContentType())
	optional("traceparent", job.GetTraceparent())
	line("deliveries", fmt.Sprint(job.GetDeliveries()))
	line("first_seen", timestamp(job.GetFirstSeenTime()))
	line("last_seen", timestamp(job.GetLastSeenTime()))
	workLines(job.GetWork(), line, optional)
	if job.GetConflicts() > 0 {
		line("conflicts", fmt.Sprint(job.GetConflicts()))
	}
	if c := job.GetLastConflict(); c != nil {
		var pairs strings.Builder
		pairs.WriteString(strings.TrimPrefix(c.GetKind().String(), "CONFLICT_KIND_"))
		pair(&pairs, "event", c.GetDeliveredEvent())
		pair(&pairs, "status", c.GetDeliveredStatus())
		pair(&pairs, "time", timestamp(c.GetTime()))
		line("last_conflict", pairs.String())
	}
	optional("payload_dropped", timestamp(job.GetPayloadDroppedTime()))
	if n := job.GetPayloadOmittedBytes(); n > 0 {
		line("payload_omitted", fmt.Sprintf("%d bytes, too large to be kept", n))
	}
	if job.GetPayloadEdited() {
		line("payload_edited", "true: it is not the one that was received")
	}
	data, ok := body(job)
	if !ok {
		return b.String()
	}
	if data == "" || !isText(job, data) {
		line("payload", fmt.Sprintf("%d bytes, not shown; --payload-only writes them", len(data)))
		return b.String()
	}
	fmt.Fprintf(&b, "\n%s", data)
	if !strings.HasSuffix(data, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

func workLines(w *joboncev1.Work, line, optional func(key, value string)) {
	line("work", strings.TrimPrefix(w.GetState().String(), "WORK_STATE_"))
	optional("work_due", timestamp(w.GetDueTime()))
	if w.GetAttempts() > 0 {
		line("work_attempts", fmt.Sprint(w.GetAttempts()))
	}
	if w.GetRequeues() > 0 {
		line("work_requeues", fmt.Sprint(w.GetRequeues()))
	}
	optional("work_result", w.GetResult())
	optional("work_error", w.GetLastError())
}

// isText tells whether a terminal may see the payload: text without control characters other than those of lines.
func isText(job *joboncev1.Job, data string) bool {
	if _, ok := job.GetBody().(*joboncev1.Job_Payload); !ok {
		return false
	}
	return !strings.ContainsFunc(data, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\n\r\t", r) })
}
