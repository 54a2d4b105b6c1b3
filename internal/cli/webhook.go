package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/telemetry"
)

const defaultWebhookAddress = "127.0.0.1:8080"

// webhookConfig is what the flags of webhook set.
type webhookConfig struct {
	listen, opsListen string
	cert, key         string
	minVersion        config.Choice
	proxies           []string
	maxBody           config.IntRange
	maxHeader         config.IntRange
	maxRequests       config.IntRange
	maxConns          config.IntRange
	readTimeout       time.Duration
	shutdownTimeout   time.Duration
	log               logConfig
}

const webhookHelp = `The configuration file says where webhooks come from:

  webhook:
    listen: 0.0.0.0:8080
    sources:
      - name: stripe                # stands before the ids of its jobs, as in stripe:evt_1
        provider: stripe            # what is known of the sender; docs/webhooks.md lists them
        path: /hooks/stripe         # /stripe when it is left out
        secrets_files: [/run/secrets/stripe]
      - name: shop                  # a sender of one's own
        signature: {kind: hmac, header: X-Signature, template: "{body}", encoding: hex}
        secrets_env: [SHOP_SECRET]
        job_id: item.order.id
        when: item.state in ["paid", "failed"]

Expressions are CEL; docs/webhooks.md has all keys, and what expressions can read.`

func newWebhook() *cobra.Command {
	cfg, keys := newWebhookConfig()
	conn, connKeys := newConnection()
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Receive webhooks over HTTP and record them",
		Long: `Receives webhooks of known and of other senders over HTTP, checks their signatures, records each event as QUEUED work, and answers
once it is durable. What was not recorded is answered so that the sender delivers it again. Workers do the work: jobonce worker,
or a program with the Go client.

` + webhookHelp + `

Secrets in files, and the certificate, are read again when they change. Runs until SIGTERM or SIGINT, then answers what is
under way.`,
		Example: `  jobonce webhook --config jobonce.yaml
  jobonce webhook test --config jobonce.yaml --source stripe < request.http`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outliveTerminal()
			sources, err := webhookSources(cmd.Flags())
			if err != nil {
				return err
			}
			return runWebhook(cmd.Context(), cfg, sources, conn, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configured(cmd, "webhook", keys)
	conn.addTo(cmd, connKeys)
	cmd.AddCommand(newWebhookTest())
	return cmd
}

func newWebhookConfig() (*webhookConfig, *pflag.FlagSet) {
	cfg := &webhookConfig{
		minVersion:  config.Choice{Value: "1.2", Words: []string{"1.2", "1.3"}},
		maxBody:     config.IntRange{Value: job.DefaultMaxBodyBytes, Min: 1, Max: job.MaxBodyBytes},
		maxHeader:   config.IntRange{Value: frontend.DefaultMaxHeader, Min: 4 << 10, Max: 1 << 20},
		maxRequests: config.IntRange{Value: frontend.DefaultMaxRequests, Min: 1, Max: 1 << 16},
		maxConns:    config.IntRange{Value: frontend.DefaultMaxConnections, Min: 1, Max: 1 << 20},
	}
	keys := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	keys.SortFlags = false
	keys.StringVar(&cfg.listen, "listen", defaultWebhookAddress, "`address` to receive webhooks on: HOST:PORT, with host 0.0.0.0 or [::] on every interface,\n"+
		"or unix:PATH; the signature is what keeps strangers out")
	keys.StringVar(&cfg.cert, "tls-cert", "", "PEM `file` of the certificate, with those between it and the authority; needs --tls-key")
	keys.StringVar(&cfg.key, "tls-key", "", "PEM `file` of the certificate's key")
	keys.Var(&cfg.minVersion, "tls-min-version", "oldest version of TLS to speak")
	keys.StringSliceVar(&cfg.proxies, "trusted-proxies", nil, "`networks`, such as 10.0.0.0/8, of proxies whose X-Forwarded-Proto and X-Forwarded-Host are\n"+
		"believed, for senders that sign the URL; several with commas between them")
	keys.StringVar(&cfg.opsListen, "ops-listen", "", "`address` of /metrics, /livez and /readyz over HTTP, such as 127.0.0.1:9091;\n"+
		"without authentication; off when not given")
	keys.Var(&cfg.maxBody, "max-payload-bytes", fmt.Sprintf("largest body, at most %d; the service must take as much", job.MaxBodyBytes))
	keys.Var(&cfg.maxHeader, "max-header-bytes", "most bytes of a request's headers; more are answered 431")
	keys.Var(&cfg.maxRequests, "max-requests", "most requests under way; more are answered 503")
	keys.Var(&cfg.maxConns, "max-connections", "most connections that are open; more are closed at once")
	keys.DurationVar(&cfg.readTimeout, "read-timeout", frontend.DefaultReadTimeout, "how long the headers of a request may take to come, and then its body")
	keys.DurationVar(&cfg.shutdownTimeout, "shutdown-timeout", frontend.DefaultShutdownTimeout, "how long requests under way may go on once the command is to end")
	cfg.log.declare(keys)
	return cfg, keys
}

// webhookSources reads the sources from the configuration file.
func webhookSources(flags *pflag.FlagSet) ([]frontend.Source, error) {
	path := flags.Lookup(config.FileFlag).Value.String()
	if path == "" {
		return nil, usagef("needs --config, a file that says where webhooks come from; --help shows one")
	}
	return readSources(path)
}

func readSources(path string) ([]frontend.Source, error) {
	node, err := config.Structure(path, "webhook", "sources")
	if err != nil {
		return nil, &usageError{err}
	}
	if node == nil {
		return nil, usagef("%s has no webhook.sources, which say where webhooks come from; --help shows some", path)
	}
	sources, err := frontend.Parse(path, node)
	if err != nil {
		return nil, &usageError{err}
	}
	return sources, nil
}

// check finds flags that do not go together, and those out of range.
func (c *webhookConfig) check() (proxies []netip.Prefix, err error) {
	switch {
	case (c.cert == "") != (c.key == ""):
		return nil, usagef("--tls-cert and --tls-key go together")
	case c.readTimeout <= 0:
		return nil, usagef("--read-timeout must be above zero")
	case c.shutdownTimeout <= 0:
		return nil, usagef("--shutdown-timeout must be above zero")
	}
	for _, text := range c.proxies {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil {
				return nil, usagef("--trusted-proxies: %q is neither a network, such as 10.0.0.0/8, nor an address", text)
			}
			p = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
		proxies = append(proxies, p.Masked())
	}
	return proxies, nil
}

// runWebhook receives webhooks until ctx ends.
func runWebhook(ctx context.Context, cfg *webhookConfig, sources []frontend.Source, conn *connection, stdout, stderr io.Writer) (err error) {
	proxies, err := cfg.check()
	if err != nil {
		return err
	}
	logger := cfg.log.logger(stderr)
	front := frontend.Config{
		Sources: sources, MaxBody: cfg.maxBody.Value, MaxHeader: cfg.maxHeader.Value, MaxRequests: cfg.maxRequests.Value, MaxConnections: cfg.maxConns.Value,
		ReadTimeout: cfg.readTimeout, ShutdownTimeout: cfg.shutdownTimeout, TrustedProxies: proxies, Logger: logger,
	}
	certificates, err := cfg.certificates(logger)
	if err != nil {
		return err
	}
	if certificates != nil {
		front.TLS = certificates.HTTP()
	}
	tracing := telemetry.NewTracing(ctx, "jobonce-webhook", build(), logger)
	defer closeTracing(tracing, logger)
	front.Tracer = tracing.Tracer()
	jobs, err := conn.open(traced(tracing)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close()) }()
	registry := telemetry.NewRegistry(build())
	front.Metrics = frontend.NewMetrics(registry)
	if certificates != nil {
		front.Metrics.WatchCertificate(certificates.Expires)
	}
	f, err := frontend.New(jobs, front)
	if err != nil {
		return &usageError{err}
	}
	lis, err := listen(ctx, "--listen", cfg.listen, privateSocket)
	if err != nil {
		return err
	}
	defer lis.Close() // for when it does not come to serving
	group, serving := errgroup.WithContext(ctx)
	endOps, err := openOps(serving, cfg.opsListen, registry, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endOps()) }() // It tells of the frontend to its end, so it ends last.
	group.Go(func() error { return f.Run(serving, lis) })
	if certificates != nil {
		group.Go(func() error {
			certificates.Run(serving)
			return nil
		})
	}
	if _, err := fmt.Fprintf(stdout, "jobonce webhook on %s, %s, recording at %s\n", shownAddress(lis), counted(len(sources), "source"), conn.server); err != nil {
		logger.Warn("the line that says that webhooks are received could not be written; it goes on without", "error", err)
	}
	return group.Wait()
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

func (c *webhookConfig) certificates(logger *slog.Logger) (*auth.Certificates, error) {
	if c.cert == "" {
		return nil, nil
	}
	files := auth.CertificateFiles{Cert: c.cert, Key: c.key, MinVersion: tls.VersionTLS12}
	if c.minVersion.Value == "1.3" {
		files.MinVersion = tls.VersionTLS13
	}
	certificates, err := auth.LoadCertificates(files, logger)
	if err != nil {
		return nil, &hintedError{err, "the flags are --tls-cert and --tls-key"}
	}
	return certificates, nil
}

// nowhere is a service that records nothing.
type nowhere struct{ webhook.Jobs }
