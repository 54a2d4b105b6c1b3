package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/load"
)

// benchFlags is what the flags of bench set.
type benchFlags struct {
	callers, bodyBytes, duplicates, hotKeys config.IntRange

	duration time.Duration
	count    int64
	mode     config.Choice
	batching bool
	yes      bool
}

func newBench() *cobra.Command {
	f := benchFlags{
		callers:    config.IntRange{Value: 64, Min: 1, Max: load.MaxCallers},
		bodyBytes:  config.IntRange{Value: 1024, Min: load.MinBodyBytes, Max: load.MaxBodyBytes},
		duplicates: config.IntRange{Min: 0, Max: 100},
		hotKeys:    config.IntRange{Min: 0, Max: 1_000_000},
		mode:       config.Choice{Value: "untracked", Words: []string{"untracked", "leased", "queued"}},
	}
	conn, keys := newConnection()
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put a running service under load and print how fast it answers",
		Long: `Records deliveries as fast as the service answers, from as many callers as asked for, and prints how many a second it
answered and how long it took. It writes real records, whose job ids begin with bench- and the name of the run, and does
not delete them; with --work-mode leased or queued, workers will get them. For a service that is not on this machine it
therefore needs --yes.

Each caller sends its next delivery when the one before is answered, each in a call of its own unless --batching is given,
and nothing is tried again: an error is counted under its reason, and so is a call that takes longer than --timeout. Ctrl-C
ends the run early, with the figures so far.

It fails when nothing was answered, and when the service did not answer exactly one first delivery for each job.`,
		Example: `  jobonce bench
  jobonce bench --callers 256 --duration 30s --duplicates 30
  jobonce bench --count 100000 --body-bytes 16384 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := f.workload(cmd.Flags())
			if err != nil {
				return err
			}
			if !f.yes && !client.IsLoopback(conn.server) {
				return usagef("this would write real records to %s, which is not on this machine; confirm it with --yes", conn.server)
			}
			return f.run(cmd.Context(), conn, w, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.Var(&f.callers, "callers", "how many deliveries are under way at a time")
	flags.DurationVar(&f.duration, "duration", 10*time.Second, "how long to go on; when only --count is given, until that is reached")
	flags.Int64Var(&f.count, "count", 0, "how many deliveries to send; 0 is no bound")
	flags.Var(&f.bodyBytes, "body-bytes", fmt.Sprintf("length of a body, %d to %d", f.bodyBytes.Min, f.bodyBytes.Max))
	flags.Var(&f.duplicates, "duplicates", "percentage of deliveries that repeat an earlier one")
	flags.Var(&f.hotKeys, "hot-keys", "send all deliveries for this many jobs, in turn; 0 is off")
	flags.Var(&f.mode, "work-mode", "who does the work")
	flags.BoolVar(&f.batching, "batching", false, "let the client send together what piles up, as one frontend with many callers does")
	flags.BoolVar(&f.yes, "yes", false, "write to a service that is not on this machine")
	configured(cmd, "client", keys)
	return cmd
}

func (f *benchFlags) workload(flags *pflag.FlagSet) (load.Workload, error) {
	w := load.Workload{
		Run: fmt.Sprintf("%08x", rand.Uint32()), Callers: f.callers.Value, Count: f.count, Duration: f.duration,
		BodyBytes: f.bodyBytes.Value, Duplicates: f.duplicates.Value, HotKeys: f.hotKeys.Value,
	}
	if w.Count > 0 && !flags.Changed("duration") {
		w.Duration = 0
	}
	switch {
	case w.Count < 0:
		return w, usagef("--count must not be negative")
	case w.Duration < 0, w.Duration == 0 && w.Count == 0:
		return w, usagef("--duration must be above zero")
	case w.Duplicates > 0 && w.HotKeys > 0:
		return w, usagef("--duplicates and --hot-keys exclude each other")
	}
	return w, nil
}

func (f *benchFlags) run(ctx context.Context, conn *connection, w load.Workload, stdout, stderr io.Writer) error {
	opts, err := conn.options()
	if err != nil {
		return err
	}
	// A call that fails here fails once, and with a message for people.
	err = conn.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.GetJob(ctx, load.Key(w.Run, 0), joboncev1.JobView_JOB_VIEW_BASIC)
		if errors.Is(err, client.ErrJobNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	opts = append(opts, client.WithoutRetry(), client.WithTimeout(conn.timeout))
	if !f.batching {
		opts = append(opts, client.WithoutBatching())
	}
	c, err := client.New(conn.server, opts...)
	if err != nil {
		return &usageError{err}
	}
	defer c.Close()
	mode := joboncev1.WorkMode(joboncev1.WorkMode_value["WORK_MODE_"+strings.ToUpper(f.mode.Value)])
	l, err := load.New(load.Service{Client: c, Mode: mode, Lease: client.DefaultLease}, w, load.Reason)
	if err != nil {
		return &usageError{err}
	}
	stopProgress := showProgress(l, w, stderr)
	r := l.Run(ctx)
	stopProgress()
	if err := printBench(stdout, conn.output.Value, w, r); err != nil {
		return err
	}
	switch {
	case r.Ops == 0 && r.FirstError != nil:
		return conn.explain(r.FirstError, "it may be recorded")
	case r.Failed() == 0 && ctx.Err() == nil && r.Firsts != r.Keys:
		return fmt.Errorf("the service answered %d first deliveries for %d jobs", r.Firsts, r.Keys)
	}
	return nil
}

// benchSummary is what -o json prints.
type benchSummary struct {
	Run        string           `json:"run"`
	Callers    int              `json:"callers"`
	BodyBytes  int              `json:"bodyBytes"`
	Seconds    float64          `json:"seconds"`
	Answered   int64            `json:"answered"`
	Rate       float64          `json:"rate"`
	Firsts     int64            `json:"firsts"`
	Duplicates int64            `json:"duplicates"`
	P50Millis  float64          `json:"p50Millis"`
	P99Millis  float64          `json:"p99Millis"`
	MaxMillis  float64          `json:"maxMillis"`
	Failed     int64            `json:"failed"`
	Errors     map[string]int64 `json:"errors"`
}

func printBench(out io.Writer, format string, w load.Workload, r load.Result) error {
	if format == outputJSON {
		return json.NewEncoder(out).Encode(benchSummary{
			Run: w.Run, Callers: w.Callers, BodyBytes: w.BodyBytes, Seconds: r.Elapsed.Seconds(), Answered: r.Ops, Rate: r.Rate(),
			Firsts: r.Firsts, Duplicates: r.Duplicates, P50Millis: millis(r.P50), P99Millis: millis(r.P99), MaxMillis: millis(r.Max),
			Failed: r.Failed(), Errors: r.Errors,
		})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "run: %s\n", w.Run)
	fmt.Fprintf(&b, "answered: %d in %.1f s, %.0f a second\n", r.Ops, r.Elapsed.Seconds(), r.Rate())
	fmt.Fprintf(&b, "first: %d\nduplicate: %d\n", r.Firsts, r.Duplicates)
	fmt.Fprintf(&b, "p50: %.2f ms\np99: %.2f ms\nmax: %.2f ms\n", millis(r.P50), millis(r.P99), millis(r.Max))
	fmt.Fprintf(&b, "errors: %d\n", r.Failed())
	for _, reason := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, "  %s: %d\n", printable(reason), r.Errors[reason])
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
