package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/jobonce/jobonce/internal/httpdoor"
	"github.com/jobonce/jobonce/server"
)

// web is the HTTP door of serve. The nil one is that of a service without.
type web struct {
	lis  net.Listener
	door *httpdoor.Door
	// secure tells that it speaks TLS.
	secure bool
}

// listenHTTP binds the address; nil when that is empty.
func (c *serveConfig) listenHTTP(ctx context.Context, logger *slog.Logger) (*web, error) {
	if c.httpListen == "" {
		if len(c.httpHosts) > 0 && c.uiListen == "" {
			return nil, usagef("--http-hosts needs --http-listen or --ui-listen")
		}
		return nil, nil
	}
	lis, err := listen(ctx, "--http-listen", c.httpListen, privateSocket)
	if err != nil {
		return nil, err
	}
	if err := c.security.checkListener("--http-listen", lis.Addr(), logger); err != nil {
		_ = lis.Close()
		return nil, err
	}
	return &web{lis: lis}, nil
}

// open makes the door before the server.
func (w *web) open(cfg *serveConfig, s security, srv *server.Server, o *ops, logger *slog.Logger) (err error) {
	if w == nil {
		return nil
	}
	door := httpdoor.Config{
		Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
			return srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
		},
		Callers: s.callers, Certificates: s.certificates, Hosts: cfg.httpHosts, MaxConnections: cfg.maxConns.Value,
		MaxConnectionAge: cfg.maxConnAge, ShutdownTimeout: server.DefaultShutdownTimeout, Logger: logger,
	}
	if o != nil {
		door.Refused = o.metrics.Refused
	}
	w.secure = s.certificates != nil
	w.door, err = httpdoor.New(door)
	return err
}

// address is where it listens, for the log.
func (w *web) address() string {
	if w == nil {
		return "none"
	}
	return w.lis.Addr().String()
}

// shown is what the line that says that the service is ready has about it.
func (w *web) shown() string {
	switch {
	case w == nil:
		return ""
	case w.secure:
		return " and https://" + shownAddress(w.lis)
	}
	return " and http://" + shownAddress(w.lis)
}

// close closes a listener that nobody served on; otherwise it was closed before.
func (w *web) close() {
	if w != nil {
		_ = w.lis.Close()
	}
}

// run serves until ctx ends.
func (w *web) run(ctx context.Context) error {
	if w == nil {
		return nil
	}
	return w.door.Run(ctx, w.lis)
}
