package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// How keys and certificates are fetched and kept.
const (
	fetchTimeout = 3 * time.Second
	maxFetched   = 256 << 10      // bytes of one answer
	maxKept      = 64             // addresses
	keptFor      = 24 * time.Hour // fal asks for no more
	// refetchAfter is how long an address that failed is left alone, so that forged requests make nobody fetch all the time.
	refetchAfter = 10 * time.Second
)

// fetcher fetches keys and keeps them.
type fetcher struct {
	client *http.Client
	now    func() time.Time

	mu   sync.Mutex // Held while fetching: of many requests one fetches.
	kept map[string]fetched
}

type fetched struct {
	keys  []key
	cert  *x509.Certificate
	err   error
	until time.Time
}

func newFetcher(c *http.Client, now func() time.Time) *fetcher {
	if c == nil {
		c = &http.Client{}
	}
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &fetcher{client: &own, now: now, kept: make(map[string]fetched)}
}

// get returns what is kept for an address, or what parse makes of its content.
func (f *fetcher) get(ctx context.Context, address string, parse func([]byte, *fetched) error) fetched {
	f.mu.Lock()
	defer f.mu.Unlock()
	if got, ok := f.kept[address]; ok && f.now().Before(got.until) {
		return got
	}
	got := fetched{until: f.now().Add(keptFor)}
	data, err := f.download(ctx, address)
	if err == nil {
		err = parse(data, &got)
	}
	if err != nil {
		got = fetched{err: fmt.Errorf("%s: %w", address, err), until: f.now().Add(refetchAfter)}
	}
	if len(f.kept) >= maxKept {
		clear(f.kept)
	}
	f.kept[address] = got
	return got
}

func (f *fetcher) download(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %d", resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err == nil && len(data) > maxFetched {
		err = errors.New("is too large")
	}
	return data, err
}

// keySet returns the Ed25519 keys of a JWK set.
func (f *fetcher) keySet(ctx context.Context, address string) ([]key, error) {
	got := f.get(ctx, address, func(data []byte, got *fetched) error {
		var set struct {
			Keys []struct{ Kty, Crv, X string }
		}
		if err := json.Unmarshal(data, &set); err != nil {
			return errors.New("is no JWK set")
		}
		for _, k := range set.Keys {
			x, err := base64.RawURLEncoding.DecodeString(k.X)
			if k.Kty == "OKP" && err == nil && len(x) == ed25519.PublicKeySize {
				got.keys = append(got.keys, key{ed25519: x})
			}
		}
		if len(got.keys) == 0 {
			return errors.New("has no Ed25519 key")
		}
		return nil
	})
	return got.keys, got.err
}

// certificate returns the certificate in PEM at an address.
func (f *fetcher) certificate(ctx context.Context, address string) (*x509.Certificate, error) {
	got := f.get(ctx, address, func(data []byte, got *fetched) (err error) {
		block, _ := pem.Decode(data)
		if block == nil || block.Type != "CERTIFICATE" {
			return errors.New("is no certificate")
		}
		if got.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
			return errors.New("is no certificate")
		}
		if _, ok := got.cert.PublicKey.(*rsa.PublicKey); !ok {
			return errors.New("is no certificate for RSA")
		}
		return nil
	})
	return got.cert, got.err
}
