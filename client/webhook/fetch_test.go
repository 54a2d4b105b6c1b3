package webhook_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client/webhook"
)

// web answers in the place of the network, and counts.
type web struct {
	pages map[string][]byte
	asked map[string]int
}

func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked[r.URL.String()]++
	page, ok := w.pages[r.URL.String()]
	if !ok {
		return nil, errors.New("away")
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(page)), Request: r}, nil
}

func newWeb() *web { return &web{pages: make(map[string][]byte), asked: make(map[string]int)} }

const (
	certURL    = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-x.pem"
	confirmURL = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=t"
	topic      = "arn:aws:sns:eu-west-1:123456789012:topic"
)

// snsMessage is a message of SNS, signed by key.
func snsMessage(t *testing.T, key *rsa.PrivateKey, version string, fields map[string]string) map[string]string {
	t.Helper()
	m := map[string]string{"Type": "Notification", "MessageId": "m1", "TopicArn": topic, "Message": "hello\nMessageId\nm2",
		"Timestamp": "2026-11-30T00:00:00.000Z", "SignatureVersion": version, "SigningCertURL": certURL}
	for name, value := range fields {
		m[name] = value
	}
	var text strings.Builder
	for _, name := range []string{"Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"} {
		if value, ok := m[name]; ok {
			text.WriteString(name + "\n" + value + "\n")
		}
	}
	var signature []byte
	var err error
	if version == "1" {
		sum := sha1.Sum([]byte(text.String()))
		signature, err = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA1, sum[:])
	} else {
		sum := sha256.Sum256([]byte(text.String()))
		signature, err = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	}
	if err != nil {
		t.Fatal(err)
	}
	m["Signature"] = base64.StdEncoding.EncodeToString(signature)
	return m
}

func certificate(t *testing.T, key *rsa.PrivateKey, until time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"}, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestSNS(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		version string
		fields  map[string]string // before it is signed
		after   map[string]string // changed afterwards
		away    bool
		expired bool
		reason  webhook.Reason
		fetches int
	}{
		"version 1":            {version: "1", reason: webhook.Accepted, fetches: 1},
		"version 2":            {version: "2", fields: map[string]string{"Subject": "s"}, reason: webhook.Accepted, fetches: 1},
		"version 3":            {version: "3", reason: webhook.SignatureMalformed, fetches: 1},
		"changed":              {version: "2", after: map[string]string{"MessageId": "m2"}, reason: webhook.SignatureWrong, fetches: 1},
		"somebody's topic":     {version: "2", fields: map[string]string{"TopicArn": topic + "2"}, reason: webhook.SignatureWrong},
		"another host":         {version: "2", fields: map[string]string{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com.evil.org/x.pem"}, reason: webhook.SignatureMalformed},
		"a user in the URL":    {version: "2", fields: map[string]string{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com@evil.org/x.pem"}, reason: webhook.SignatureMalformed},
		"not https":            {version: "2", fields: map[string]string{"SigningCertURL": strings.Replace(certURL, "https", "http", 1)}, reason: webhook.SignatureMalformed},
		"no certificate there": {version: "2", fields: map[string]string{"SigningCertURL": strings.TrimSuffix(certURL, ".pem")}, reason: webhook.SignatureMalformed},
		"certificate away":     {version: "2", away: true, reason: webhook.KeyUnavailable, fetches: 1},
		"certificate over":     {version: "2", expired: true, reason: webhook.SignatureStale, fetches: 1},
		"no signature":         {version: "2", after: map[string]string{"Signature": ""}, reason: webhook.SignatureMissing},
		"another type":         {version: "2", after: map[string]string{"Type": "X"}, reason: webhook.SignatureMissing},
		"confirmation": {version: "2", fields: map[string]string{"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": confirmURL},
			reason: webhook.Handshaken, fetches: 1},
		"confirmation away": {version: "2", fields: map[string]string{"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": confirmURL + "2"},
			reason: webhook.HandshakeFailed, fetches: 1},
		"confirmation elsewhere": {version: "2", fields: map[string]string{"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": "https://evil.org/"},
			reason: webhook.HandshakeRefused, fetches: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWeb()
			until := now.Add(time.Hour)
			if test.expired {
				until = now.Add(-time.Hour)
			}
			if w.pages[confirmURL] = []byte("ok"); !test.away {
				w.pages[certURL] = certificate(t, key, until)
			}
			m := snsMessage(t, key, test.version, test.fields)
			for field, value := range test.after {
				m[field] = value
			}
			body, _ := json.Marshal(m)
			h := handler(t, &jobs{}, webhook.Source{Name: "sns", Provider: "aws-sns", Secrets: webhook.Secrets(topic), ID: webhook.Field("MessageId")},
				webhook.WithHTTPClient(&http.Client{Transport: w}), webhook.WithClock(func() time.Time { return now }))
			for range 3 {
				if e := h.Explain(post(string(body))); e.Reason != test.reason {
					t.Fatalf("%s: %v", e.Reason, e.Err)
				}
			}
			if w.asked[certURL] != test.fetches {
				t.Errorf("fetched %d times", w.asked[certURL])
			}
			if confirmed := w.asked[confirmURL] > 0; confirmed != (test.reason == webhook.Handshaken) {
				t.Errorf("confirmed: %t", confirmed)
			}
			for address := range w.asked {
				if strings.Contains(address, "evil") {
					t.Errorf("asked %s", address)
				}
			}
		})
	}
	if _, err := webhook.NewHandler(&jobs{}, webhook.Source{Name: "sns", Provider: "aws-sns", ID: fixed, Secrets: webhook.Secrets("topic")}); err == nil {
		t.Error("a secret that is no topic is taken")
	}
}

func TestFetchedKeys(t *testing.T) {
	const address = "https://rest.fal.ai/.well-known/jwks.json"
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const content = `{"request_id":"r1","status":"OK"}`
	now := time.Unix(1_600_000_000, 0)
	request := func(user, id string) *http.Request {
		sum := sha256.Sum256([]byte(content))
		signed := ed25519.Sign(private, []byte(id+"\n"+user+"\n1600000000\n"+hex.EncodeToString(sum[:])))
		return vector{Body: content, Headers: map[string]string{
			"X-Fal-Webhook-Signature": hex.EncodeToString(signed), "X-Fal-Webhook-Request-Id": "r1", "X-Fal-Webhook-User-Id": user,
			"X-Fal-Webhook-Timestamp": "1600000000",
		}}.request()
	}
	keySet := func(keys ...ed25519.PublicKey) []byte {
		var list []map[string]string
		for _, k := range keys {
			list = append(list, map[string]string{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(k)})
		}
		data, _ := json.Marshal(map[string]any{"keys": list})
		return data
	}
	w := newWeb()
	h := handler(t, &jobs{}, webhook.Source{Name: "fal", Provider: "fal", Secrets: webhook.Secrets("mine")},
		webhook.WithHTTPClient(&http.Client{Transport: w}), webhook.WithClock(func() time.Time { return now }))
	expect := func(r *http.Request, want webhook.Reason, fetches int) {
		t.Helper()
		if e := h.Explain(r); e.Reason != want || w.asked[address] != fetches {
			t.Errorf("%s: %v, fetched %d times", e.Reason, e.Err, w.asked[address])
		}
	}
	expect(request("somebody", "r1"), webhook.SignatureWrong, 0)
	expect(request("mine", "r1"), webhook.KeyUnavailable, 1)
	w.pages[address] = keySet(make(ed25519.PublicKey, ed25519.PublicKeySize), public)
	expect(request("mine", "r1"), webhook.KeyUnavailable, 1) // It is left alone for a while.
	now = now.Add(11 * time.Second)
	expect(request("mine", "r1"), webhook.Accepted, 2)
	expect(request("mine", "r1"), webhook.Accepted, 2)
	expect(request("mine", "r2"), webhook.SignatureWrong, 2)

	// The sender has a new key: it is looked for at most once a minute.
	next, private2, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.pages[address], private = keySet(next), private2
	expect(request("mine", "r1"), webhook.SignatureWrong, 2)
	now = now.Add(time.Minute)
	expect(request("mine", "r1"), webhook.Accepted, 3)
	// What was good goes on while the address is away.
	delete(w.pages, address)
	now = now.Add(2 * time.Minute)
	expect(request("mine", "r2"), webhook.SignatureWrong, 4)
	expect(request("mine", "r1"), webhook.Accepted, 4)
	// But for no longer than a day, however often it was looked for in between.
	now = now.Add(23 * time.Hour)
	expect(request("mine", "r2"), webhook.SignatureWrong, 5)
	expect(request("mine", "r1"), webhook.SignatureStale, 5) // The key was good.
	now = now.Add(time.Hour)
	expect(request("mine", "r1"), webhook.KeyUnavailable, 6)
}

// TestForgedAddresses: forged messages name certificates that do not exist, and neither push out nor hold up the one that does.
func TestForgedAddresses(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	w := newWeb()
	w.pages[certURL] = certificate(t, key, now.Add(time.Hour))
	h := handler(t, &jobs{}, webhook.Source{Name: "sns", Provider: "aws-sns", Secrets: webhook.Secrets(topic), ID: webhook.Field("MessageId")},
		webhook.WithHTTPClient(&http.Client{Transport: w}), webhook.WithClock(func() time.Time { return now }))
	send := func(address string) webhook.Reason {
		m := snsMessage(t, key, "2", map[string]string{"SigningCertURL": address})
		body, _ := json.Marshal(m)
		return h.Explain(post(string(body))).Reason
	}
	if got := send(certURL); got != webhook.Accepted {
		t.Fatal(got)
	}
	for n := range 200 {
		if got := send(strings.Replace(certURL, "x.pem", strconv.Itoa(n)+".pem", 1)); got != webhook.KeyUnavailable {
			t.Fatalf("forged %d: %s", n, got)
		}
	}
	if got := send(certURL); got != webhook.Accepted || w.asked[certURL] != 1 {
		t.Errorf("%s, and the certificate was fetched %d times", got, w.asked[certURL])
	}
}
