package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// CertificateFiles name the files, all PEM.
type CertificateFiles struct {
	// Cert is the certificate with those between it and the authority, Key its key.
	Cert, Key string
	// ClientCA has the authorities of client certificates. Empty: none are asked for.
	ClientCA string
	// MinVersion is the oldest version of TLS. 0: 1.3.
	MinVersion uint16
}

// Certificates are the listeners' certificate and the authorities of their clients, as the files have them now. They are
// safe for concurrent use.
type Certificates struct {
	files  CertificateFiles
	log    *slog.Logger
	watch  watcher
	loaded atomic.Pointer[loaded]
	// expired is what was said to have expired last. Only the goroutine that looks at the files uses it, and the start.
	expired *loaded
}

// loaded is what was read from the files at one time.
type loaded struct {
	config *tls.Config
	// clients are the authorities; nil when there are none.
	clients *x509.CertPool
	expires time.Time
}

// LoadCertificates reads the files. The error names the one at fault.
func LoadCertificates(files CertificateFiles, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{files: files, log: log, watch: watcher{paths: []string{files.Cert, files.Key}}}
	if files.ClientCA != "" {
		c.watch.paths = append(c.watch.paths, files.ClientCA)
	}
	contents, err := c.watch.start()
	if err != nil {
		return nil, err
	}
	l, err := c.load(contents)
	if err != nil {
		return nil, err
	}
	c.loaded.Store(l)
	c.sayExpired()
	c.watch.each = c.sayExpired
	return c, nil
}

// sayExpired says once of a certificate in force that it has expired.
func (c *Certificates) sayExpired() {
	if l := c.loaded.Load(); l != c.expired && time.Now().After(l.expires) {
		c.expired = l
		c.log.Error("the certificate has expired, and clients refuse it; a new one in its place is taken without a restart",
			"file", c.files.Cert, "expired", l.expires)
	}
}

// load reads what the files hold.
func (c *Certificates) load(contents [][]byte) (*loaded, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.files.Cert, c.files.Key, err)
	}
	l := &loaded{expires: pair.Leaf.NotAfter, config: &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: c.files.MinVersion, NextProtos: []string{"h2"},
		// A session that is resumed would carry on what an authority has vouched for that is one no longer.
		SessionTicketsDisabled: true,
	}}
	if l.config.MinVersion == 0 {
		l.config.MinVersion = tls.VersionTLS13
	}
	if c.files.ClientCA != "" {
		if l.clients, err = parseAuthorities(contents[2]); err != nil {
			return nil, fmt.Errorf("%s: %w", c.files.ClientCA, err)
		}
		l.config.ClientAuth, l.config.ClientCAs = tls.VerifyClientCertIfGiven, l.clients
	}
	return l, nil
}

// parseAuthorities reads certificates. One that cannot be read spoils all: to leave it out would lock its clients out.
func parseAuthorities(content []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it holds a %s; only certificates belong there", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		pool.AddCert(cert)
		found = true
	}
	if !found || len(bytes.TrimSpace(content)) > 0 {
		return nil, errors.New("it is not a list of PEM certificates, or not all of one")
	}
	return pool, nil
}

// Run takes the files again when they have changed, until ctx ends. What cannot be used leaves the old ones in force.
func (c *Certificates) Run(ctx context.Context) {
	c.watch.run(ctx, func(contents [][]byte, err error) {
		var l *loaded
		if err == nil {
			l, err = c.load(contents)
		}
		if err != nil {
			c.log.Error("the TLS files have changed and cannot be used; the old ones stay in force", "error", err)
			return
		}
		c.loaded.Store(l)
		c.log.Info("the TLS files have changed and are in force", "file", c.files.Cert, "expires", l.expires)
	})
}

// Server is the configuration of a listener: each connection gets what is in force when it begins.
func (c *Certificates) Server() *tls.Config {
	return &tls.Config{
		MinVersion:         c.loaded.Load().config.MinVersion,
		NextProtos:         []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.loaded.Load().config, nil },
	}
}

// HTTP is the configuration of a listener of HTTP, of either version. Clients are not asked for certificates.
func (c *Certificates) HTTP() *tls.Config {
	return c.http(func(cfg *tls.Config) { cfg.ClientAuth, cfg.ClientCAs = tls.NoClientCert, nil })
}

// HTTPWithClients is that of a listener of HTTP which takes certificates of clients as that of gRPC does.
func (c *Certificates) HTTPWithClients() *tls.Config { return c.http(func(*tls.Config) {}) }

func (c *Certificates) http(change func(*tls.Config)) *tls.Config {
	http := func() *tls.Config {
		cfg := c.loaded.Load().config.Clone()
		cfg.NextProtos = []string{"h2", "http/1.1"}
		change(cfg)
		return cfg
	}
	cfg := http()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return http(), nil }
	return cfg
}

// Names tells whether the certificate in force is for the host, a name or an address.
func (c *Certificates) Names(host string) bool {
	return c.loaded.Load().config.Certificates[0].Leaf.VerifyHostname(host) == nil
}

// Expires is when the certificate in force does.
func (c *Certificates) Expires() time.Time { return c.loaded.Load().expires }

// Vouched remembers for a connection which authorities its client's certificate was checked against. The zero value is that
// of a new connection.
type Vouched struct{ by atomic.Pointer[x509.CertPool] }

// Vouch checks a client certificate against the authorities in force, unless that was done: they may be others than when the
// connection began. certs has the certificate first, and those between it and the authority.
func (c *Certificates) Vouch(v *Vouched, certs []*x509.Certificate) error {
	clients := c.loaded.Load().clients
	if clients == nil {
		return errors.New("client certificates are not asked for")
	}
	if v.by.Load() == clients {
		return nil
	}
	between := x509.NewCertPool()
	for _, cert := range certs[1:] {
		between.AddCert(cert)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{
		Roots: clients, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return errors.New("no authority that is in force has made the client certificate")
	}
	v.by.Store(clients)
	return nil
}
