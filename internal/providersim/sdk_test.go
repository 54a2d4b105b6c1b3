package providersim_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	"github.com/slack-go/slack"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripe "github.com/stripe/stripe-go/v84/webhook"
	twilio "github.com/twilio/twilio-go/client"

	"github.com/jobonce/jobonce/internal/providersim"
)

// TestSDKs holds the signatures made here to the senders' own packages.
func TestSDKs(t *testing.T) {
	standard := func(t *testing.T, a *providersim.Attempt, h http.Header) bool {
		w, err := standardwebhooks.NewWebhook(a.Secret)
		if err != nil {
			t.Fatal(err)
		}
		for name, values := range a.Header {
			h[name] = values
		}
		for _, name := range []string{"Id", "Timestamp", "Signature"} { // Svix has names of its own for the same.
			if value := h.Get("Svix-" + name); value != "" {
				h.Set("Webhook-"+name, value)
			}
		}
		return w.VerifyIgnoringTimestamp(a.Body, h) == nil
	}
	accepts := map[string]func(*testing.T, *providersim.Attempt, http.Header) bool{
		"standard-webhooks": standard, "svix": standard, "clerk": standard, "resend": standard, "openai": standard, "replicate": standard,
		"stripe": func(_ *testing.T, a *providersim.Attempt, h http.Header) bool {
			return stripe.ValidatePayloadIgnoringTolerance(a.Body, h.Get("Stripe-Signature"), a.Secret) == nil
		},
		"slack": func(t *testing.T, a *providersim.Attempt, h http.Header) bool {
			v, err := slack.NewSecretsVerifier(h, a.Secret)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = v.Write(a.Body)
			return v.Ensure() == nil
		},
		"twilio": func(_ *testing.T, a *providersim.Attempt, h http.Header) bool {
			form, _ := url.ParseQuery(string(a.Body))
			params := make(map[string]string)
			for name := range form {
				params[name] = form.Get(name)
			}
			v := twilio.NewRequestValidator(a.Secret)
			return v.Validate(a.URL, params, h.Get("X-Twilio-Signature"))
		},
		"sendgrid": func(t *testing.T, a *providersim.Attempt, h http.Header) bool {
			key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(a.Secret)
			if err != nil {
				t.Fatal(err)
			}
			ok, err := eventwebhook.VerifySignature(key, a.Body, h.Get(eventwebhook.VerificationHTTPHeader), h.Get(eventwebhook.TimestampHTTPHeader))
			return ok && err == nil
		},
	}
	for _, p := range providersim.Providers() {
		accept, ok := accepts[p.Name]
		if !ok {
			continue // There is no package for Go: client/webhook has a published value instead.
		}
		delete(accepts, p.Name)
		t.Run(p.Name, func(t *testing.T) {
			at := providersim.Start
			if p.Name == "slack" { // Its package looks at the clock.
				at = time.Now()
			}
			a := &providersim.Attempt{Event: p.Event(1), URL: providersim.URL, Secret: p.Secret, At: at}
			h := p.Sign(a)
			if !accept(t, a, h) {
				t.Errorf("the sender's own package refuses %v", h)
			}
			a.Secret = p.Stale
			if accept(t, a, h) {
				t.Error("the package takes another secret")
			}
		})
	}
	for name := range accepts {
		t.Errorf("there is no sender %s", name)
	}
}
