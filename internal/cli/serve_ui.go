package cli

import (
	"context"
	"log/slog"
	"net"

	"github.com/jobonce/jobonce/internal/ui"
	"github.com/jobonce/jobonce/server"
)

// page is the operators' page of serve. The nil one is that of a service without.
type page struct {
	lis  net.Listener
	page *ui.Page
}

// listenUI binds the address; nil when that is empty.
func (c *serveConfig) listenUI(ctx context.Context, logger *slog.Logger) (*page, error) {
	if c.uiListen == "" {
		return nil, nil
	}
	lis, err := listen(ctx, "--ui-listen", c.uiListen, privateSocket)
	if err != nil {
		return nil, err
	}
	if err := c.security.checkListener("--ui-listen", lis.Addr(), logger); err != nil {
		_ = lis.Close()
		return nil, err
	}
	return &page{lis: lis}, nil
}

// open makes the page before the server.
func (p *page) open(cfg *serveConfig, s security, srv *server.Server, logger *slog.Logger) (err error) {
	if p == nil {
		return nil
	}
	p.page, err = ui.New(ui.Config{
		Connect: func(ctx context.Context) (net.Conn, error) { return srv.Connect(ctx, server.Peer{Addr: "page"}) },
		Callers: s.callers, Certificates: s.certificates, Hosts: cfg.httpHosts, ShutdownTimeout: server.DefaultShutdownTimeout, Logger: logger,
	})
	return err
}

// address is where it listens, for the log.
func (p *page) address() string {
	if p == nil {
		return "none"
	}
	return p.lis.Addr().String()
}

// close closes a listener that nobody served on; otherwise it was closed before.
func (p *page) close() {
	if p != nil {
		_ = p.lis.Close()
	}
}

// run serves until ctx ends.
func (p *page) run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	return p.page.Run(ctx, p.lis)
}
