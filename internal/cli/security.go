package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/config"
)

// securityConfig is what the flags of serve say about who may call, and how connections are secured.
type securityConfig struct {
	cert, key, clientCA                   string
	minVersion                            config.Choice
	authFile                              string
	issuer, audience, issuerCA, tokenFile string
	insecure, metricsAuth                 bool
}

func newSecurityConfig() securityConfig {
	return securityConfig{minVersion: config.Choice{Value: "1.3", Words: []string{"1.2", "1.3"}}}
}

func (c *securityConfig) declare(keys *pflag.FlagSet) {
	keys.StringVar(&c.cert, "tls-cert", "", "PEM `file` of the certificate, with those between it and the authority; needs --tls-key.\n"+
		"This file, the key, --tls-client-ca, --auth-file and --oidc-ca-cert are read again when they change")
	keys.StringVar(&c.key, "tls-key", "", "PEM `file` of the certificate's key")
	keys.StringVar(&c.clientCA, "tls-client-ca", "", "PEM `file` of the authorities of client certificates, which callers in --auth-file may show")
	keys.Var(&c.minVersion, "tls-min-version", "oldest version of TLS to speak")
	keys.StringVar(&c.authFile, "auth-file", "", "YAML `file` of the callers and what each may do; without it everybody may call everything")
	keys.StringVar(&c.issuer, "oidc-issuer", "", "`URL` of the OIDC issuer whose tokens callers in --auth-file may show; needs --oidc-audience")
	keys.StringVar(&c.audience, "oidc-audience", "", "`audience` that these tokens must be for")
	keys.StringVar(&c.issuerCA, "oidc-ca-cert", "", "PEM `file` of the authorities of the issuer's certificate, instead of the system's")
	keys.StringVar(&c.tokenFile, "oidc-token-file", "", "`file` with a token to show to the issuer when it is asked for its keys, as Kubernetes wants")
	keys.BoolVar(&c.metricsAuth, "metrics-auth", false, "show /metrics of --ops-listen to callers in --auth-file with the right metrics alone")
	keys.BoolVar(&c.insecure, "insecure", false, "serve beyond this machine without TLS or without callers: for networks that keep others out")
}

// check refuses flags that are no use without others. What was meant to protect and does not is worse than nothing.
func (c *securityConfig) check() error {
	switch {
	case (c.cert == "") != (c.key == ""):
		return usagef("--tls-cert and --tls-key go together")
	case c.clientCA != "" && c.cert == "":
		return usagef("--tls-client-ca needs --tls-cert and --tls-key")
	case c.clientCA != "" && c.authFile == "":
		return usagef("--tls-client-ca needs --auth-file, which says what the owners of the certificates may do")
	case c.metricsAuth && c.authFile == "":
		return usagef("--metrics-auth needs --auth-file, which says who has the right metrics")
	case (c.issuer == "") != (c.audience == ""):
		return usagef("--oidc-issuer and --oidc-audience go together")
	case c.issuer != "" && c.authFile == "":
		return usagef("--oidc-issuer needs --auth-file, which says what the owners of the tokens may do")
	case c.issuer == "" && (c.issuerCA != "" || c.tokenFile != ""):
		return usagef("--oidc-ca-cert and --oidc-token-file need --oidc-issuer")
	}
	return nil
}

// checkListener refuses to serve beyond this machine without protection. The flag is the one that gives the address.
func (c *securityConfig) checkListener(flag string, addr net.Addr, log *slog.Logger) error {
	if auth.Loopback(addr) {
		return nil
	}
	var missing []string
	if c.cert == "" {
		missing = append(missing, "--tls-cert and --tls-key")
	}
	if c.authFile == "" {
		missing = append(missing, "--auth-file")
	}
	switch lack := strings.Join(missing, ", and "); {
	case lack == "":
		return nil
	case !c.insecure:
		return usagef("%s %s is reached from other machines: give %s; or listen on 127.0.0.1, or say --insecure where the network keeps "+
			"others out (docs/security.md)", flag, addr, lack)
	default:
		log.Warn("the service is reached from other machines and unprotected, as --insecure says", "address", addr.String(), "lacks", lack)
	}
	return nil
}

// security is what the files say. Both are nil where none are given.
type security struct {
	certificates *auth.Certificates
	callers      *auth.Authority
}

// open reads the files.
func (c *securityConfig) open(log *slog.Logger) (s security, err error) {
	if c.cert != "" {
		files := auth.CertificateFiles{Cert: c.cert, Key: c.key, ClientCA: c.clientCA, MinVersion: tls.VersionTLS13}
		if c.minVersion.Value == "1.2" {
			files.MinVersion = tls.VersionTLS12
		}
		if s.certificates, err = auth.LoadCertificates(files, log); err != nil {
			return s, &hintedError{err, "the flags are --tls-cert, --tls-key and --tls-client-ca"}
		}
	}
	if c.authFile == "" {
		return s, nil
	}
	cfg := auth.Config{File: c.authFile, Certificates: c.clientCA != "", Logger: log}
	if c.issuer != "" {
		cfg.Issuer, err = auth.NewIssuer(auth.IssuerConfig{
			URL: c.issuer, Audience: c.audience, CAFile: c.issuerCA, TokenFile: c.tokenFile, Logger: log,
		})
		if err != nil {
			return s, usagef("%w", err)
		}
	}
	s.callers, err = auth.Open(cfg)
	return s, err
}

// run keeps what was read up to date until ctx ends.
func (s security) run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.callers != nil {
			s.callers.Run(ctx)
		}
	}()
	if s.certificates != nil {
		s.certificates.Run(ctx)
	}
	<-done
}
