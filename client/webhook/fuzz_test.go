package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
)

// FuzzVerify changes one header or the body of a good delivery of each preset: none may be verified that differs in what is
// signed, and none may panic.
func FuzzVerify(f *testing.F) {
	all := vectors(f)
	for i, v := range all {
		for name, value := range v.Headers {
			f.Add(i, name, value, v.Body)
			f.Add(i, name, value+",v1=00 v1,AAAA", v.Body)
		}
		f.Add(i, "X", "", v.Body+" ")
	}
	handlers := make([]*webhook.Handler, len(all))
	for i, v := range all {
		handlers[i] = handler(f, &jobs{}, v.source(), webhook.WithClock(v.time))
	}
	f.Fuzz(func(t *testing.T, i int, name, value, body string) {
		if i < 0 || i >= len(all) || body == "" {
			return
		}
		v := all[i]
		v.Body = body
		r := v.request()
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		e := handlers[i].Explain(r)
		signsFields := v.Preset == "adyen" || v.Preset == "twilio" // There other bodies can mean the same.
		if e.Verified && body != all[i].Body && !signsFields {
			t.Errorf("%s: the body %q is verified", v.Preset, body)
		}
	})
}

// FuzzScheme takes schemes as a configuration may have them, and requests as anybody may send them.
func FuzzScheme(f *testing.F) {
	f.Add("hmac", "X-Sig", "t=1,v1=00", ",", "v1=", "t=", "{timestamp}.{body}", "hex", "text", `{"a":1}`)
	f.Add("ed25519", "X-Sig", "AAAA", "", "", "", "{sha256}", "base64", "hex", "x")
	f.Add("ecdsa", "X-Sig", "AAAA", "", "", "", "{header:A}{body}", "base64", "spki", "x")
	f.Add("token", "X-Sig", "secret", "", "", "", "", "", "", "x")
	f.Add("sns", "", "", "", "", "", "", "", "", `{"Type":"Notification","Signature":"AA==","SigningCertURL":"https://sns.a.amazonaws.com/x.pem"}`)
	f.Add("hmac", "X-Sig", "00", "", "", "", "{field:a.b}{params}{url}{method}", "hex", "", `{"a":{"b":1}}`)
	f.Fuzz(func(t *testing.T, kind, header, value, split, prefix, stamp, template, encoding, key, body string) {
		h, err := webhook.NewHandler(&jobs{}, webhook.Source{
			Name: "fuzz", ID: fixed, Secrets: webhook.Secrets("secret"),
			Signature: &webhook.Signature{Kind: webhook.Kind(kind), Header: header, Split: split, Prefix: prefix,
				TimestampPrefix: stamp, Template: template, Encoding: encoding, Key: key},
		})
		if err != nil {
			return
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header[http.CanonicalHeaderKey(header)] = []string{value}
		if e := h.Explain(r); e.Verified && kind != "token" {
			t.Errorf("verified without the secret: %q signed by %q", body, value)
		}
	})
}

// FuzzItems takes bodies apart.
func FuzzItems(f *testing.F) {
	f.Add(`[{"id":"1"},{"id":2}]`, "[]", "id")
	f.Add(`{"a":{"b":[{"id":"1"}]}}`, "a.b[]", "id")
	f.Add(`{"a":[[1],[2]]}`, "a[].[]", "")
	f.Fuzz(func(t *testing.T, body, path, id string) {
		s := token()
		s.Items, s.ID = webhook.Array(path), webhook.Field(id)
		e := handler(t, &jobs{}, s).Explain(post(body))
		for _, item := range e.Items {
			if len(item.JobID) > 255 {
				t.Errorf("the id has %d bytes", len(item.JobID))
			}
		}
	})
}
