package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/jobonce/jobonce/internal/httpdoor"
	"github.com/jobonce/jobonce/internal/ui"
	"github.com/jobonce/jobonce/server"
)

// web is what serve has over HTTP beside gRPC: the HTTP door, or the page. The nil one is that of a service without.
type web struct {
	lis     net.Listener
	handler interface {
		Run(ctx context.Context, lis net.Listener) error
	}
}

// listenWeb binds the address that the flag gives; nil when that is empty.
func (c *serveConfig) listenWeb(ctx context.Context, flag, address string, logger *slog.Logger) (*web, error) {
	if address == "" {
		return nil, nil
	}
	lis, err := listen(ctx, flag, address, privateSocket)
	if err != nil {
		return nil, err
	}
	if err := c.security.checkListener(flag, lis.Addr(), logger); err != nil {
		_ = lis.Close()
		return nil, err
	}
	return &web{lis: lis}, nil
}

// openDoor makes the HTTP door before the server.
func (w *web) openDoor(cfg *serveConfig, s security, srv *server.Server, o *ops, logger *slog.Logger) (err error) {
	if w == nil {
		return nil
	}
	door := httpdoor.Config{
		Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
			return srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
		},
		Callers: s.callers, Certificates: s.certificates, Hosts: cfg.httpHosts, MaxConnections: cfg.maxConns.Value,
		MaxConnectionAge: cfg.maxConnAge, ShutdownTimeout: server.DefaultShutdownTimeout, Logger: logger, Instrument: o.instrument("http"),
	}
	if o != nil {
		door.Refused = o.metrics.Refused
	}
	w.handler, err = httpdoor.New(door)
	return err
}

// openPage makes the operators' page before the server.
func (w *web) openPage(cfg *serveConfig, s security, srv *server.Server, o *ops, logger *slog.Logger) (err error) {
	if w == nil {
		return nil
	}
	w.handler, err = ui.New(ui.Config{
		Connect: func(ctx context.Context) (net.Conn, error) { return srv.Connect(ctx, server.Peer{Addr: "page"}) },
		Callers: s.callers, Certificates: s.certificates, Hosts: cfg.httpHosts, ShutdownTimeout: server.DefaultShutdownTimeout, Logger: logger,
		Instrument: o.instrument("ui"),
	})
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
func (w *web) shown(s security) string {
	switch {
	case w == nil:
		return ""
	case s.certificates != nil:
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
	return w.handler.Run(ctx, w.lis)
}
