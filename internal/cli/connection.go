package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/config"
)

// briefAttempts is how often a call is tried when no --timeout was given: a person who forgot to start the service
// hears of it within a second or so. With a timeout the caller has said how long to go on.
const briefAttempts = 5

// connection is what the commands that call a service have in common.
type connection struct {
	keys *pflag.FlagSet

	server, tokenFile, caCert, cert, key string

	tls     bool
	timeout time.Duration
	output  *config.Choice
}

// newConnection returns the connection together with the flags that set it.
func newConnection() (*connection, *pflag.FlagSet) {
	c := &connection{keys: pflag.NewFlagSet("client", pflag.ContinueOnError), output: newOutput()}
	c.keys.SortFlags = false
	c.keys.StringVar(&c.server, "server", defaultAddress, "`address` of the service: HOST:PORT, or :PORT on this machine, several with commas between\n"+
		"them, or unix:PATH")
	c.keys.DurationVar(&c.timeout, "timeout", client.DefaultTimeout, fmt.Sprintf(
		"how long to go on trying; when not given, at most %d times", briefAttempts))
	c.keys.VarP(c.output, "output", "o", "output format")
	c.keys.StringVar(&c.tokenFile, "token-file", "", "`file` that holds the token to send")
	c.keys.BoolVar(&c.tls, "tls", false, "use TLS, or with --tls=false plaintext; when not given, plaintext to this machine and\nTLS to others")
	c.keys.StringVar(&c.caCert, "ca-cert", "", "PEM `file` of the authorities to trust instead of the system's; implies --tls")
	c.keys.StringVar(&c.cert, "cert", "", "PEM `file` of the client certificate; needs --key, implies --tls")
	c.keys.StringVar(&c.key, "key", "", "PEM `file` of the client certificate's key")
	return c, c.keys
}

// addTo adds the flags that say how to reach the service to a command that runs for long and has a timeout and an output of its
// own. The section "client" of the configuration file sets them.
func (c *connection) addTo(cmd *cobra.Command, keys *pflag.FlagSet) {
	keys.VisitAll(func(f *pflag.Flag) {
		if f.Name != "timeout" && f.Name != "output" {
			cmd.Flags().AddFlag(f)
		}
	})
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := before(cmd, args); err != nil {
			return err
		}
		if err := config.Apply(cmd.Flags(), keys, "client", os.LookupEnv); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// open returns a client for a command that runs for long: it goes on trying.
func (c *connection) open(more ...client.Option) (*client.Client, error) {
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(c.server, append(append(opts, client.WithTimeout(c.timeout), client.WithRetry(client.RetryPolicy{})), more...)...)
	if err != nil {
		return nil, &usageError{err}
	}
	return cl, nil
}

// call makes one call of the service, which changes nothing.
func (c *connection) call(ctx context.Context, do func(context.Context, *client.Client) error) error {
	return c.do(ctx, "", do)
}

// change makes one call that changes something; unsure is what it may have done when that is not known. The command must see
// that its answer cannot be written, to say what is lost.
func (c *connection) change(ctx context.Context, unsure string, do func(context.Context, *client.Client) error) error {
	outliveReaders()
	return c.do(ctx, unsure, do)
}

func (c *connection) do(ctx context.Context, unsure string, do func(context.Context, *client.Client) error) error {
	opts, err := c.options()
	if err != nil {
		return err
	}
	cl, err := client.New(c.server, opts...)
	if err != nil {
		return &usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return errors.Join(c.explain(do(ctx, cl), unsure), cl.Close())
}

func (c *connection) options() ([]client.Option, error) {
	if c.timeout <= 0 {
		return nil, usagef("--timeout must be above zero")
	}
	opts := []client.Option{client.WithUserAgent("jobonce-cli/" + readVersion().Version)}
	if !c.keys.Changed("timeout") {
		opts = append(opts, client.WithRetry(client.RetryPolicy{MaxAttempts: briefAttempts}))
	}
	switch {
	case (c.cert == "") != (c.key == ""):
		return nil, usagef("--cert and --key go together")
	case c.withTLS() && c.keys.Changed("tls") && !c.tls:
		return nil, usagef("--tls=false excludes --ca-cert, --cert and --key")
	case c.withTLS() || c.tls:
		cfg, err := c.tlsConfig()
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.WithTLS(cfg))
	case c.keys.Changed("tls"):
		opts = append(opts, client.WithInsecure())
	}
	if c.tokenFile != "" {
		if token, err := os.ReadFile(c.tokenFile); err != nil {
			return nil, fmt.Errorf("cannot read the token: %w", err)
		} else if len(bytes.TrimSpace(token)) == 0 {
			return nil, fmt.Errorf("--token-file: %s is empty", c.tokenFile)
		}
		opts = append(opts, client.WithTokenFile(c.tokenFile))
	}
	if c.cert != "" {
		if _, err := tls.LoadX509KeyPair(c.cert, c.key); err != nil {
			return nil, fmt.Errorf("cannot read --cert and --key: %w", err)
		}
		opts = append(opts, client.WithClientCertificateFiles(c.cert, c.key))
	}
	return opts, nil
}

// withTLS tells whether a flag needs TLS.
func (c *connection) withTLS() bool { return c.caCert != "" || c.cert != "" || c.key != "" }

func (c *connection) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caCert != "" {
		pem, err := os.ReadFile(c.caCert)
		if err != nil {
			return nil, fmt.Errorf("cannot read --ca-cert: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-cert: %s holds no PEM certificate", c.caCert)
		}
	}
	return cfg, nil
}

// explain adds to a failed call what a person at a terminal can do about it. unsure is what may have been done when that is
// not known.
func (c *connection) explain(err error, unsure string) error {
	failed := (*client.Error)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	hint := ""
	switch again := retryable(failed); {
	case failed.OutcomeUnknown && again && failed.RequestID != "":
		hint = fmt.Sprintf("%s: repeat it with --request-id %s", unsure, failed.RequestID)
	case failed.OutcomeUnknown && again:
		hint = unsure + ": repeat it as it is"
	case failed.OutcomeUnknown: // To repeat it is no use before the fault is found.
		hint = unsure + " all the same"
	case again && failed.ReasonText == "" && failed.Code != codes.Canceled:
		hint = fmt.Sprintf("is the service running, and ready, at %s%s", c.server, c.securityHint())
	case fieldFlags[failed.Field] != "":
		hint = "the flag is --" + fieldFlags[failed.Field]
	}
	if hint == "" {
		return err
	}
	return &hintedError{err, hint}
}

// securityHint ends the question whether the service is there: with TLS on one side alone, it looks as if it were not.
func (c *connection) securityHint() string {
	const authorities = " --ca-cert names the authorities to trust instead of the system's"
	switch {
	case c.caCert != "":
		return ", and are --server and --ca-cert right?"
	case c.tls || c.withTLS():
		return ", and are --server and --tls right?" + authorities
	case c.keys.Changed("tls"):
		return ", and are --server and --tls right?"
	case client.IsLoopback(c.server):
		return "? This was in plaintext, as is the default to this machine: for a service that has TLS, add --tls"
	default:
		return "? This was over TLS, as is the default to another machine: for a service that has none, add --tls=false;" + authorities
	}
}

// fieldFlags are the flags that set a field of another name, which errors name.
var fieldFlags = map[string]string{
	"lease_duration": "lease", "retry_delay": "delay", "events": "event", "payload_bytes": "payload",
	"job_id_prefix": "prefix",
}
