package auth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	// leeway is how far the issuer's clock may be from ours.
	leeway = time.Minute
	// maxVerified bounds the tokens that are remembered, in each of two generations.
	maxVerified = 4096
)

// algorithms are those that tokens may be signed with: none with a shared secret, and not none.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// IssuerConfig is what an [Issuer] is made of.
type IssuerConfig struct {
	// URL is the issuer's, as its tokens have it; Audience is what they must be for.
	URL, Audience string
	// CAFile has the authorities of the issuer's certificate, and is read again when it changes. Empty: the system's.
	CAFile string
	// TokenFile has the token to show to the issuer when it is asked for its keys. Empty: none.
	TokenFile string
	Logger    *slog.Logger
}

// Issuer checks the tokens of an OIDC issuer.
type Issuer struct {
	url    string
	config *oidc.Config
	keys   *keySet
	// authorities are the files with those of its certificate; nil: the system's.
	authorities *watcher
	transport   *issuerTransport
	log         *slog.Logger
	now         func() time.Time
	verified    verifiedTokens
}

// NewIssuer makes an issuer. It does not ask it for anything: see [Authority.Run].
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if err := checkURL(cfg.URL); err != nil {
		return nil, fmt.Errorf("the OIDC issuer: %w", err)
	}
	transport := &issuerTransport{tokenFile: cfg.TokenFile}
	transport.trust(nil)
	client := &http.Client{
		Transport: transport, Timeout: fetchTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	i := &Issuer{url: cfg.URL, keys: newKeySet(cfg.URL, client, cfg.Logger), transport: transport, log: cfg.Logger, now: time.Now}
	if cfg.CAFile != "" {
		i.authorities = &watcher{paths: []string{cfg.CAFile}}
		contents, err := i.authorities.start()
		if err != nil {
			return nil, err
		}
		pool, err := parseAuthorities(contents[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.CAFile, err)
		}
		transport.trust(pool)
	}
	i.config = &oidc.Config{ClientID: cfg.Audience, Now: func() time.Time { return i.now().Add(-leeway) }}
	for _, a := range algorithms {
		i.config.SupportedSigningAlgs = append(i.config.SupportedSigningAlgs, string(a))
	}
	return i, nil
}

// checkURL takes https, and plain http on this machine.
func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	ip, _ := netip.ParseAddr(u.Hostname())
	if u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && (ip.IsLoopback() || u.Hostname() == "localhost")) {
		return fmt.Errorf("%q is not an https:// URL", s)
	}
	return nil
}

func (i *Issuer) run(ctx context.Context) {
	defer i.keys.client.CloseIdleConnections()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if i.authorities != nil {
			i.authorities.run(ctx, i.take)
		}
	}()
	i.keys.run(ctx)
	<-done
}

// take takes new authorities of the issuer's certificate, and has the keys fetched, which may have failed for want of them; or
// says loudly that the old ones stay.
func (i *Issuer) take(contents [][]byte, err error) {
	file := slog.String("file", i.authorities.paths[0])
	var pool *x509.CertPool
	if err == nil {
		pool, err = parseAuthorities(contents[0])
	}
	if err != nil {
		i.log.Error("the authorities of the OIDC issuer's certificate have changed and cannot be used; they stay as they were", file, "error", err)
		return
	}
	i.transport.trust(pool)
	i.keys.fetchSoon()
	i.log.Info("the authorities of the OIDC issuer's certificate have changed and are in force", file)
}

// verifiedToken is a token whose signature, issuer and audience were checked.
type verifiedToken struct {
	// by are the keys that it was checked against.
	by      *knownKeys
	expires time.Time
	claims  map[string]any
}

// who finds the caller that a token names.
func (i *Issuer) who(ctx context.Context, t *table, token string) (*Caller, error) {
	sum := sha256.Sum256([]byte(token))
	v := i.verified.get(sum)
	if v == nil || v.by != i.keys.known.Load() {
		var err error
		if v, err = i.verify(ctx, token); err != nil {
			return nil, err
		}
		i.verified.put(sum, v)
	}
	if i.now().After(v.expires.Add(leeway)) {
		return nil, errExpired
	}
	found := make(map[*Caller]bool)
	for _, e := range t.oidc {
		if v.has(e.claims) {
			found[e.caller] = true
		}
	}
	return only(found, "the claims of this token")
}

var errExpired = errors.New("the token has expired")

// verify checks a token. The errors of the library repeat what it claims, so they stay here.
func (i *Issuer) verify(ctx context.Context, token string) (*verifiedToken, error) {
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errors.New("the token is not a JWT signed with an algorithm that is taken here")
	}
	keys, err := i.keys.with(ctx, jws.Signatures[0].Header.KeyID)
	if err != nil {
		return nil, err
	}
	if keys == nil {
		return nil, errors.New("the token's key is none of the issuer's")
	}
	checked, err := oidc.NewVerifier(i.url, keys, i.config).Verify(ctx, token)
	if expired := (*oidc.TokenExpiredError)(nil); errors.As(err, &expired) {
		return nil, errExpired
	}
	if err != nil {
		return nil, errors.New("the token's signature, issuer, audience or time is not right")
	}
	v := &verifiedToken{by: keys, expires: checked.Expiry}
	if err := checked.Claims(&v.claims); err != nil {
		return nil, errors.New("the token's claims cannot be read")
	}
	return v, nil
}

// has tells whether the token claims all of this.
func (v *verifiedToken) has(claims map[string]string) bool {
	for claim, want := range claims {
		var got string
		switch value := v.claims[claim].(type) {
		case string:
			got = value
		case bool, float64:
			b, _ := json.Marshal(value)
			got = string(b)
		}
		if got != want || claim == "email" && v.claims["email_verified"] != true {
			return false
		}
	}
	return true
}

// verifiedTokens remembers tokens by their hash, so that a token is checked once and not with each call. It forgets the
// older half when it is full.
type verifiedTokens struct {
	mu         sync.RWMutex
	young, old map[[sha256.Size]byte]*verifiedToken
}

func (c *verifiedTokens) get(sum [sha256.Size]byte) *verifiedToken {
	c.mu.RLock()
	v, old := c.young[sum], c.old[sum]
	c.mu.RUnlock()
	if v == nil && old != nil {
		c.put(sum, old)
		return old
	}
	return v
}

func (c *verifiedTokens) put(sum [sha256.Size]byte, v *verifiedToken) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= maxVerified {
		c.old, c.young = c.young, make(map[[sha256.Size]byte]*verifiedToken)
	}
	c.young[sum] = v
}

// Loopback tells whether an address is of this machine alone: a loopback address, or a Unix socket.
func Loopback(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}
