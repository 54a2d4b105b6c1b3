package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultHealthTimeout is longer than the service takes to say that its store is away.
const defaultHealthTimeout = 4 * time.Second

func newHealth() *cobra.Command {
	var address string
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a service on this machine whether it is ready",
		Long: `Asks the ops listener of a service on this machine, for containers and supervisors that run a command to find out. It takes the
address that serve listens on, from the same places, so that in a container no flag is needed. An address of every interface
is asked on this machine.

The exit code is 0 when the service is ready, and 6 when it is not, or cannot be reached. A service whose store is away is not
ready, and no restart helps it: where what asks restarts the service, as livenessProbe in Kubernetes does, use --live.`,
		Example: `  jobonce health --ops-listen 127.0.0.1:9090
  jobonce health --live`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout must be above zero")
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			said, err := askOps(cmd.Context(), address, path, timeout)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(said))
			return err
		},
	}
	cmd.Flags().StringVar(&address, "ops-listen", "", "`address` of the ops listener, as serve has it, such as 127.0.0.1:9090")
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process runs")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultHealthTimeout, "how long to wait for the answer")
	configuredLikeServe(cmd)
	return cmd
}

// askOps asks an ops listener and returns what it said, when that was good.
func askOps(ctx context.Context, address, path string, timeout time.Duration) (string, error) {
	dial, err := opsDialer(address)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://jobonce"+path, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true} // and no proxy
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", &codedError{fmt.Errorf("the ops listener at %s does not answer: %w", address, errors.Unwrap(err)), exitRetry}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	said := strings.TrimSpace(string(body))
	switch {
	case err != nil:
		return "", &codedError{fmt.Errorf("the ops listener at %s has not answered to the end: %w", address, err), exitRetry}
	case resp.StatusCode != http.StatusOK:
		return "", &codedError{fmt.Errorf("the service at %s says %d: %s", address, resp.StatusCode, printable(said)), exitRetry}
	}
	return said, nil
}

// opsDialer connects to the ops listener at the address that it was given, in this machine.
func opsDialer(address string) (func(context.Context, string, string) (net.Conn, error), error) {
	network := "tcp"
	if address == "" {
		return nil, usagef("needs --ops-listen, the address that serve was given by it")
	}
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	} else {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" {
			return nil, usagef("--ops-listen %s is not HOST:PORT, such as 127.0.0.1:9090", address)
		}
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
			address = net.JoinHostPort("localhost", port) // Either family may be the one that works.
		}
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}, nil
}
