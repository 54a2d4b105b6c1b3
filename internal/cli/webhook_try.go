package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/frontend"
)

// maxTried bounds what webhook test reads.
const maxTried = 40 << 20

func newWebhookTest() *cobra.Command {
	var source, at string
	output := newOutput()
	cfg, all := newWebhookConfig()
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Say what would become of a request, and why its signature fails",
		Long: `Reads one HTTP request as it goes over the wire, with its headers and its body, from standard input, and says what jobonce webhook
would do with it: whether the signature is good, what would be recorded, and what would be answered. Nothing is recorded. A
signature with a time in it is good for some minutes; --at says when the request came. Exit code 0 means that the request would
be accepted.`,
		Example: `  jobonce webhook test --config jobonce.yaml --source stripe --at 2026-11-29T14:09:54Z < request.http`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if source == "" {
				return usagef("needs --source, the name of one of the sources")
			}
			now := time.Now
			if at != "" {
				t, err := time.Parse(time.RFC3339, at)
				if err != nil {
					return usagef("--at %s is no time in RFC 3339, such as 2026-11-29T14:09:54Z", at)
				}
				now = func() time.Time { return t }
			}
			h, err := triedHandler(cmd.Flags(), cfg, source, now)
			if err != nil {
				return err
			}
			r, err := readRequest(cmd.Context(), cmd.InOrStdin())
			if err != nil {
				return err
			}
			e := h.Explain(r)
			text, err := explained(output.Value, source, &e)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), text); err != nil {
				return err
			}
			if e.Reason != webhook.Accepted && e.Reason != webhook.Handshaken {
				return &codedError{fmt.Errorf("the request would be answered %d, since %s", e.Status, e.Reason), exitRefused}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&source, "source", "", "`name` of the source that the request is for")
	flags.StringVar(&at, "at", "", "`time` at which the request came; now when not given")
	flags.VarP(output, "output", "o", "output format")
	flags.AddFlag(all.Lookup("max-payload-bytes"))
	flags.String(config.FileFlag, "", "YAML `file` whose section \"webhook\" has the sources")
	config.CommandLineAlone(flags, "source", "at")
	fromEnvironment(cmd, "webhook", all)
	return cmd
}

// triedHandler is the handler of one source, which records nowhere.
func triedHandler(flags *pflag.FlagSet, cfg *webhookConfig, name string, now func() time.Time) (*webhook.Handler, error) {
	sources, err := webhookSources(flags)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range sources {
		if names = append(names, s.Name); s.Name != name {
			continue
		}
		f, err := frontend.New(nowhere{}, frontend.Config{Sources: []frontend.Source{s}, MaxBody: cfg.maxBody.Value, Now: now, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, &usageError{err}
		}
		return f.Handler(name), nil
	}
	return nil, usagef("--source %s: there is no such source; there are %s", name, strings.Join(names, ", "))
}

// readRequest reads a request. Where no header says how long the body is, it is all the rest.
func readRequest(ctx context.Context, stdin io.Reader) (*http.Request, error) {
	text, err := readText(ctx, "request", maxTried, "-", stdin)
	if err != nil {
		return nil, err
	}
	all := bufio.NewReader(strings.NewReader(text))
	r, err := http.ReadRequest(all)
	if err != nil {
		return nil, usagef("standard input is no HTTP request: %w; it begins with a line such as POST /stripe HTTP/1.1, then come the headers, an "+
			"empty line, and the body", err)
	}
	if r.Header.Get("Content-Length") == "" && len(r.TransferEncoding) == 0 {
		body, err := io.ReadAll(all)
		if err != nil {
			return nil, err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return r, nil
}

// explained is what would become of the request, in the output format.
func explained(format, source string, e *webhook.Explanation) (string, error) {
	type item struct {
		JobID    string `json:"jobId,omitempty"`
		Event    string `json:"event,omitempty"`
		Status   string `json:"status,omitempty"`
		Bytes    int    `json:"bytes,omitempty"`
		Filtered bool   `json:"filtered,omitempty"`
		Error    string `json:"error,omitempty"`
	}
	out := struct {
		Source   string   `json:"source"`
		Reason   string   `json:"reason"`
		Verified bool     `json:"verified"`
		Error    string   `json:"error,omitempty"`
		Hints    []string `json:"hints,omitempty"`
		Answer   int      `json:"answer"`
		Events   []item   `json:"events"`
	}{Source: source, Reason: string(e.Reason), Verified: e.Verified, Error: message(e.Err), Hints: e.Hints, Answer: e.Status, Events: []item{}}
	for _, i := range e.Items {
		out.Events = append(out.Events, item{i.JobID, i.Event, i.Status, i.Size, i.Filtered, message(i.Err)})
	}
	if format == outputJSON {
		text, err := json.Marshal(out)
		return string(text) + "\n", err
	}
	var b strings.Builder
	signature := "not good"
	if e.Verified {
		signature = "good"
	}
	fmt.Fprintf(&b, "source: %s\nsignature: %s\nreason: %s\n", source, signature, e.Reason)
	if out.Error != "" {
		fmt.Fprintf(&b, "error: %s\n", printable(out.Error))
	}
	for _, hint := range e.Hints {
		fmt.Fprintf(&b, "hint: %s\n", printable(hint))
	}
	fmt.Fprintf(&b, "answer: %d\n", e.Status)
	for _, i := range out.Events {
		switch {
		case i.Filtered:
			b.WriteString("filtered out: it would not be recorded")
		case i.Error != "" && i.JobID != "":
			b.WriteString("kept whole, for nobody to work on:")
		case i.Error != "":
			b.WriteString("unreadable:")
		default:
			b.WriteString("recorded:")
		}
		for _, p := range []struct {
			key, value string
		}{{"job_id", i.JobID}, {"event", i.Event}, {"status", i.Status}, {"error", i.Error}} {
			if p.value != "" {
				pair(&b, p.key, p.value)
			}
		}
		if i.Bytes > 0 {
			pair(&b, "bytes", i.Bytes)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
