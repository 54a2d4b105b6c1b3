package testenv

import (
	"crypto/ecdsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer is an OIDC issuer for tests.
type Issuer struct {
	t      testing.TB
	server *httptest.Server

	mu   sync.Mutex
	keys map[string]*ecdsa.PrivateKey
	// others are published beside the keys, as they are.
	others []string
	// asked counts the requests for keys.
	asked int
	// before is called before each request is answered.
	before func(*http.Request)
}

// NewIssuer starts an issuer with a key, "first".
func NewIssuer(t testing.TB) *Issuer {
	i := &Issuer{t: t, keys: make(map[string]*ecdsa.PrivateKey), before: func(*http.Request) {}}
	i.AddKey("first")
	i.server = httptest.NewServer(i)
	t.Cleanup(i.server.Close)
	return i
}

// URL is the issuer's.
func (i *Issuer) URL() string { return i.server.URL }

// Close has the issuer answer no more.
func (i *Issuer) Close() { i.server.Close() }

// Asked is how often the keys were asked for.
func (i *Issuer) Asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// Before has f called before each request is answered.
func (i *Issuer) Before(f func(*http.Request)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.before = f
}

// AddKey makes a key and publishes it.
func (i *Issuer) AddKey(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys[id] = newKey(i.t)
}

// AddOther publishes a key in JSON as it is, which may be of a kind that nobody knows.
func (i *Issuer) AddOther(jwk string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.others = append(i.others, jwk)
}

// RemoveKey publishes the key no more.
func (i *Issuer) RemoveKey(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.keys, id)
}

// Key is the private key of the id.
func (i *Issuer) Key(id string) *ecdsa.PrivateKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[id]
}

// ServeHTTP answers as an issuer does.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	before := i.before
	i.mu.Unlock()
	before(r)
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL(), "jwks_uri": i.URL() + "/keys"})
	case "/keys":
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		all := []any{}
		for _, other := range i.others {
			all = append(all, json.RawMessage(other))
		}
		for id, key := range i.keys {
			all = append(all, jose.JSONWebKey{Key: &key.PublicKey, KeyID: id, Algorithm: "ES256", Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": all})
	default:
		http.NotFound(w, r)
	}
}

// Token is a token for the audience "jobonce" that is good for an hour, with these claims over the usual ones.
func (i *Issuer) Token(keyID string, claims map[string]any) string {
	return Sign(i.t, jose.ES256, i.Key(keyID), keyID, i.Claims(claims))
}

// Claims are the usual ones, with these over them.
func (i *Issuer) Claims(claims map[string]any) map[string]any {
	now := time.Now()
	all := map[string]any{"iss": i.URL(), "aud": "jobonce", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	return all
}

// Sign makes a JWT.
func Sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, keyID string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: keyID}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
