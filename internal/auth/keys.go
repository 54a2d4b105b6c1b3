package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// keysEvery is how often the keys are fetched, keysRetry how soon again after a failure, and keysPause the least time
	// between a fetch and one for a key that is not known.
	keysEvery = 5 * time.Minute
	keysRetry = 10 * time.Second
	keysPause = 10 * time.Second
	// fetchTimeout bounds a fetch, unknownWait how long a call with an unknown key waits for one, and unknownWaiters how
	// many do: no others ever wait.
	fetchTimeout   = 10 * time.Second
	unknownWait    = 2 * time.Second
	unknownWaiters = 64
	// maxIssuerBytes bounds an answer of the issuer.
	maxIssuerBytes = 1 << 20
)

// keySet has the issuer's keys. They are fetched in the background, while no call waits, but for a few with a key that is not
// known.
type keySet struct {
	issuer string
	client *http.Client
	log    *slog.Logger
	// known is nil until they were fetched for the first time.
	known atomic.Pointer[knownKeys]
	// want has the keys fetched.
	want chan struct{}

	mu sync.Mutex
	// began is when the last fetch did, and next is closed when the one that is asked for has ended; nil when none is.
	began   time.Time
	next    chan struct{}
	waiting int
	now     func() time.Time
}

// knownKeys are the keys of one fetch, and what they were read from.
type knownKeys struct {
	keys jose.JSONWebKeySet
	raw  []byte
}

func newKeySet(issuer string, client *http.Client, log *slog.Logger) *keySet {
	return &keySet{issuer: issuer, client: client, log: log, want: make(chan struct{}, 1), now: time.Now}
}

// run fetches the keys now, every few minutes, and when somebody wants them, until ctx ends.
func (k *keySet) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.want:
		case <-timer.C:
		}
		k.mu.Lock()
		k.began = k.now()
		if k.next == nil {
			k.next = make(chan struct{})
		}
		select {
		case <-k.want: // This fetch is the one.
		default:
		}
		k.mu.Unlock()
		err := k.fetch(ctx)
		pause := keysEvery
		switch {
		case ctx.Err() != nil:
		case err != nil:
			pause = keysRetry
			if failing != err.Error() {
				k.log.Error("the OIDC issuer's keys cannot be fetched; those that are known stay in force", "issuer", k.issuer, "error", err)
			}
			failing = err.Error()
		case failing != "":
			k.log.Info("the OIDC issuer's keys were fetched again", "issuer", k.issuer)
			failing = ""
		}
		k.mu.Lock()
		close(k.next)
		k.next = nil
		k.mu.Unlock()
		timer.Reset(pause)
	}
}

// fetch asks the issuer for its keys. Its words stand in no error, which is logged: they may repeat the token that it was shown.
func (k *keySet) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	address := strings.TrimSuffix(k.issuer, "/") + "/.well-known/openid-configuration"
	raw, err := k.get(ctx, address)
	if err != nil {
		return err
	}
	var found struct {
		Issuer string `json:"issuer"`
		URL    string `json:"jwks_uri"`
	}
	switch {
	case json.Unmarshal(raw, &found) != nil:
		return fmt.Errorf("%s is not the configuration of an OIDC issuer", address)
	case found.Issuer != k.issuer:
		return fmt.Errorf("%s is that of the issuer %.200q, and not of %q, which --oidc-issuer names", address, found.Issuer, k.issuer)
	case checkURL(found.URL) != nil:
		return fmt.Errorf("the jwks_uri in %s is not an https:// URL", address)
	}
	if raw, err = k.get(ctx, found.URL); err != nil {
		return err
	}
	if known := k.known.Load(); known != nil && bytes.Equal(known.raw, raw) {
		return nil // What was verified by them stays so.
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(raw, &set) != nil {
		return fmt.Errorf("%s is not a set of keys", found.URL)
	}
	fresh := &knownKeys{raw: raw}
	for _, one := range set.Keys {
		var key jose.JSONWebKey
		// One of a kind that is not known here spoils no other: RFC 7517, section 5.
		if key.UnmarshalJSON(one) == nil && key.IsPublic() && key.Valid() && (key.Use == "" || key.Use == "sig") {
			fresh.keys.Keys = append(fresh.keys.Keys, key)
		}
	}
	if len(fresh.keys.Keys) == 0 {
		return fmt.Errorf("%s has no keys that can be used here", found.URL)
	}
	k.known.Store(fresh)
	return nil
}

// get asks the issuer for one document.
func (k *keySet) get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", address, resp.StatusCode)
	}
	return io.ReadAll(resp.Body)
}

// with is the set once it has a key of this id: as it is known, or after a fetch. nil when it has none, with an error
// where that may be because nothing was ever fetched.
func (k *keySet) with(ctx context.Context, id string) (*knownKeys, error) {
	known := k.known.Load()
	if known != nil && known.has(id) {
		return known, nil
	}
	if next := k.ask(); next != nil {
		timer := time.NewTimer(unknownWait)
		defer timer.Stop()
		select {
		case <-next:
		case <-timer.C:
		case <-ctx.Done():
		}
		k.mu.Lock()
		k.waiting--
		k.mu.Unlock()
		known = k.known.Load()
	}
	switch {
	case known == nil:
		return nil, ErrUnavailable
	case !known.has(id):
		return nil, nil
	}
	return known, nil
}

// ask wants a fetch. It returns what is closed at its end; nil when there was one just now, or when many wait already.
func (k *keySet) ask() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting >= unknownWaiters {
		return nil
	}
	if k.next == nil {
		if k.now().Sub(k.began) < keysPause {
			return nil
		}
		k.next = make(chan struct{})
		k.fetchSoon()
	}
	k.waiting++
	return k.next
}

// fetchSoon has the keys fetched, and waits for nothing.
func (k *keySet) fetchSoon() {
	select {
	case k.want <- struct{}{}:
	default: // It is wanted already.
	}
}

func (s *knownKeys) has(id string) bool { return id == "" || len(s.keys.Key(id)) > 0 }

// VerifySignature implements [oidc.KeySet].
func (s *knownKeys) VerifySignature(_ context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, err
	}
	id := jws.Signatures[0].Header.KeyID
	for _, key := range s.keys.Keys {
		if id != "" && key.KeyID != id || key.Algorithm != "" && key.Algorithm != jws.Signatures[0].Header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(&key); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("no key of the issuer has made its signature")
}

// issuerTransport bounds the issuer's answers, and shows it a token where it wants to know who asks.
type issuerTransport struct {
	tokenFile string
	current   atomic.Pointer[http.Transport]
}

// trust has the issuer's certificate checked against the authorities from the next connection on, of which it leaves none open;
// nil: the system's.
func (t *issuerTransport) trust(pool *x509.CertPool) {
	fresh := http.DefaultTransport.(*http.Transport).Clone()
	fresh.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if old := t.current.Swap(fresh); old != nil {
		old.CloseIdleConnections()
	}
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (t *issuerTransport) CloseIdleConnections() { t.current.Load().CloseIdleConnections() }

// RoundTrip implements [http.RoundTripper].
func (t *issuerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.tokenFile != "" {
		token, err := os.ReadFile(t.tokenFile)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := t.current.Load().RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxIssuerBytes), resp.Body}
	}
	return resp, err
}
