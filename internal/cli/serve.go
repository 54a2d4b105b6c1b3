package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/retention"
	"github.com/jobonce/jobonce/internal/telemetry"
	"github.com/jobonce/jobonce/server"
)

const defaultAddress = "127.0.0.1:50051"

// serveConfig is what the flags of serve set.
type serveConfig struct {
	listen      string
	httpListen  string
	httpHosts   []string
	uiListen    string
	opsListen   string
	adminListen string // the old name of opsListen
	listenMode  string
	security    securityConfig
	store       storeConfig
	maxBody     config.IntRange
	maxConns    config.IntRange
	maxConnAge  time.Duration
	dueAlert    time.Duration
	retention   retention.Policy
	force       bool
	logCalls    bool
	// ready is told where the service listens, once it serves. nil: nobody is.
	ready func(net.Addr)
	log   logConfig
}

func newServe() *cobra.Command {
	cfg, keys := newServeConfig()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: `Runs the gRPC service until SIGTERM or SIGINT, then finishes the calls under way. A second signal ends it at once.
SIGHUP is ignored: there is nothing to reload, and the service outlives the terminal that started it. One line on standard
output says that the service is ready; the log goes to standard error. When nobody reads either any more, or they cannot be
written, the service goes on without.

` + storeHelp,
		Example: `  jobonce serve
  jobonce serve --listen 127.0.0.1:0 --data-dir /var/lib/jobonce --log-format json
  jobonce serve --mongodb-uri 'mongodb://127.0.0.1:27017/?replicaSet=rs0' --ops-listen 127.0.0.1:9090
  jobonce serve --mongodb-uri-file /run/secrets/mongodb-uri
  jobonce serve --listen 0.0.0.0:50051 --tls-cert tls.crt --tls-key tls.key --auth-file auth.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			relaxGC()
			outliveTerminal()
			if err := cfg.check(keys); err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configured(cmd, "serve", keys)
	return cmd
}

func newServeConfig() (*serveConfig, *pflag.FlagSet) {
	cfg := &serveConfig{
		security: newSecurityConfig(),
		maxBody:  config.IntRange{Value: job.DefaultMaxBodyBytes, Min: 1, Max: job.MaxBodyBytes},
		maxConns: config.IntRange{Value: server.DefaultMaxConnections, Min: 1, Max: 1 << 20},
	}
	keys := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	keys.SortFlags = false
	keys.StringVar(&cfg.listen, "listen", defaultAddress, "`address` of the gRPC service: HOST:PORT, with port 0 one that the system chooses, and with\n"+
		"host 0.0.0.0 or [::] on every interface, which needs --tls-cert, --tls-key and --auth-file; or\n"+
		"unix:PATH, a socket for this user alone")
	keys.StringVar(&cfg.listenMode, "listen-mode", "0600", "octal `mode` of the socket of unix:PATH, which says who can open it")
	keys.StringVar(&cfg.httpListen, "http-listen", "", "`address` of the same service over HTTP and JSON (docs/http.md), with the same certificate and callers;\n"+
		"off when not given")
	keys.StringSliceVar(&cfg.httpHosts, "http-hosts", nil, "`names` by which HTTP requests may call the service and the page, beside localhost, addresses and those of the\n"+
		"certificate; several with commas between them")
	keys.StringVar(&cfg.uiListen, "ui-listen", "", "`address` of the operators' page over HTTP (docs/operations.md), such as 127.0.0.1:8081, with the same\n"+
		"certificate and callers; off when not given")
	cfg.security.declare(keys)
	cfg.store.declare(keys)
	keys.StringVar(&cfg.opsListen, "ops-listen", "", "`address` of /metrics, /livez and /readyz over HTTP, such as 127.0.0.1:9090;\n"+
		"without authentication; off when not given")
	keys.StringVar(&cfg.adminListen, "admin-listen", "", "the old name of --ops-listen, deprecated; an `address`")
	keys.Var(&cfg.maxBody, "max-payload-bytes", fmt.Sprintf("largest body of a webhook, at most %d", job.MaxBodyBytes))
	keys.Var(&cfg.maxConns, "max-connections", "most connections that are open over gRPC, and as many over HTTP; more are closed at once")
	keys.DurationVar(&cfg.maxConnAge, "max-connection-age", server.DefaultMaxConnectionAge, "how long a connection is used, give or take a tenth, before its client is asked to make a new one, so\n"+
		"that new instances get their share")
	keys.DurationVar(&cfg.retention.Payload, "payload-retention", 0, "drop the payloads of finished jobs that nothing has happened to for so long,\nand keep the decision; 0 for never")
	keys.DurationVar(&cfg.retention.Job, "job-retention", 0, "remove finished jobs that nothing has happened to for so long: a delivery that\ncomes later is FIRST, and starts the work again; 0 for never")
	keys.DurationVar(&cfg.retention.Dead, "dead-retention", 0, "count jobs that died as finished after so long; 0 for never")
	keys.BoolVar(&cfg.force, "force", false, "take a --job-retention under 720h, 30 days, within which providers deliver again")
	keys.DurationVar(&cfg.dueAlert, "due-alert", 5*time.Minute, "how long work may be due before that is an error in the log, once a minute; 0 for never")
	keys.BoolVar(&cfg.logCalls, "log-calls", false, "log every call, not only failed and slow ones; costs speed")
	cfg.log.declare(keys)
	return cfg, keys
}

// check takes the store and the ops listener from the flags that name them, and refuses what cannot be meant. Its errors name a
// flag as whoever set it wrote it.
func (c *serveConfig) check(keys *pflag.FlagSet) error {
	if err := c.store.choose(keys); err != nil {
		return err
	}
	if err := c.chooseOps(keys); err != nil {
		return err
	}
	name := func(flag string) string { return config.OriginOf(keys.Lookup(flag)).Name }
	if err := c.checkRetention(name); err != nil {
		return err
	}
	if c.dueAlert < 0 {
		return usagef("%s must not be negative", name("due-alert"))
	}
	if c.maxConnAge < time.Second {
		return usagef("%s must be at least 1s", name("max-connection-age"))
	}
	return c.security.check()
}

// minJobRetention is how long finished jobs are kept at least, unless it is forced: providers deliver again for days, and some
// by hand for weeks.
const minJobRetention = 30 * 24 * time.Hour

func (c *serveConfig) checkRetention(name func(flag string) string) error {
	for flag, age := range map[string]time.Duration{"payload": c.retention.Payload, "job": c.retention.Job, "dead": c.retention.Dead} {
		if age < 0 {
			return usagef("%s must not be negative", name(flag+"-retention"))
		}
	}
	age := c.retention.Job
	if age > 0 && age < minJobRetention && !c.force {
		return usagef("%s %v is under 30 days: a delivery that comes again after that would be FIRST, and start the work once more; "+
			"if that is to be so, set force", name("job-retention"), age)
	}
	if age > 0 && age < c.retention.Payload {
		return usagef("%s %v is shorter than %s %v: a job goes with its payload, so that no payload would be kept for so long; "+
			"make the first one longer, or leave the other out", name("job-retention"), age, name("payload-retention"), c.retention.Payload)
	}
	return nil
}

// chooseOps takes the address of the ops listener from the flag or from its old name, whichever is set.
func (c *serveConfig) chooseOps(flags *pflag.FlagSet) error {
	now, old := config.OriginOf(flags.Lookup("ops-listen")), config.OriginOf(flags.Lookup("admin-listen"))
	switch {
	case old.Layer == config.FromDefault:
		return nil
	case now.Layer != config.FromDefault && c.opsListen != c.adminListen:
		return usagef("%s is %s, but %s, its old name, is %s; leave the old one out", now.Name, c.opsListen, old.Name, c.adminListen)
	}
	c.opsListen = c.adminListen
	return nil
}

// serve runs the service until ctx ends. It binds the ports before it touches the store, so that a second start by
// mistake changes nothing, and takes calls before the store is ready: they are told so.
func serve(ctx context.Context, cfg *serveConfig, stdout, stderr io.Writer) (err error) {
	logger := cfg.log.logger(stderr)
	protected, err := cfg.security.open(logger)
	if err != nil {
		return err
	}
	mode, err := strconv.ParseUint(cfg.listenMode, 8, 9)
	if err != nil {
		return usagef("--listen-mode %s is not an octal mode, such as 0660", cfg.listenMode)
	}
	lis, err := listen(ctx, "--listen", cfg.listen, os.FileMode(mode))
	if err != nil {
		return err
	}
	defer lis.Close() // for when it does not come to serving
	if err := cfg.security.checkListener("--listen", lis.Addr(), logger); err != nil {
		return err
	}
	if len(cfg.httpHosts) > 0 && cfg.httpListen == "" && cfg.uiListen == "" {
		return usagef("--http-hosts needs --http-listen or --ui-listen")
	}
	door, err := cfg.listenWeb(ctx, "--http-listen", cfg.httpListen, logger)
	if err != nil {
		return err
	}
	defer door.close()
	page, err := cfg.listenWeb(ctx, "--ui-listen", cfg.uiListen, logger)
	if err != nil {
		return err
	}
	defer page.close()
	ops, err := newOps(ctx, cfg.opsListen)
	if err != nil {
		return err
	}
	defer ops.close()
	if cfg.security.metricsAuth {
		if ops == nil {
			return usagef("--metrics-auth needs --ops-listen")
		}
		ops.protect(protected.callers)
	}
	tracing := telemetry.NewTracing(ctx, "jobonce", build(), logger)
	defer closeTracing(tracing, logger)
	store, err := cfg.store.open(ctx, watchWork(ops, logger), tracing.Tracer(), logger)
	if err != nil {
		return err
	}

	batches := batch.Config{Lanes: store.lanes, Tracer: tracing.Tracer(), Logger: logger}
	calls := server.Config{
		MaxBodyBytes: cfg.maxBody.Value, MaxConnections: cfg.maxConns.Value, MaxConnectionAge: cfg.maxConnAge,
		LogCalls: cfg.logCalls, Logger: logger, DueAlert: cfg.dueAlert,
		StatsHandler: tracing.ServerHandler(),
		StoreReady:   store.ready, Certificates: protected.certificates, Callers: protected.callers,
	}
	ops.observe(&batches, &calls)
	jobs := batch.New(store.Store, batches)
	defer func() {
		if closeErr := jobs.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closeErr))
		}
	}()
	srv, err := server.New(calls, jobs)
	if err != nil {
		return err
	}
	if err := door.openDoor(cfg, protected, srv, ops, logger); err != nil {
		return err
	}
	if err := page.openPage(cfg, protected, srv, ops, logger); err != nil {
		return err
	}
	logger.Info("listening", "address", lis.Addr().String(), "http_address", door.address(), "ui_address", page.address(), "ops_address", ops.address(), "store", store.name)

	group, serving := errgroup.WithContext(ctx)
	// The ops listener tells of the service to its end, so it ends last.
	keeper := cfg.newKeeper(jobs, store, ops, logger)
	group.Go(func() error {
		select {
		case <-serving.Done():
		case <-srv.Ready():
			keeper.Run(serving)
		}
		return nil
	})
	opsCtx, stopOps := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stopOps()
		return srv.Run(serving, lis)
	})
	group.Go(func() error { return door.run(serving) })
	group.Go(func() error { return page.run(serving) })
	group.Go(func() error {
		protected.run(serving)
		return nil
	})
	ops.watchExpiries(protected)
	group.Go(func() error { return ops.run(opsCtx, serving, srv, jobs, store, logger) })
	group.Go(func() error {
		select {
		case <-serving.Done():
			return nil
		case <-store.broken: // whoever supervises the service is to start it again
			return &codedError{fmt.Errorf("ended, since a restart may mend what is wrong: %w", store.Store.Check(ctx)), exitBroken}
		}
	})
	group.Go(func() error {
		select {
		case <-serving.Done():
			return nil
		case <-srv.Ready():
		}
		if cfg.ready != nil {
			defer cfg.ready(lis.Addr())
		}
		if _, err := fmt.Fprintf(stdout, "jobonce serving on %s%s, %s\n", shownAddress(lis), door.shown(protected), store.name); err != nil {
			logger.Warn("the line that says that the service is ready could not be written; it goes on without", "error", err)
		}
		return nil
	})
	return group.Wait()
}

// newKeeper makes what keeps to the retention, and says what that means.
func (c *serveConfig) newKeeper(jobs *batch.Store, store *openStore, o *ops, logger *slog.Logger) *retention.Keeper {
	if c.retention.Job > 0 {
		logger.Warn("finished jobs are removed: a delivery that comes later is FIRST, and starts the work again", "job_retention", c.retention.Job)
	}
	cfg := retention.Config{Policy: c.retention, Now: time.Now, Logger: logger}
	if store.clockOffset != nil {
		cfg.Now = func() time.Time { return time.Now().Add(store.clockOffset()) }
	}
	if o != nil {
		cfg.Dropped = o.metrics.Dropped
	}
	return retention.New(cfg, jobs)
}

// watchWork logs and counts the jobs that a person has to look at.
func watchWork(o *ops, logger *slog.Logger) job.Watch {
	return func(jobID string, w job.Work) {
		switch died, suspect := w.Notable(); {
		case died:
			logger.Error("a job died: nobody will start its work again", "job_id", jobID, "attempts", w.Attempts, "generation", w.Generation)
			if o != nil {
				o.metrics.Died()
			}
		case suspect:
			logger.Error("a job is suspect: its holders vanish one after the other, and it may be what ends them",
				"job_id", jobID, "lapses", w.Lapses, "attempts", w.Attempts, "generation", w.Generation)
		}
	}
}

// relaxGC lets garbage grow to four times what is in use before it is collected, up to half a gibibyte: the service uses so
// little memory that Go's default collects it many times a second, at a tenth of its CPU time and more. GOGC and GOMEMLIMIT
// in the environment are left as they are.
func relaxGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(512 << 20)
	}
}
