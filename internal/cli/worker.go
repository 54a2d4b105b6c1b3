package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/runner"
	"github.com/jobonce/jobonce/internal/telemetry"
)

// The defaults of worker that are not the client's.
const (
	defaultWorkTimeout = 30 * time.Second
	defaultKillAfter   = 10 * time.Second
	defaultDeadExit    = 65 // EX_DATAERR of sysexits.h
)

// workerConfig is what the flags of worker set.
type workerConfig struct {
	forward     string
	secretFiles []string
	result      config.Choice
	deadOn      []int
	command     []string
	deadExit    []int
	killAfter   time.Duration
	worker      client.WorkerConfig
	timeout     time.Duration
	rate        float64
	opsListen   string
	log         logConfig
}

func newWorker() *cobra.Command {
	cfg, keys := newWorkerConfig()
	conn, connKeys := newConnection()
	cmd := &cobra.Command{
		Use:   "worker (--forward URL | --exec COMMAND [-- ARGUMENT...])",
		Short: "Do the work of jobs by an HTTP service or a command",
		Long: `Claims work that is due, and hands each job to a program that knows nothing of JobOnce: --forward posts it to a URL, where an
answer of 2xx completes it; --exec runs a command with the body on its standard input, where exit code 0 completes it. Everything
else gives the work back, to be tried again after a pause that grows from 2 seconds to an hour. docs/worker.md says what is sent,
and what each status and each exit code does.

The lease of a job is renewed while its work goes on. The generation that comes along only grows: what must not be done by a
worker that has stalled keeps the highest it has seen, and refuses lower ones; docs/fencing.md shows how.

When connections are refused, or a service answers 502, 503 or 504, to several jobs in a row, claiming pauses until one job at a
time finds out that it is back, and no attempt counts meanwhile.

Runs until SIGTERM or SIGINT, then lets the jobs under way finish, and gives back what it cannot finish.`,
		Example: `  jobonce worker --forward http://127.0.0.1:8080/jobs --secret-file secret.txt
  jobonce worker --forward https://shop.example.com/jobs --dead-on 410,422 --concurrency 4
  jobonce worker --exec ./ship.sh --event order.paid
  jobonce worker --exec python3 -- ship.py --fast`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.command = append(slices.Clip(cfg.command), args...)
			outliveTerminal()
			return runWorker(cmd.Context(), cfg, conn, keys, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configured(cmd, "worker", keys)
	conn.addTo(cmd, connKeys)
	return cmd
}

func newWorkerConfig() (*workerConfig, *pflag.FlagSet) {
	cfg := &workerConfig{
		result: config.Choice{Value: "none", Words: []string{"none", "body"}},
	}
	keys := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	keys.SortFlags = false
	keys.StringVar(&cfg.forward, "forward", "", "`URL` to which each job is posted")
	keys.StringArrayVar(&cfg.command, "exec", nil, "`command` that is run for each job, without a shell; its arguments stand at the end, after --,\n"+
		"or come by further --exec")
	keys.StringVar(&cfg.worker.JobIDPrefix, "prefix", "", "only jobs whose id begins with this `prefix`, which ends in a colon, such as shop:")
	keys.StringArrayVar(&cfg.worker.Events, "event", nil, "only jobs with this `event`; may be given several times")
	keys.IntVar(&cfg.worker.Concurrency, "concurrency", client.DefaultConcurrency, "how many jobs are worked on at once")
	leaseFlag(keys, &cfg.worker.Lease)
	keys.DurationVar(&cfg.timeout, "timeout", defaultWorkTimeout, "how long the work of one job may take")
	keys.Float64Var(&cfg.rate, "rate", 0, "how many jobs a second begin at most, such as 0.5; 0 is no limit")
	keys.StringArrayVar(&cfg.secretFiles, "secret-file", nil, "with --forward: `file` with the secret that signs what is sent, in base64; several while the\n"+
		"secret is changed; without, nothing is signed")
	keys.Var(&cfg.result, "result", "with --forward: what is stored as the job's result")
	keys.IntSliceVar(&cfg.deadOn, "dead-on", nil, "with --forward: `statuses` that give the job up, such as 410,422")
	keys.IntSliceVar(&cfg.deadExit, "dead-exit", []int{defaultDeadExit}, "with --exec: exit `codes` that give the job up")
	keys.DurationVar(&cfg.killAfter, "kill-after", defaultKillAfter, "with --exec: how long a command may go on after SIGTERM before it is killed")
	keys.DurationVar(&cfg.worker.ShutdownTimeout, "shutdown-timeout", client.DefaultShutdownTimeout, "how long the jobs under way may go on once the worker is to end")
	keys.StringVar(&cfg.worker.WorkerID, "worker-id", "", "`name` of the worker, for the service's log")
	keys.StringVar(&cfg.opsListen, "ops-listen", "", "`address` of /metrics, /livez and /readyz over HTTP, such as 127.0.0.1:9093;\n"+
		"without authentication; off when not given")
	cfg.log.declare(keys)
	return cfg, keys
}

// check finds flags that do not go together.
func (c *workerConfig) check(flags *pflag.FlagSet) error {
	given := func(names ...string) string {
		for _, name := range names {
			if flags.Changed(name) {
				return name
			}
		}
		return ""
	}
	forwards := c.forward != ""
	switch {
	case forwards == (len(c.command) > 0):
		return usagef("needs either --forward or --exec")
	case forwards && given("dead-exit", "kill-after") != "":
		return usagef("--%s goes with --exec", given("dead-exit", "kill-after"))
	case !forwards && given("secret-file", "result", "dead-on") != "":
		return usagef("--%s goes with --forward", given("secret-file", "result", "dead-on"))
	case c.worker.Concurrency < 1:
		return usagef("--concurrency must be above zero")
	case c.worker.Lease == 0: // The client would take its default.
		return usagef("--lease is 0s, it must be %v to %v", job.MinLease, job.MaxLease)
	case c.timeout <= 0:
		return usagef("--timeout must be above zero")
	case c.killAfter <= 0:
		return usagef("--kill-after must be above zero")
	case c.worker.ShutdownTimeout <= 0:
		return usagef("--shutdown-timeout must be above zero")
	case c.rate < 0:
		return usagef("--rate must not be negative")
	}
	for _, code := range c.deadOn {
		if code < 300 || code > 599 {
			return usagef("--dead-on: %d is no status from 300 to 599", code)
		}
	}
	for _, code := range c.deadExit {
		if code < 1 || code > 255 {
			return usagef("--dead-exit: %d is no exit code from 1 to 255", code)
		}
	}
	return nil
}

// work is the function that does the work, and what it is called in the line that says that the worker runs.
func (c *workerConfig) work() (fn client.WorkFunc, name string, err error) {
	if c.forward == "" {
		fn, err := runner.NewExec(runner.ExecConfig{
			Command: c.command, Timeout: c.timeout, KillAfter: c.killAfter, DeadExit: c.deadExit,
		})
		if err != nil {
			return nil, "", usagef("--exec: %w", err)
		}
		return fn, "runs " + c.command[0], nil
	}
	var secrets []string
	for _, path := range c.secretFiles {
		secret, err := readFile(path, 4<<10)
		if err != nil {
			return nil, "", fmt.Errorf("cannot read the secret: %w", err)
		}
		secrets = append(secrets, string(bytes.TrimSpace(secret)))
	}
	fn, err = runner.NewForward(runner.ForwardConfig{
		URL: c.forward, Secrets: secrets, Timeout: c.timeout, ResultBody: c.result.Value == "body", DeadOn: c.deadOn,
		Idle: c.worker.Concurrency, UserAgent: "jobonce-worker/" + readVersion().Version,
	})
	if err != nil {
		text := err.Error()
		for i, path := range c.secretFiles {
			text = strings.Replace(text, fmt.Sprintf("secrets[%d]", i), "--secret-file: the secret in "+path, 1)
		}
		return nil, "", usagef("%s", strings.Replace(text, "URL ", "--forward ", 1))
	}
	u, _ := url.Parse(c.forward)
	u.RawQuery = "" // It may hold a secret.
	return fn, "forwards to " + u.String(), nil
}

// runWorker works until ctx ends.
func runWorker(ctx context.Context, cfg *workerConfig, conn *connection, flags *pflag.FlagSet, stdout, stderr io.Writer) (err error) {
	if err := cfg.check(flags); err != nil {
		return err
	}
	fn, name, err := cfg.work()
	if err != nil {
		return err
	}
	if cfg.rate > 0 {
		fn = runner.Limit(fn, rate.NewLimiter(rate.Limit(cfg.rate), 1), ctx)
	}
	cfg.worker.Logger = cfg.log.logger(stderr)
	tracing := telemetry.NewTracing(ctx, "jobonce-worker", build(), cfg.worker.Logger)
	defer closeTracing(tracing, cfg.worker.Logger)
	if tracing != nil {
		fn = runner.Trace(fn, tracing.Tracer())
	}
	registry := telemetry.NewRegistry(build())
	metrics := runner.NewMetrics(registry)
	fn, cfg.worker.Ended = metrics.Watch(fn), metrics.Ended
	cl, err := conn.open()
	if err != nil {
		return err
	}
	w, err := client.NewWorker(cl, cfg.worker, fn)
	if err != nil {
		_ = cl.Close()
		return usagef("%s", strings.NewReplacer("client: WorkerConfig.Lease", "--lease", "client: WorkerConfig.JobIDPrefix", "--prefix").Replace(err.Error()))
	}
	endOps, err := openOps(ctx, cfg.opsListen, registry, cfg.worker.Logger)
	if err != nil {
		_ = cl.Close()
		return err
	}
	defer func() { err = errors.Join(err, endOps()) }() // It tells of the work to its end, so it ends last.
	if _, err := fmt.Fprintf(stdout, "jobonce worker %s, with work from %s\n", name, conn.server); err != nil {
		cfg.worker.Logger.Warn("the line that says that the worker runs could not be written; it goes on without", "error", err)
	}
	return errors.Join(conn.explain(w.Run(ctx), ""), cl.Close())
}
