package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// graceTime is how long calls that are under way keep rights that were taken away.
const graceTime = time.Minute

// The errors of [Authority.Who] beside those that say what is wrong with a credential.
var (
	// ErrNobody: the call shows no credential.
	ErrNobody = errors.New("the call shows no credential, neither a token nor a client certificate")
	// ErrUnavailable: the credential cannot be checked for now.
	ErrUnavailable = errors.New("the token cannot be checked for now: the issuer's keys are not there")
)

// Config is what an [Authority] is made of.
type Config struct {
	// File is the auth file.
	File string
	// Certificates says that client certificates are asked for. Without, a file that names some is refused.
	Certificates bool
	// Issuer checks OIDC tokens. nil: there are none, and a file that names some is refused.
	Issuer *Issuer
	Logger *slog.Logger
}

// Authority knows the callers. It is safe for concurrent use.
type Authority struct {
	cfg   Config
	file  watcher
	table atomic.Pointer[table]
	now   func() time.Time
}

// Open reads the auth file. The error names it.
func Open(cfg Config) (*Authority, error) {
	a := &Authority{cfg: cfg, file: watcher{paths: []string{cfg.File}}, now: time.Now}
	contents, err := a.file.start()
	if err != nil {
		return nil, fmt.Errorf("cannot read the auth file: %w", err)
	}
	t, err := a.parse(contents[0])
	if err != nil {
		return nil, fmt.Errorf("the auth file %s: %w", cfg.File, err)
	}
	a.table.Store(t)
	return a, nil
}

// parse reads a file and checks that its credentials can be shown.
func (a *Authority) parse(content []byte) (*table, error) {
	t, err := parse(content, a.table.Load())
	switch {
	case err != nil:
		return nil, err
	case len(t.certificates) > 0 && !a.cfg.Certificates:
		return nil, errors.New("it names certificates, and none are asked for: that needs --tls-client-ca")
	case len(t.oidc) > 0 && a.cfg.Issuer == nil:
		return nil, errors.New("it names OIDC claims, and no issuer is known: that needs --oidc-issuer and --oidc-audience")
	}
	return t, nil
}

// Run takes the file again when it has changed, and keeps the issuer's keys fresh, until ctx ends.
func (a *Authority) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if a.cfg.Issuer != nil {
			a.cfg.Issuer.run(ctx)
		}
	}()
	a.file.run(ctx, a.take)
	<-done
}

// take takes a new file, or says loudly that the old one stays.
func (a *Authority) take(contents [][]byte, err error) {
	var t *table
	if err == nil {
		t, err = a.parse(contents[0])
	}
	if err != nil {
		a.cfg.Logger.Error("the auth file has changed and cannot be used; the callers stay as they were", "file", a.cfg.File, "error", err)
		return
	}
	old := a.table.Swap(t)
	for key, c := range old.callers {
		if t.callers[key] != c {
			time.AfterFunc(graceTime, c.end)
		}
	}
	a.cfg.Logger.Info("the auth file has changed and is in force", "file", a.cfg.File, "callers", len(t.names),
		"added", missing(t, old), "removed", missing(old, t))
}

// missing are the names in one table that the other one has not.
func missing(in, from *table) []string {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(in.names)) {
		if from.names[name] == nil {
			names = append(names, name)
		}
	}
	return names
}

// Shown is what a call shows of who makes it.
type Shown struct {
	// Authorization has the values of the header.
	Authorization []string
	// Certificate is the client's, verified by the listener's present authorities; nil when there is none.
	Certificate *x509.Certificate
}

// Who finds the caller. The error is [ErrNobody] or [ErrUnavailable], or says what is wrong with the credential, in words
// that the caller may hear.
func (a *Authority) Who(ctx context.Context, s Shown) (*Caller, error) {
	t := a.table.Load()
	var c *Caller
	var err error
	switch {
	case len(s.Authorization) > 1 || len(s.Authorization) == 1 && s.Certificate != nil:
		return nil, errors.New("the call shows two identities; show one token or one client certificate")
	case len(s.Authorization) == 1:
		c, err = a.bearer(ctx, t, s.Authorization[0])
	case s.Certificate != nil:
		c, err = t.certified(s.Certificate, a.now())
	default:
		return nil, ErrNobody
	}
	if err != nil {
		return nil, err
	}
	if !c.Expires.IsZero() && !a.now().Before(c.Expires) {
		return nil, errors.New("the credential has expired")
	}
	return c, nil
}

// bearer finds the caller by its token.
func (a *Authority) bearer(ctx context.Context, t *table, authorization string) (*Caller, error) {
	scheme, token, _ := strings.Cut(authorization, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return nil, errors.New("the authorization is not `Bearer` and a token")
	case !isToken(token) && a.cfg.Issuer != nil && strings.Count(token, ".") == 2:
		return a.cfg.Issuer.who(ctx, t, token)
	}
	if err := checkToken(token); err != nil {
		return nil, err
	}
	// What is looked up is the hash: how long that takes says nothing about the tokens that there are.
	c := t.tokens[sumOf(token)]
	if c == nil {
		return nil, errors.New("no caller has this token")
	}
	return c, nil
}

// certified finds the caller by the names of its certificate.
func (t *table) certified(cert *x509.Certificate, now time.Time) (*Caller, error) {
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return nil, errors.New("the client certificate has expired, or is not valid yet")
	}
	var names []string
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	found := make(map[*Caller]bool)
	for _, name := range slices.Concat(names, cert.DNSNames, cert.EmailAddresses) {
		if c := t.certificates[canonicalSAN(name)]; c != nil {
			found[c] = true
		}
	}
	return only(found, "the client certificate")
}

// only is the caller that was found, if it is one.
func only(found map[*Caller]bool, by string) (*Caller, error) {
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no caller has %s", by)
	case 1:
		for c := range found {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%s is that of two callers", by)
}

// Expiries is for each caller whose credentials all expire when the last one does.
func (a *Authority) Expiries() map[string]time.Time {
	expiries := make(map[string]time.Time)
	for _, c := range a.table.Load().callers {
		last, seen := expiries[c.Name]
		switch {
		case c.Expires.IsZero() || seen && last.IsZero():
			expiries[c.Name] = time.Time{}
		case c.Expires.After(last):
			expiries[c.Name] = c.Expires
		}
	}
	maps.DeleteFunc(expiries, func(_ string, t time.Time) bool { return t.IsZero() })
	return expiries
}
