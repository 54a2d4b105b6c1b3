package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/jobonce/jobonce/internal/testenv"
)

// kubernetes is what a token of a service account claims beside the usual.
var kubernetes = map[string]any{
	"aud": []string{"jobonce"}, "sub": "system:serviceaccount:shop:frontend", "nbf": time.Now().Unix(),
	"kubernetes.io": map[string]any{
		"namespace": "shop", "pod": map[string]string{"name": "frontend-0", "uid": "1"}, "serviceaccount": map[string]string{"name": "frontend", "uid": "2"},
	},
}

const oidcEntries = `
- {name: frontend, oidc: {sub: 'system:serviceaccount:shop:frontend'}, allow: [record]}
- {name: person, oidc: {email: ada@example.org}, allow: [read]}
- {name: machine, oidc: {client_id: m1, verified: 'true'}, allow: [work]}
- {name: other, oidc: {sub: both}, allow: [work]}
- {name: another, oidc: {azp: both}, allow: [work]}`

// openOIDC makes an authority that believes the issuer, once it has its keys when wait is true.
func openOIDC(t *testing.T, issuer *testenv.Issuer, wait bool) *Authority {
	t.Helper()
	i, err := NewIssuer(IssuerConfig{URL: issuer.URL(), Audience: "jobonce", Logger: testenv.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := open(t, Config{Issuer: i}, oidcEntries)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if wait {
		i.keys.mu.Lock()
		next := i.keys.next
		i.keys.mu.Unlock()
		if next != nil {
			<-next
		}
		for i.keys.known.Load() == nil {
			if next := i.keys.ask(); next != nil {
				<-next
			}
		}
	}
	return a
}

func bearer(token string) Shown { return Shown{Authorization: []string{"Bearer " + token}} }

func TestOIDC(t *testing.T) {
	issuer := testenv.NewIssuer(t)
	a := openOIDC(t, issuer, true)
	now := time.Now()
	key := issuer.Key("first")
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	good := issuer.Token("first", kubernetes)
	parts := strings.Split(good, ".")
	payload := fmt.Sprintf(`{"iss":%q,"aud":"jobonce","sub":"system:serviceaccount:shop:frontend","exp":%d}`, issuer.URL(), now.Add(time.Hour).Unix())
	tampered := parts[0] + "." + part(payload) + "." + parts[2]
	stranger := testenv.NewIssuer(t)
	with := func(claims map[string]any) string { return issuer.Token("first", claims) }
	for _, tc := range []struct{ name, token, caller, problem string }{
		{"service account", good, "frontend", ""},
		{"the same again", good, "frontend", ""},
		{"e-mail", with(map[string]any{"email": "ada@example.org", "email_verified": true}), "person", ""},
		{"e-mail that nobody verified", with(map[string]any{"email": "ada@example.org"}), "", "no caller"},
		{"two claims", with(map[string]any{"client_id": "m1", "verified": true}), "machine", ""},
		{"one claim of two", with(map[string]any{"client_id": "m1"}), "", "no caller"},
		{"two callers' claims", with(map[string]any{"sub": "both", "azp": "both"}), "", "two callers"},
		{"other subject", with(map[string]any{"sub": "system:serviceaccount:shop:other"}), "", "no caller"},
		{"just expired", with(map[string]any{"sub": "both", "exp": now.Add(-30 * time.Second).Unix()}), "other", ""},
		{"expired", with(map[string]any{"sub": "both", "exp": now.Add(-2 * time.Minute).Unix()}), "", "expired"},
		{"without an end", with(map[string]any{"sub": "both", "exp": nil}), "", "not right"},
		{"of the future", with(map[string]any{"sub": "both", "nbf": now.Add(time.Hour).Unix()}), "", "not right"},
		{"other audience", with(map[string]any{"sub": "both", "aud": "other"}), "", "not right"},
		{"other issuer", with(map[string]any{"sub": "both", "iss": "https://example.org"}), "", "not right"},
		{"other issuer's key", testenv.Sign(t, jose.ES256, stranger.Key("first"), "first", issuer.Claims(map[string]any{"sub": "both"})), "", "not right"},
		{"unknown key", testenv.Sign(t, jose.ES256, stranger.Key("first"), "unknown", issuer.Claims(map[string]any{"sub": "both"})), "", "none of the issuer's"},
		{"tampered", tampered, "", "not right"},
		{"no signature", part(`{"alg":"none"}`) + "." + part(payload) + ".", "", "not a JWT"},
		{"public key as a secret", testenv.Sign(t, jose.HS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), "first",
			issuer.Claims(map[string]any{"sub": "both"})), "", "not a JWT"},
		{"no JWT", "a.b.c", "", "not a JWT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := a.Who(t.Context(), bearer(tc.token))
			switch {
			case tc.problem == "" && (err != nil || c.Name != tc.caller):
				t.Errorf("got %v, %v, want %s", c, err, tc.caller)
			case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)):
				t.Errorf("got %v, %v, want %q", c, err, tc.problem)
			case err != nil && (strings.Contains(err.Error(), "example.org") || strings.Contains(err.Error(), parts[0])):
				t.Errorf("the error repeats the token: %v", err)
			}
		})
	}
}

// TestOIDCKeys: new keys are found, old ones are forgotten together with what they signed.
func TestOIDCKeys(t *testing.T) {
	issuer := testenv.NewIssuer(t)
	a := openOIDC(t, issuer, true)
	keys := a.cfg.Issuer.keys
	passed := time.Duration(0)
	keys.mu.Lock()
	keys.now = func() time.Time { return time.Now().Add(passed) } // under the lock
	keys.mu.Unlock()
	old := issuer.Token("first", kubernetes)
	issuer.AddKey("second")
	fresh := issuer.Token("second", kubernetes)
	if _, err := a.Who(t.Context(), bearer(fresh)); err == nil {
		t.Fatal("the keys were fetched a moment ago, and again")
	}
	keys.mu.Lock()
	passed = keysPause
	keys.mu.Unlock()
	for _, token := range []string{fresh, old} {
		if _, err := a.Who(t.Context(), bearer(token)); err != nil {
			t.Fatal(err)
		}
	}
	issuer.RemoveKey("first")
	keys.mu.Lock()
	passed = 2 * keysPause
	keys.mu.Unlock()
	if next := keys.ask(); next != nil {
		<-next
	}
	if _, err := a.Who(t.Context(), bearer(old)); err == nil {
		t.Error("a token counts whose key the issuer has no more")
	}
}

// TestOtherKeysAreLeft: an issuer may publish keys of kinds that are not known here, and malformed ones, before its good ones.
func TestOtherKeysAreLeft(t *testing.T) {
	issuer := testenv.NewIssuer(t)
	for _, jwk := range []string{
		`{"kty":"OKP","crv":"Ed448","kid":"k","x":"AAAA"}`, `{"kty":"OKP","crv":"X25519","kid":"k","x":"AAAA"}`, `{"kty":"FUTURE","kid":"k"}`,
		`{"kty":"EC","crv":"secp256k1","kid":"k","x":"AAAA","y":"AAAA"}`, `{"kty":"RSA","kid":"k"}`, `{"kid":"k"}`, `{"kty":7}`, `null`, `"x"`, `[]`,
	} {
		issuer.AddOther(jwk)
	}
	i, err := NewIssuer(IssuerConfig{URL: issuer.URL(), Audience: "jobonce", Logger: testenv.Logger(t)})
	testenv.Must(t, err)
	if err := i.keys.fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if known := i.keys.known.Load(); len(known.keys.Keys) != 1 || !known.has("first") || known.has("k") {
		t.Errorf("the keys are %v", known.keys.Keys)
	}
}

// TestIssuersWordsStayOut: what an issuer answers, which may repeat the token that it was shown, stands in no error, and errors are
// short: they are logged.
func TestIssuersWordsStayOut(t *testing.T) {
	const secret = "s3cret"
	file := testenv.WriteFile(t, t.TempDir(), "token", []byte(secret))
	long := "SHOWN" + strings.Repeat("x", 1<<16)
	type answer struct {
		status int
		body   string // SHOWN is what was shown to the issuer, BASE where it is.
	}
	good := answer{200, `{"issuer":"BASE","jwks_uri":"BASE/keys"}`}
	for name, tc := range map[string]struct{ configuration, keys answer }{
		"refused":            {configuration: answer{401, long}},
		"not JSON":           {configuration: answer{200, long}},
		"another issuer":     {configuration: answer{200, `{"issuer":"` + strings.Repeat("x", 1<<16) + `"}`}},
		"a jwks_uri":         {configuration: answer{200, `{"issuer":"BASE","jwks_uri":"` + long + `"}`}},
		"keys are refused":   {good, answer{403, long}},
		"keys are not JSON":  {good, answer{200, long}},
		"keys are no list":   {good, answer{200, `{"keys":{"SHOWN":1}}`}},
		"keys are of no use": {good, answer{200, `{"keys":["SHOWN"]}`}},
	} {
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := tc.configuration
			if r.URL.Path == "/keys" {
				a = tc.keys
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(a.status)
			_, _ = strings.NewReplacer("SHOWN", r.Header.Get("Authorization"), "BASE", server.URL).WriteString(w, a.body)
		}))
		i, err := NewIssuer(IssuerConfig{URL: server.URL, Audience: "jobonce", TokenFile: file, Logger: testenv.Logger(t)})
		testenv.Must(t, err)
		if err := i.keys.fetch(t.Context()); err == nil || strings.Contains(err.Error(), secret) || len(err.Error()) > 400 {
			t.Errorf("%s: %.400s", name, fmt.Sprint(err))
		}
		server.Close()
	}
}

// TestOIDCWithoutIssuer: who has a good token does not wait for an issuer that is away, hangs, or is asked for thousands of
// keys, and others do not wait for long.
func TestOIDCWithoutIssuer(t *testing.T) {
	t.Run("never there", func(t *testing.T) {
		issuer := testenv.NewIssuer(t)
		issuer.Close()
		a := openOIDC(t, issuer, false)
		if _, err := a.Who(t.Context(), bearer(issuer.Token("first", kubernetes))); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		issuer := testenv.NewIssuer(t)
		hang := make(chan struct{})
		a := openOIDC(t, issuer, true)
		issuer.Before(func(*http.Request) { <-hang })
		t.Cleanup(func() { close(hang) })
		a.cfg.Issuer.keys.mu.Lock()
		a.cfg.Issuer.keys.began = time.Time{}
		a.cfg.Issuer.keys.mu.Unlock()
		stranger := testenv.NewIssuer(t)
		signed := testenv.Sign(t, jose.ES256, stranger.Key("first"), "", issuer.Claims(nil))
		refused := make(chan error)
		const attackers = 10_000
		waited := 0
		for i := range attackers {
			header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":"ES256","kid":"%d"}`, i))
			token := header + signed[strings.IndexByte(signed, '.'):]
			go func() {
				_, err := a.Who(t.Context(), bearer(token))
				refused <- err
			}()
			if i%100 == 0 {
				began := time.Now()
				// Its token is new each time.
				if _, err := a.Who(t.Context(), bearer(issuer.Token("first", kubernetes))); err != nil {
					t.Fatal(err)
				}
				if time.Since(began) > unknownWait/2 {
					waited++
				}
			}
		}
		// One or another waits for a processor, among so many. For the issuer all would.
		if waited > attackers/100/2 {
			t.Errorf("%d good tokens of %d wait", waited, attackers/100)
		}
		for range attackers {
			if err := <-refused; err == nil {
				t.Fatal("an unknown key passes")
			}
		}
		if n := issuer.Asked(); n > 2 {
			t.Errorf("the keys were asked for %d times", n)
		}
	})
}

// TestIssuerAuthoritiesAreReadAgain: an issuer whose certificate is of another authority is reached once the file has that, and
// a broken file changes nothing.
func TestIssuerAuthoritiesAreReadAgain(t *testing.T) {
	issuer, before, after := testenv.NewIssuer(t), testenv.NewCA(t, "before"), testenv.NewCA(t, "after")
	cert := after.Issue("127.0.0.1").TLS(t)
	server := httptest.NewUnstartedServer(issuer)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes
	server.StartTLS()
	t.Cleanup(server.Close)
	file := testenv.WriteFile(t, t.TempDir(), "ca.pem", before.PEM)
	i, err := NewIssuer(IssuerConfig{URL: server.URL, Audience: "jobonce", CAFile: file, Logger: testenv.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	fails := func() {
		t.Helper()
		var unknown x509.UnknownAuthorityError
		if err := i.keys.fetch(t.Context()); !errors.As(err, &unknown) {
			t.Errorf("an issuer of another authority: %v", err)
		}
	}
	look := func() { // twice: contents count once they stand still
		for range 2 {
			if contents, changed, err := i.authorities.look(); changed {
				i.take(contents, err)
			}
		}
	}
	fails()
	testenv.Must(t, os.WriteFile(file, []byte("broken"), 0o600))
	look()
	fails()
	testenv.Must(t, os.WriteFile(file, after.PEM, 0o600))
	look()
	if len(i.keys.want) != 1 {
		t.Error("the keys are not fetched anew")
	}
	// It answers, as another issuer than it is asked as, since the name in its document is that of its plain listener.
	if err := i.keys.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "is that of the issuer") {
		t.Errorf("its authority is known now: %v", err)
	}
	testenv.Must(t, os.Remove(file))
	look()
	if err := i.keys.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "is that of the issuer") {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestVerifiedTokensAreBounded(t *testing.T) {
	var c verifiedTokens
	for i := range 5 * maxVerified {
		c.put([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, new(verifiedToken))
		if c.get([32]byte{}) == nil {
			t.Fatal("one that is used all the time is forgotten")
		}
	}
	if n := len(c.young) + len(c.old); n > 2*maxVerified {
		t.Errorf("%d are remembered", n)
	}
}

func TestIssuerURL(t *testing.T) {
	for url, ok := range map[string]bool{
		"https://example.org": true, "https://example.org/realms/x": true, "http://127.0.0.1:1": true, "http://localhost:1": true,
		"http://example.org": false, "example.org": false, "": false, "ftp://example.org": false,
	} {
		if _, err := NewIssuer(IssuerConfig{URL: url, Audience: "a"}); (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
	}
}
