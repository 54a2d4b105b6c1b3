package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

// inboxConfig is what the sections of the file say.
type inboxConfig struct {
	serve   *serveConfig
	webhook *webhookConfig
	sources []frontend.Source
	worker  *workerConfig
	// workerKeys are the flags of the section worker, which say what was set.
	workerKeys *pflag.FlagSet
}

func newInbox() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Receive webhooks and do their work, all in one process",
		Long: `Runs serve, webhook and worker in one process, from the sections of one file, for those who have one machine: webhooks come in,
are recorded in the data directory, and each is forwarded to a URL or given to a command, until it is done.

  webhook:
    listen: 0.0.0.0:8080
    sources:
      - {name: stripe, provider: stripe, secrets_files: [/run/secrets/stripe]}
  worker:
    forward: http://127.0.0.1:3000/jobs
  serve:
    data-dir: /var/lib/jobonce

The sections have the flags of those commands as keys. The gRPC service listens on this machine alone, by default on
` + defaultAddress + `, so that jobonce get and the others work meanwhile. Of the environment, only JOBONCE_CONFIG is read.

On SIGTERM or SIGINT no more webhooks are taken; then the worker finishes what it is at, and gives back what it cannot finish;
then the service ends. When one of the three ends by itself, so do the others.`,
		Example: `  jobonce inbox --config inbox.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			relaxGC()
			outliveTerminal()
			cfg, err := readInbox(cmd.Flags().Lookup(config.FileFlag).Value.String())
			if err != nil {
				return err
			}
			return inbox(cmd.Context(), cfg, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().String(config.FileFlag, "", "YAML `file` whose sections \"serve\", \"webhook\" and \"worker\" have the flags of those commands")
	// The file is read by readInbox, section by section.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.Environment(cmd.Flags()); err != nil {
			return &usageError{err}
		}
		if cmd.Flags().Lookup(config.FileFlag).Value.String() == "" {
			return usagef("needs --config, a file that says where webhooks come from and who does the work; --help shows one")
		}
		return nil
	}
	return cmd
}

// readInbox reads the sections of the file, and checks what does not depend on what is running.
func readInbox(path string) (*inboxConfig, error) {
	cfg := &inboxConfig{}
	var serveKeys, webhookKeys *pflag.FlagSet
	cfg.serve, serveKeys = newServeConfig()
	cfg.webhook, webhookKeys = newWebhookConfig()
	cfg.worker, cfg.workerKeys = newWorkerConfig()
	for section, keys := range map[string]*pflag.FlagSet{"serve": serveKeys, "webhook": webhookKeys, "worker": cfg.workerKeys} {
		flags := pflag.NewFlagSet(section, pflag.ContinueOnError)
		flags.AddFlagSet(keys)
		flags.String(config.FileFlag, path, "")
		nothing := func(string) (string, bool) { return "", false } // One variable cannot be meant for all three.
		if err := config.Apply(flags, keys, section, nothing); err != nil {
			return nil, &usageError{err}
		}
	}
	var err error
	if cfg.sources, err = readSources(path); err != nil {
		return nil, err
	}
	if err := cfg.worker.check(cfg.workerKeys); err != nil {
		return nil, fmt.Errorf("%s: worker: %w", path, err)
	}
	for _, name := range []string{"tls-cert", "tls-key", "auth-file", "insecure"} {
		if serveKeys.Changed(name) {
			return nil, usagef("%s: serve.%s is not for an inbox, whose service is reached from this machine alone: for a network, run serve, "+
				"webhook and worker", path, name)
		}
	}
	if !staysHere(cfg.serve.listen) {
		return nil, usagef("%s: serve.listen is %s, and the service of an inbox listens on this machine alone: for a network, run serve, "+
			"webhook and worker", path, cfg.serve.listen)
	}
	return cfg, cfg.serve.check(serveKeys)
}

// staysHere tells whether an address to listen on is reached from this machine alone.
func staysHere(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// stage is a part of the inbox that runs.
type stage struct {
	name  string
	stop  context.CancelFunc
	ended chan error
}

// inbox runs serve, then webhook and worker beside it, until ctx or one of them ends, and stops them in order.
func inbox(ctx context.Context, cfg *inboxConfig, stdout, stderr io.Writer) error {
	if !cfg.serve.store.mongo {
		// Before the ports, which a second one finds taken too.
		if err := sqlitestore.Free(cfg.serve.store.dataDir); errors.Is(err, sqlitestore.ErrInUse) {
			return err
		}
	}
	said := make(chan struct{}, 3)
	stdout, stderr = &wholeWrites{w: stdout, wrote: said}, &wholeWrites{w: stderr}
	ended := make(chan struct{}, 3)
	begin := func(name string, run func(context.Context) error) *stage {
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		s := &stage{name, stop, make(chan error, 1)}
		go func() {
			s.ended <- run(ctx)
			ended <- struct{}{}
		}()
		return s
	}
	ready := make(chan net.Addr, 1)
	cfg.serve.ready = func(a net.Addr) { ready <- a }
	stages := []*stage{begin("serve", func(ctx context.Context) error { return serve(ctx, cfg.serve, stdout, stderr) })}
	select {
	case <-ctx.Done():
	case <-ended:
	case at := <-ready:
		conn, _ := newConnection()
		conn.server = at.String()
		if at.Network() == "unix" {
			conn.server = "unix:" + conn.server
		}
		<-said
		stages = append(stages, begin("worker", func(ctx context.Context) error {
			return runWorker(ctx, cfg.worker, conn, cfg.workerKeys, stdout, stderr)
		}))
		select {
		case <-ctx.Done():
		case <-ended:
		case <-said: // so that the lines stand in order, and nothing comes in that nobody works on
			stages = append(stages, begin("webhook", func(ctx context.Context) error {
				return runWebhook(ctx, cfg.webhook, cfg.sources, conn, stdout, stderr)
			}))
			select {
			case <-ctx.Done():
			case <-ended:
			}
		}
	}
	var errs []error
	for i := len(stages) - 1; i >= 0; i-- {
		stages[i].stop()
		if err := <-stages[i].ended; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", stages[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// wholeWrites lets several write to one place without mixing what they write.
type wholeWrites struct {
	mu sync.Mutex
	w  io.Writer
	// wrote gets a sign of each write. nil: it does not.
	wrote chan<- struct{}
}

func (w *wholeWrites) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrote != nil {
		defer func() { w.wrote <- struct{}{} }()
	}
	return w.w.Write(b)
}
