package webhook_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
)

func macHex(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// v0 signs as Slack and Zoom do.
func v0(header, stampHeader, body string) map[string]string {
	return map[string]string{header: "v0=" + macHex("secret", "v0:1600000000:"+body), stampHeader: "1600000000", "Content-Type": "application/json"}
}

func TestHandshakes(t *testing.T) {
	slack := func(body string) map[string]string {
		return v0("X-Slack-Signature", "X-Slack-Request-Timestamp", body)
	}
	zoom := func(body string) map[string]string { return v0("x-zm-signature", "x-zm-request-timestamp", body) }
	const challenge, validation = `{"type":"url_verification","challenge":"<b>c</b>"}`, `{"event":"endpoint.url_validation","payload":{"plainToken":"p"}}`
	const oracle = `{"event":"endpoint.url_validation","payload":{"plainToken":"v0:1600000000:{}"}}`
	for name, test := range map[string]struct {
		preset, method, url, body string
		headers                   map[string]string
		reason                    webhook.Reason
		status                    int
		answer, kind              string
	}{
		"Slack":                  {preset: "slack", body: challenge, headers: slack(challenge), reason: webhook.Handshaken, status: 200, answer: "<b>c</b>", kind: "text/plain"},
		"Slack, unsigned":        {preset: "slack", body: challenge, reason: webhook.SignatureMissing, status: 401},
		"Zoom":                   {preset: "zoom", body: validation, headers: zoom(validation), reason: webhook.Handshaken, status: 200, answer: `{"encryptedToken":"` + macHex("secret", "p") + `","plainToken":"p"}`, kind: "application/json"},
		"Zoom, unsigned":         {preset: "zoom", body: validation, reason: webhook.SignatureMissing, status: 401},
		"Zoom signs no delivery": {preset: "zoom", body: oracle, headers: zoom(oracle), reason: webhook.HandshakeRefused, status: 403},
		"Meta":                   {preset: "meta", method: "GET", url: "/?hub.mode=subscribe&hub.challenge=42&hub.verify_token=vt", reason: webhook.Handshaken, status: 200, answer: "42", kind: "text/plain"},
		"Meta, another token":    {preset: "meta", method: "GET", url: "/?hub.mode=subscribe&hub.challenge=42&hub.verify_token=x", reason: webhook.HandshakeRefused, status: 403},
		"Meta, no handshake":     {preset: "meta", method: "GET", url: "/", reason: webhook.MethodNotAllowed, status: 405},
		"Graph":                  {preset: "microsoft-graph", url: "/?validationToken=%3Cb%3E+x", reason: webhook.Handshaken, status: 200, answer: "<b> x", kind: "text/plain"},
		"Graph, too long":        {preset: "microsoft-graph", url: "/?validationToken=" + strings.Repeat("x", 5000), reason: webhook.HandshakeRefused, status: 403},
		"Graph, a delivery":      {preset: "microsoft-graph", body: `{"value":[{"clientState":"secret"}]}`, reason: webhook.Accepted, status: 202},
		"Graph, one forged":      {preset: "microsoft-graph", body: `{"value":[{"clientState":"secret"},{"clientState":"x"}]}`, reason: webhook.SignatureWrong, status: 401},
		"Graph, one without":     {preset: "microsoft-graph", body: `{"value":[{"clientState":"secret"},{}]}`, reason: webhook.SignatureMissing, status: 401},
		"Graph, none":            {preset: "microsoft-graph", body: `{"value":[]}`, reason: webhook.SignatureMissing, status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			v := vector{Preset: test.preset, Secret: "secret", Method: test.method, Body: test.body, Headers: test.headers}
			if test.url != "" {
				v.URL = "https://example.com" + test.url
			}
			s, j := v.source(), &jobs{}
			s.VerifyTokens = webhook.Secrets("", "older", "vt")
			resp, report := deliver(t, j, s, v.request(), webhook.WithClock(v.time))
			if resp.StatusCode != test.status || report.Reason != test.reason {
				t.Fatalf("answered %d for %s: %v", resp.StatusCode, report.Reason, report.Err)
			}
			if test.reason == webhook.Handshaken {
				got, _ := io.ReadAll(resp.Body)
				if string(got) != test.answer || !strings.HasPrefix(resp.Header.Get("Content-Type"), test.kind) ||
					resp.Header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("answered %q as %s", got, resp.Header.Get("Content-Type"))
				}
			}
			if test.reason != webhook.Accepted && len(j.all) > 0 {
				t.Error("a handshake was recorded")
			}
		})
	}
}

// TestZoomRotatesSecrets: Zoom hears of the secret that it knows.
func TestZoomRotatesSecrets(t *testing.T) {
	text := `{"event":"endpoint.url_validation","payload":{"plainToken":"q"}}`
	v := vector{Preset: "zoom", Body: text, Headers: v0("x-zm-signature", "x-zm-request-timestamp", text)}
	s := v.source()
	s.Secrets = webhook.Secrets("newer", "secret", "older")
	resp, _ := deliver(t, &jobs{}, s, v.request(), webhook.WithClock(v.time))
	if got, _ := io.ReadAll(resp.Body); !strings.Contains(string(got), macHex("secret", "q")) {
		t.Errorf("answered %d %s", resp.StatusCode, got)
	}
}

// TestAdyenSignsItems: what is signed of an item cannot be changed, and no item goes unsigned.
func TestAdyenSignsItems(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Preset != "adyen" {
			continue
		}
		for _, change := range [][2]string{
			{`"pspReference": "pspReference"`, `"pspReference": "another"`}, {`"value": 1000`, `"value": 1001`}, {`"success": "true"`, `"success": "false"`},
			{`"hmacSignature": "i`, `"hmacSignature": "j`}, {`"notificationItems": [`, `"notificationItems": [{"NotificationRequestItem": {}}, `},
			{`"notificationItems"`, `"items"`},
		} {
			changed := v
			if changed.Body = strings.Replace(v.Body, change[0], change[1], 1); changed.Body == v.Body {
				t.Fatalf("%s is not in the body", change[0])
			}
			if e := explain(t, changed, changed.source(), changed.request(), v.time()); e.Verified {
				t.Errorf("%s is verified", change[1])
			}
		}
	}
}

// TestTwilioSignsBodies: a body that is neither a form nor named by its hash in the URL is not signed.
func TestTwilioSignsBodies(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Preset != "twilio" {
			continue
		}
		for name, change := range map[string]func(*http.Request){
			"another type": func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
			"another form": func(r *http.Request) {
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				r.Body = body("a=b")
			},
			"another URL":  func(r *http.Request) { r.URL.RawQuery += "&x=y" },
			"another host": func(r *http.Request) { r.Host = "example.org" },
		} {
			r := v.request()
			json := r.Header.Get("Content-Type") == "application/json"
			change(r)
			if e := explain(t, v, v.source(), r, v.time()); e.Verified && !(json && name == "another type") {
				t.Errorf("%s is verified", name)
			}
		}
		// Behind a proxy the public URL is configured; Twilio signs it with the port or without.
		for _, public := range []string{"https://mycompany.com", "https://mycompany.com:443", "https://mycompany.com/myapp.php#rc=3"} {
			r, s := v.request(), v.source()
			r.Host, r.TLS, s.PublicURL = "10.0.0.1:8080", nil, public
			if e := explain(t, v, s, r, v.time()); !e.Verified {
				t.Errorf("behind %s: %v %v", public, e.Err, e.Hints)
			}
		}
	}
}

// TestTwilioHashOfBody: the hash counts that is in the URL which is signed, and not another that is asked for.
func TestTwilioHashOfBody(t *testing.T) {
	const forged = `{"MessageSid":"forged"}`
	sum := sha256.Sum256([]byte(forged))
	hashed := "bodySHA256=" + hex.EncodeToString(sum[:])
	for name, test := range map[string]struct {
		public, signed, query string
		want                  webhook.Reason
	}{
		"asked for":          {"https://example.com/hook?a=b", "https://example.com/hook?a=b", "a=b&" + hashed, webhook.SignatureMissing},
		"asked for, no path": {"https://example.com", "https://example.com/hook?" + hashed, hashed, webhook.Accepted},
		"configured":         {"https://example.com/hook?" + hashed, "https://example.com/hook?" + hashed, "", webhook.Accepted},
	} {
		mac := hmac.New(sha1.New, []byte("12345"))
		_, _ = io.WriteString(mac, test.signed)
		v := vector{Preset: "twilio", Secret: "12345", URL: "https://example.com/hook?" + test.query, Body: forged, Headers: map[string]string{
			"X-Twilio-Signature": base64.StdEncoding.EncodeToString(mac.Sum(nil)), "Content-Type": "application/json",
		}}
		s := v.source()
		s.PublicURL, s.ID = test.public, fixed
		if e := explain(t, v, s, v.request(), v.time()); e.Reason != test.want {
			t.Errorf("%s: %s %v", name, e.Reason, e.Err)
		}
	}
}

func body(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

// TestHints: the mistakes that are made most often are named.
func TestHints(t *testing.T) {
	for name, test := range map[string]struct {
		body, secret, want string
	}{
		"a line's end":    {"{}\n", "secret", "line's end"},
		"blanks":          {"{ }", "secret", "blanks"},
		"without a whsec": {"{}", "whsec_secret", "without whsec_"},
		"another secret":  {"{}", "other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := vector{Preset: "github", Secret: test.secret, Body: test.body,
				Headers: map[string]string{"X-Hub-Signature-256": "sha256=" + macHex("secret", "{}")}}
			e := explain(t, v, v.source(), v.request(), v.time())
			if hints := strings.Join(e.Hints, ";"); !strings.Contains(hints, test.want) || (test.want == "") != (hints == "") {
				t.Errorf("hints %q", hints)
			}
		})
	}
}
