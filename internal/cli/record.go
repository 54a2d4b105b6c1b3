package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
)

// recordFlags is what the flags of record set.
type recordFlags struct {
	jobID, event, status, payload, requestID, source, contentType string

	opaque bool
	mode   config.Choice
	lease  time.Duration
	wait   time.Duration
}

func newRecord() *cobra.Command {
	var f recordFlags
	f.mode = config.Choice{Value: "untracked", Words: []string{"untracked", "leased", "queued"}}
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record one delivery and print whether to start the work",
		Long: `Records one delivery of a job. The text output is one line: the disposition, then key=value pairs. The work is to be
started exactly when start_work=true:

  FIRST start_work=true deliveries=1 job_id=job_demo

A value with spaces, quotes or unprintable characters in it is quoted. Pairs may be added in later versions. When the
answer cannot be written, the lease's token and the request id with which to get it again are named on standard error.`,
		Example: `  jobonce record --job-id job_demo --event job.completed --status OK
  jobonce record --payload @webhook.json
  curl -s https://example.com/last-event | jobonce record --payload -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.request(cmd.Context(), cmd.Flags(), cmd.InOrStdin())
			if err != nil {
				return err
			}
			if f.wait != 0 {
				req.Wait = durationpb.New(f.wait)
				conn.timeout += max(0, f.wait) // It is no time of trying.
			}
			var resp *joboncev1.RecordDeliveryResponse
			err = conn.change(cmd.Context(), "it may be recorded", func(ctx context.Context, c *client.Client) (err error) {
				resp, err = c.RecordDelivery(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			answer, err := answerOf(conn.output.Value, recordLine(resp)+"\n", resp)
			if err != nil {
				return err
			}
			kept := unwrittenError{requestID: req.GetRequestId()}
			if resp.GetLease() != nil {
				kept.leases = []grant{{resp.GetJob().GetJobId(), resp.GetLease()}}
			}
			return writeAnswer(cmd.OutOrStdout(), answer, kept)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.jobID, "job-id", "", "the job's `id`; may be left out when the payload is JSON and has a job_id")
	flags.StringVar(&f.event, "event", "", "what happened, such as job.completed; taken from the payload when left out")
	flags.StringVar(&f.status, "status", "", "how it ended, such as OK; taken from the payload when left out")
	flags.StringVar(&f.payload, "payload", "", "the webhook's body: the `text` itself, @FILE, or - for standard input; empty is an\n"+
		"empty body; sent as bytes when it is not UTF-8")
	flags.BoolVar(&f.opaque, "opaque-payload", false, "the payload's own job_id, event and status mean something else")
	flags.StringVar(&f.requestID, "request-id", "", "`name` of this call, to get the answer again if it was lost; a random one when left out")
	flags.Var(&f.mode, "work-mode", "who does the work")
	flags.DurationVar(&f.lease, "lease", 0, "how long the lease runs, with --work-mode leased: 1s to 24h")
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait, when the work is not done and not this caller's to start, until it is: up to\n"+
		"1m; comes on top of --timeout")
	flags.StringVar(&f.source, "source", "", "where the event came from, such as webhook or poll")
	flags.StringVar(&f.contentType, "content-type", "", "the payload's media `type`, for whoever forwards it, such as application/xml")
	config.MayBeEmpty(flags, "payload")
	config.CommandLineAlone(flags, "job-id", "event", "status", "payload", "opaque-payload", "request-id", "content-type")
	configured(cmd, "client", keys)
	return cmd
}

// request is the request that the flags ask for. Only a flag that was set sends a payload or a lease, empty ones too.
func (f *recordFlags) request(ctx context.Context, flags *pflag.FlagSet, stdin io.Reader) (*joboncev1.RecordDeliveryRequest, error) {
	if f.requestID == "" {
		f.requestID = rand.Text() // for when the answer cannot be written
	}
	req := &joboncev1.RecordDeliveryRequest{
		JobId: f.jobID, Event: f.event, Status: f.status, OpaquePayload: f.opaque, RequestId: f.requestID, Source: f.source,
		ContentType: f.contentType,
		WorkMode:    joboncev1.WorkMode(joboncev1.WorkMode_value["WORK_MODE_"+strings.ToUpper(f.mode.Value)]),
	}
	if flags.Changed("lease") {
		req.LeaseDuration = durationpb.New(f.lease)
	}
	if !flags.Changed("payload") {
		return req, nil
	}
	body, err := readText(ctx, "payload", job.MaxBodyBytes, f.payload, stdin)
	switch {
	case err != nil:
		return nil, err
	case utf8.ValidString(body):
		req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: body}
	default:
		req.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte(body)}
	}
	return req, nil
}

// readText is what the value of a flag stands for: the text itself, @FILE, or - for standard input. what names it in
// errors; limit, in bytes, is the most that any server takes. Nobody waits for an input when ctx is over.
func readText(ctx context.Context, what string, limit int, value string, stdin io.Reader) (string, error) {
	path, isFile := strings.CutPrefix(value, "@")
	if !isFile && value != "-" {
		return value, nil
	}
	type input struct {
		text []byte
		err  error
	}
	read := make(chan input, 1)
	go func() {
		var in input
		if isFile {
			in.text, in.err = readFile(path, limit)
		} else {
			in.text, in.err = readSome(stdin, limit)
		}
		read <- in
	}()
	select {
	case <-ctx.Done():
		return "", fmt.Errorf("the %s was not read: %w", what, ctx.Err())
	case in := <-read:
		switch {
		case in.err != nil:
			return "", fmt.Errorf("cannot read the %s: %w", what, in.err)
		case len(in.text) > limit:
			return "", &codedError{fmt.Errorf("the %s is over %d bytes, more than any server takes", what, limit), exitRefused}
		}
		return string(in.text), nil
	}
}

func readFile(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readSome(file, limit)
}

// readSome reads all, or enough to tell that it is over the limit: an input may be endless.
func readSome(from io.Reader, limit int) ([]byte, error) {
	return io.ReadAll(io.LimitReader(from, int64(limit)+1))
}

// recordLine is the text output: the disposition without its prefix, then the pairs that say something.
func recordLine(r *joboncev1.RecordDeliveryResponse) string {
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(r.GetDisposition().String(), "DISPOSITION_"))
	pair(&b, "start_work", r.GetStartWork())
	pair(&b, "deliveries", r.GetDeliveries())
	pair(&b, "job_id", r.GetJob().GetJobId())
	if l := r.GetLease(); l != nil {
		pair(&b, "lease_token", l.GetToken())
		pair(&b, "generation", l.GetGeneration())
		pair(&b, "lease_expires", timestamp(l.GetExpireTime()))
	}
	if t := r.GetHolderExpireTime(); t != nil {
		pair(&b, "holder_expires", timestamp(t))
	}
	if c := r.GetConflict(); c != nil {
		pair(&b, "conflict", strings.TrimPrefix(c.GetKind().String(), "CONFLICT_KIND_"))
		pair(&b, "stored_event", c.GetStoredEvent())
		pair(&b, "stored_status", c.GetStoredStatus())
	}
	if r.GetResult() != "" {
		pair(&b, "result", r.GetResult())
	}
	return b.String()
}
