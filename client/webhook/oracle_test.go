package webhook_test

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client/webhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// TestStandardWebhooksOracle: what the standard's own library signs is verified, and what is changed is verified by both or
// by none.
func TestStandardWebhooksOracle(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oracle, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	h := handler(t, &jobs{}, webhook.Source{Name: "test", Provider: "standard-webhooks", Secrets: webhook.Secrets(secret)})
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	verified := 0
	for range 2000 {
		id, at, body := "msg_1", now, `{"type":"a","n":`+strconv.Itoa(random.IntN(1000))+`}`
		signature, err := oracle.Sign(id, at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		stamp := strconv.FormatInt(at.Unix(), 10)
		switch random.IntN(8) {
		case 0:
			body += " "
		case 1:
			id = "msg_2"
		case 2:
			stamp = strconv.FormatInt(at.Unix()-400, 10)
		case 3:
			signature = "v2,AAAA " + signature
		case 4:
			signature = strings.Replace(signature, "v1,", "v1", 1)
		case 5:
			signature = "v1,AAAA v1a,AAAA " + signature + " v1,"
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", stamp)
		r.Header.Set("webhook-signature", signature)
		want := oracle.Verify([]byte(body), r.Header)
		e := h.Explain(r)
		if e.Verified != (want == nil) {
			t.Fatalf("%q %q %q %q: the library says %v, we say %v", id, stamp, body, signature, want, e.Err)
		}
		if e.Verified {
			verified++
		}
	}
	if verified < 500 || verified > 1500 {
		t.Errorf("%d were verified", verified)
	}
}
