package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/poll"
	"github.com/jobonce/jobonce/internal/telemetry"
)

// pollConfig is what the flags of poll set.
type pollConfig struct {
	opsListen   string
	concurrency config.IntRange
	lease, idle time.Duration
	log         logConfig
}

func newPoll() *cobra.Command {
	cfg := &pollConfig{
		concurrency: config.IntRange{Value: 4, Min: 1, Max: 100},
	}
	keys := pflag.NewFlagSet("poll", pflag.ContinueOnError)
	keys.SortFlags = false
	keys.Var(&cfg.concurrency, "concurrency", "how many jobs to poll at a time, shared evenly among the hosts: as many as these at least, so\n"+
		"that a slow one leaves the others their places")
	keys.DurationVar(&cfg.lease, "lease", time.Minute, "how long nobody else polls a job that this one has: 1s to 1h")
	keys.DurationVar(&cfg.idle, "idle", 5*time.Second, "how long to wait before looking again when nothing is overdue")
	keys.StringVar(&cfg.opsListen, "ops-listen", "", "`address` of /metrics, /livez and /readyz over HTTP, such as 127.0.0.1:9092;\n"+
		"without authentication; off when not given")
	cfg.log.declare(keys)
	conn, connKeys := newConnection()
	cmd := &cobra.Command{
		Use:   "poll",
		Short: "Ask providers about jobs whose webhook is overdue",
		Long: `Asks the provider of each job whose webhook is overdue how the job stands, by a GET of its status URL, until it is over; then records
the answer as QUEUED work, with "poll" as its source. A webhook that comes after all is a duplicate. The configuration file says which
hosts may be asked; every other one is refused, and so are addresses that are not of the public Internet:

  poll:
    hosts:
      - host: provider.example            # or NAME:PORT
        paths: [/v1/jobs/]                # what may be asked: beginnings and whole paths; all when left out
        headers_files:                    # sent to this host alone, and over https alone
          Authorization: /run/secrets/provider
        rate: 5                           # requests a second; 1 when it is left out
        over: body.state in ["done", "failed"]
        event: '"job." + body.state'
        status: body.status
        allow_private: false              # true for a host within your own network

Expressions are CEL, over body (the answer as JSON), text, code (the HTTP status) and header. Redirects are not followed. Retry-After
is heeded; else a job is asked about again after 15 s, and later each time, up to 5 min. Runs until SIGTERM or SIGINT.`,
		Example: `  jobonce poll --config jobonce.yaml
  jobonce poll --config jobonce.yaml --ops-listen 127.0.0.1:9092`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outliveTerminal()
			hosts, err := pollHosts(cmd.Flags())
			if err != nil {
				return err
			}
			return runPoll(cmd.Context(), cfg, hosts, conn, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configured(cmd, "poll", keys)
	conn.addTo(cmd, connKeys)
	return cmd
}

// pollHosts reads the hosts from the configuration file.
func pollHosts(flags *pflag.FlagSet) ([]poll.Host, error) {
	path := flags.Lookup(config.FileFlag).Value.String()
	if path == "" {
		return nil, usagef("needs --config, a file that says which hosts may be asked; --help shows one")
	}
	node, err := config.Structure(path, "poll", "hosts")
	if err != nil {
		return nil, &usageError{err}
	}
	if node == nil {
		return nil, usagef("%s has no poll.hosts, which say whom to ask; --help shows some", path)
	}
	hosts, err := poll.Parse(path, node)
	if err != nil {
		return nil, &usageError{err}
	}
	return hosts, nil
}

// runPoll polls until ctx ends.
func runPoll(ctx context.Context, cfg *pollConfig, hosts []poll.Host, conn *connection, stdout, stderr io.Writer) (err error) {
	logger := cfg.log.logger(stderr)
	registry := telemetry.NewRegistry(build())
	metrics := poll.NewMetrics(registry)
	asker, err := poll.New(hosts, cfg.concurrency.Value, metrics)
	if err != nil {
		return &usageError{err}
	}
	jobs, err := conn.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close()) }()
	poller, err := jobs.NewPoller(asker.Poll, client.PollerConfig{Concurrency: cfg.concurrency.Value, Lease: cfg.lease, Idle: cfg.idle,
		Recorded: metrics.Recorded, Logger: logger})
	if err != nil {
		return &usageError{err}
	}
	endOps, err := openOps(ctx, cfg.opsListen, registry, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endOps()) }()
	if _, err := fmt.Fprintf(stdout, "jobonce polls %s\n", counted(len(hosts), "host")); err != nil {
		logger.Warn("the line that says that the command is ready could not be written; it goes on without", "error", err)
	}
	poller.Run(ctx)
	return nil
}
