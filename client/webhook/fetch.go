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
	maxFetching  = 4              // addresses that are fetched at once
	keptFor      = 24 * time.Hour // fal asks for no more
	// refetchAfter is how long an address that failed is left alone, and refreshAfter one whose keys did not fit, so that
	// forged requests make nobody fetch all the time.
	refetchAfter = 10 * time.Second
	refreshAfter = time.Minute
)

var errFetching = errors.New("too many keys are being fetched")

// fetcher fetches keys and keeps them.
type fetcher struct {
	client *http.Client
	now    func() time.Time

	mu       sync.Mutex // Never held while something is fetched.
	kept     map[string]*fetched
	fetching int
}

// fetched is what an address gave.
type fetched struct {
	keys []key
	cert *x509.Certificate
	err  error
	at   time.Time     // When it was asked for.
	from time.Time     // When the keys or the certificate were got, which may be earlier.
	done chan struct{} // Closed when the rest is known.
}

// over says whether it is time to fetch it again. What is being fetched is waited for.
func (g *fetched) over(now time.Time, maxAge time.Duration) bool {
	select {
	case <-g.done:
	default:
		return false
	}
	if g.err != nil {
		maxAge = refetchAfter
	}
	return now.Sub(g.at) >= maxAge || g.err == nil && now.Sub(g.from) >= keptFor
}

func newFetcher(c *http.Client, now func() time.Time) *fetcher {
	if c == nil {
		c = &http.Client{}
	}
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &fetcher{client: &own, now: now, kept: make(map[string]*fetched)}
}

// get returns what parse makes of the content of an address, kept for maxAge at most. Of several callers, one fetches.
func (f *fetcher) get(ctx context.Context, address string, maxAge time.Duration, parse func([]byte, *fetched) error) *fetched {
	f.mu.Lock()
	got, ok := f.kept[address]
	if ok && !got.over(f.now(), maxAge) {
		f.mu.Unlock()
		<-got.done // For fetchTimeout at most.
		return got
	}
	if f.fetching == maxFetching {
		f.mu.Unlock()
		if ok && got.err == nil && f.now().Sub(got.from) < keptFor {
			return got
		}
		return &fetched{err: errFetching}
	}
	f.fetching++
	f.makeRoom()
	now := f.now()
	fresh := &fetched{at: now, from: now, done: make(chan struct{})}
	f.kept[address] = fresh
	f.mu.Unlock()

	data, err := f.download(ctx, address)
	if err == nil {
		err = parse(data, fresh)
	}
	switch {
	case err != nil && ok && got.err == nil && f.now().Sub(got.from) < keptFor:
		fresh.keys, fresh.cert, fresh.from = got.keys, got.cert, got.from // What was good for a day still is.
	case err != nil:
		fresh.err = fmt.Errorf("%s: %w", address, err)
	}
	close(fresh.done)
	f.mu.Lock()
	f.fetching--
	f.mu.Unlock()
	return fresh
}

// makeRoom forgets an address when there are many, one that failed if there is one: forged requests name many that do not exist.
func (f *fetcher) makeRoom() {
	if len(f.kept) < maxKept {
		return
	}
	last := ""
	for address, got := range f.kept {
		select {
		case <-got.done:
		default:
			continue
		}
		if last = address; got.err != nil {
			break
		}
	}
	delete(f.kept, last)
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

// keySet returns the Ed25519 keys of a JWK set, which are no older than maxAge where they can be fetched.
func (f *fetcher) keySet(ctx context.Context, address string, maxAge time.Duration) ([]key, error) {
	got := f.get(ctx, address, maxAge, func(data []byte, got *fetched) error {
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
	got := f.get(ctx, address, keptFor, func(data []byte, got *fetched) (err error) {
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
