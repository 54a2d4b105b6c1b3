package webhook_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/client/webhook"
)

// explain is what a handler of v makes of r at a time.
func explain(t testing.TB, v vector, s webhook.Source, r *http.Request, at time.Time) webhook.Explanation {
	t.Helper()
	return handler(t, nil, s, webhook.WithClock(func() time.Time { return at })).Explain(r)
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Preset, func(t *testing.T) {
			if e := explain(t, v, v.source(), v.request(), v.time()); !e.Verified {
				t.Fatalf("%s: not verified: %v %v", v.Source, e.Err, e.Hints)
			}
			for name, change := range map[string]func(*vector){
				"another body":   func(v *vector) { v.Body = strings.Replace(v.Body, v.Body[len(v.Body)-2:], "~~", 1) },
				"another secret": func(v *vector) { v.Secret = other(v.Secret) },
				"no headers":     func(v *vector) { v.Headers = nil },
			} {
				if v.Preset == "adyen" && name != "another secret" {
					continue // The signature is in the body: see TestAdyenSignsItems.
				}
				changed := v
				change(&changed)
				if e := explain(t, changed, changed.source(), changed.request(), v.time()); e.Verified || e.Status != 401 && e.Status != 503 {
					t.Errorf("%s is verified, or answered %d", name, e.Status)
				}
			}
		})
	}
}

// other is another secret of the same form.
func other(secret string) string {
	switch {
	case strings.HasPrefix(secret, "whpk_"):
		return "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
	case strings.HasPrefix(secret, "MFkw"):
		k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		der, _ := x509.MarshalPKIXPublicKey(k.Public())
		return base64.StdEncoding.EncodeToString(der)
	case strings.HasPrefix(secret, "whsec_"):
		return "whsec_AAAA" + secret[len("whsec_AAAA"):]
	}
	return "0000" + secret[4:]
}

// TestPromisedHaveVectors holds the tiers to what they promise.
func TestPromisedHaveVectors(t *testing.T) {
	has := make(map[string]bool)
	for _, v := range vectors(t) {
		if v.Source == "" {
			t.Errorf("a value of %s has no source", v.Preset)
		}
		has[v.Preset] = true
	}
	for _, p := range webhook.Presets() {
		if len(p.Sources) == 0 || p.Title == "" || p.Secret == "" || p.ID == "" || p.Tier != webhook.Promised && p.Tier != webhook.Experimental {
			t.Errorf("%s is incomplete", p.Name)
		}
		if p.Tier != webhook.Promised {
			continue
		}
		if !p.HasID {
			t.Errorf("%s is promised and has no id", p.Name)
		}
		if token := p.Signatures[0].Kind == webhook.Token; !has[p.Name] && !token {
			t.Errorf("%s is promised and has no published value", p.Name)
		}
	}
	if got := len(webhook.Presets()); got < 28 {
		t.Errorf("there are %d presets", got)
	}
}

// TestTolerance: a time is refused on both sides, and never before the signature is good.
func TestTolerance(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Now == 0 || v.Preset == "sendgrid" { // SendGrid signs the time and says nothing of an age.
			continue
		}
		t.Run(v.Preset, func(t *testing.T) {
			s := v.source()
			s.Tolerance = 10 * time.Second
			for off, want := range map[time.Duration]webhook.Reason{
				0: webhook.Accepted, 10 * time.Second: webhook.Accepted, -10 * time.Second: webhook.Accepted,
				11 * time.Second: webhook.SignatureStale, -11 * time.Second: webhook.SignatureAhead,
			} {
				e := explain(t, v, s, v.request(), v.time().Add(off))
				if e.Verified != (want == webhook.Accepted) || !e.Verified && e.Reason != want {
					t.Errorf("%v off: %s %v", off, e.Reason, e.Err)
				}
			}
		})
	}
}

// TestOtherSigned checks the values of senders that have no preset, with schemes as a configuration has them.
func TestOtherSigned(t *testing.T) {
	hub := webhook.Signature{Kind: webhook.HMAC, Header: "X-Hub-Signature", Prefix: "sha256=", Template: "{body}", Encoding: "hex"}
	for name, test := range map[string]struct {
		signature            webhook.Signature
		secret, body, signed string
	}{
		// Several test files name Atlassian as the origin of this one.
		"Bitbucket and Jira": {hub, "It's a Secret to Everybody", "Hello World!",
			"sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"},
		// github.com/Adyen/adyen-go-api-library src/hmacvalidator/hmacvalidator_test.go
		"Adyen platforms": {
			webhook.Signature{Kind: webhook.HMAC, Header: "HmacSignature", Template: "{body}", Encoding: "base64", Key: "hex"},
			"DFB1EB5485895CFA84146406857104ABB4CBCABDC8AAF103A624C8F6A3EAAB00", adyenPlatform,
			"yitBTPnDGtbAMG9rTxUa1e6lFGpa4PnrD6rErOmEhJ8=",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := webhook.Source{Name: "test", Signature: &test.signature, Secrets: webhook.Secrets(test.secret), ID: fixed}
			v := vector{Body: test.body, Headers: map[string]string{test.signature.Header: test.signed}}
			if e := explain(t, v, s, v.request(), v.time()); !e.Verified {
				t.Error(e.Err)
			}
			v.Body += " "
			if e := explain(t, v, s, v.request(), v.time()); e.Verified {
				t.Error("another body is verified")
			}
		})
	}
}

const adyenPlatform = `{
    "type": "merchant.created",
    "environment": "test",
    "createdAt": "01-01-2024",
    "data": {
        "capabilities": {
            "sendToTransferInstrument": {
                "requested": true,
                "requestedLevel": "notApplicable"
            }
        },
        "companyId": "YOUR_COMPANY_ID",
        "merchantId": YOUR_MERCHANT_ACCOUNT",
        "status": "PreActive"
    }
}`

// TestBodyIsReadLast: a body whose signature is wrong is not decoded to find out when it was signed.
func TestBodyIsReadLast(t *testing.T) {
	for text, want := range map[string]webhook.Reason{
		`{"webhookTimestamp":1600000000000}`: webhook.Accepted, `{"webhookTimestamp":1599999000000}`: webhook.SignatureStale,
		`{"webhookTimestamp":"soon"}`: webhook.SignatureMalformed, `{}`: webhook.SignatureMalformed, `{`: webhook.SignatureMalformed,
	} {
		v := vector{Preset: "linear", Secret: "secret", Body: text, Headers: map[string]string{"Linear-Signature": macHex("secret", text)}}
		if e := explain(t, v, v.source(), v.request(), v.time()); e.Reason != want {
			t.Errorf("%s: %s %v", text, e.Reason, e.Err)
		}
		v.Headers["Linear-Signature"] = macHex("other", text)
		if e := explain(t, v, v.source(), v.request(), v.time()); e.Reason != webhook.SignatureWrong {
			t.Errorf("forged %s: %s %v", text, e.Reason, e.Err)
		}
	}
}

// TestLargeBodiesOfStrangers: of those that have to be decoded to find the signature, few are at once; the others wait, as long as the
// answer may take. Small ones and those that are signed by a header do not.
func TestLargeBodiesOfStrangers(t *testing.T) {
	large := `{"token":"secret","id":"1","x":"` + strings.Repeat("x", 20<<10) + `"}`
	for name, test := range map[string]struct {
		signature webhook.Signature
		second    string
		want      webhook.Reason
	}{
		"in the body":      {webhook.Signature{Kind: webhook.Token, Field: "token"}, large, webhook.NotRecorded},
		"a small one":      {webhook.Signature{Kind: webhook.Token, Field: "token"}, `{"token":"secret","id":"1"}`, webhook.Accepted},
		"signed by header": {webhook.Signature{Kind: webhook.Token, Header: "X-Token"}, large, webhook.Accepted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var slow atomic.Bool
				checking, leave := make(chan struct{}), make(chan struct{})
				s := token()
				s.Signature, s.Secrets = &test.signature, func() []string {
					if slow.Load() {
						checking <- struct{}{}
						<-leave
					}
					return []string{"secret"}
				}
				h := handler(t, &jobs{}, s)
				slow.Store(true)
				const atOnce = 4
				answers := make(chan int, atOnce)
				for range atOnce {
					go func() {
						w := recorder()
						h.ServeHTTP(w, post(large))
						answers <- w.Code
					}()
					<-checking
				}
				slow.Store(false)
				reasons := make(chan webhook.Reason, 1)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					reasons <- h.Explain(post(test.second).WithContext(ctx)).Reason
				}()
				if got := <-reasons; got != test.want {
					t.Errorf("%s", got)
				}
				close(leave)
				for range atOnce {
					if code := <-answers; code != 200 {
						t.Errorf("answered %d", code)
					}
				}
				if got := h.Explain(post(large)).Reason; got != webhook.Accepted {
					t.Errorf("afterwards: %s", got)
				}
			})
		})
	}
}
