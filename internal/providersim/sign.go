package providersim

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"crypto/elliptic"
	"crypto/rand"
)

const (
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	standardStale  = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func mac(h func() hash.Hash, key []byte, text string) []byte {
	mac := hmac.New(h, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func (a *Attempt) unix() string { return strconv.FormatInt(a.At.Unix(), 10) }

func standardEvent(prefix string) func(int) Event {
	return func(n int) Event {
		e := jsonEvent(`{"type":"a","data":{"n":%d}}`, "msg_%d")(n)
		e.Header.Set(prefix+"-id", e.ID)
		return e
	}
}

func openAIEvent(n int) Event {
	e := jsonEvent(`{"id":"evt_%d","type":"response.completed","data":{"id":"resp"}}`, "wh_%d")(n)
	e.Header.Set("webhook-id", e.ID)
	return e
}

func replicateEvent(n int) Event {
	e := jsonEvent(`{"id":"p%d","status":"succeeded"}`, "p%d:succeeded")(n)
	e.Header.Set("webhook-id", "msg_"+strconv.Itoa(n))
	return e
}

func signStandard(prefix string) func(*Attempt) http.Header {
	return func(a *Attempt) http.Header {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(a.Secret, "whsec_"))
		if err != nil {
			return nil
		}
		signed := mac(sha256.New, key, a.Header.Get(prefix+"-id")+"."+a.unix()+"."+string(a.Body))
		h := header(prefix+"-timestamp", a.unix())
		h.Set(prefix+"-signature", "v1,"+base64.StdEncoding.EncodeToString(signed))
		return h
	}
}

// signPairs is for headers of pairs with the time in them.
func signPairs(name, format, between string) func(*Attempt) http.Header {
	return func(a *Attempt) http.Header {
		signed := mac(sha256.New, []byte(a.Secret), a.unix()+between+string(a.Body))
		return header(name, fmt.Sprintf(format, a.unix(), hex.EncodeToString(signed)))
	}
}

func githubEvent(n int) Event {
	e := jsonEvent(`{"action":"opened","number":%d}`, "guid-%d")(n)
	e.Header.Set("X-GitHub-Delivery", e.ID)
	e.Header.Set("X-GitHub-Event", "pull_request")
	return e
}

func signGitHub(a *Attempt) http.Header {
	return header("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac(sha256.New, []byte(a.Secret), string(a.Body))))
}

func shopifyEvent(n int) Event {
	e := jsonEvent(`{"order":%d}`, "shop-%d")(n)
	e.Header.Set("X-Shopify-Webhook-Id", e.ID)
	e.Header.Set("X-Shopify-Topic", "orders/create")
	return e
}

func signShopify(a *Attempt) http.Header {
	return header("X-Shopify-Hmac-SHA256", base64.StdEncoding.EncodeToString(mac(sha256.New, []byte(a.Secret), string(a.Body))))
}

func signSlack(a *Attempt) http.Header {
	h := header("X-Slack-Request-Timestamp", a.unix())
	h.Set("X-Slack-Signature", "v0="+hex.EncodeToString(mac(sha256.New, []byte(a.Secret), "v0:"+a.unix()+":"+string(a.Body))))
	if a.Number > 0 {
		h.Set("X-Slack-Retry-Num", strconv.Itoa(a.Number))
	}
	return h
}

func twilioEvent(n int) Event {
	form := url.Values{"MessageSid": {fmt.Sprintf("SM%d", n)}, "MessageStatus": {"delivered"}, "Body": {"Grüße & mehr"}}
	return Event{ID: fmt.Sprintf("SM%d:delivered", n), Body: []byte(form.Encode()), Header: header("Content-Type", "application/x-www-form-urlencoded")}
}

func signTwilio(a *Attempt) http.Header {
	form, _ := url.ParseQuery(string(a.Body)) // It is twilioEvent's.
	text := a.URL
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += name + form.Get(name)
	}
	return header("X-Twilio-Signature", base64.StdEncoding.EncodeToString(mac(sha1.New, []byte(a.Secret), text)))
}

// sendGridKeys are made once: SendGrid gives out the public halves.
var sendGridKeys = sync.OnceValue(func() (keys [2]*ecdsa.PrivateKey) {
	for i := range keys {
		keys[i], _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // It fails for no curve of the standard library.
	}
	return keys
})

func sendGridPublic(i int) string {
	der, err := x509.MarshalPKIXPublicKey(sendGridKeys()[i].Public())
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(der)
}

func signSendGrid(a *Attempt) http.Header {
	key := sendGridKeys()[0]
	if a.Secret == sendGridPublic(1) {
		key = sendGridKeys()[1]
	}
	digest := sha256.Sum256([]byte(a.unix() + string(a.Body)))
	signed, _ := ecdsa.SignASN1(rand.Reader, key, digest[:]) // Nothing of it can fail.
	h := header("X-Twilio-Email-Event-Webhook-Timestamp", a.unix())
	h.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(signed))
	return h
}

func signSquare(a *Attempt) http.Header {
	return header("x-square-hmacsha256-signature", base64.StdEncoding.EncodeToString(mac(sha256.New, []byte(a.Secret), a.URL+string(a.Body))))
}

func signHubSpot(a *Attempt) http.Header {
	stamp := strconv.FormatInt(a.At.UnixMilli(), 10)
	h := header("X-HubSpot-Request-Timestamp", stamp)
	h.Set("X-HubSpot-Signature-v3", base64.StdEncoding.EncodeToString(mac(sha256.New, []byte(a.Secret), "POST"+a.URL+string(a.Body)+stamp)))
	return h
}
