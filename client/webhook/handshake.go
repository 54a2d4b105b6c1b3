package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// A sender asks by a handshake whether the endpoint is ours. What is asked before anything can be signed is for unsigned,
// which sees headers and query alone; everything else for signed, which sees a request that was verified. Both return nil, nil
// for a request that is no handshake.
type handshake struct {
	unsigned func(h *Handler, r *http.Request) (*reply, *refusal)
	signed   func(ctx context.Context, h *Handler, req *Request) (*reply, *refusal)
}

// reply is the answer to a handshake: 200 with a body, unless it says otherwise.
type reply struct {
	contentType string
	body        []byte
	status      int
}

// The longest text of a sender that a handshake gives back.
const maxChallenge = 4 << 10

func plain(text string) *reply {
	return &reply{contentType: "text/plain; charset=utf-8", body: []byte(text)}
}

func jsonReply(v any) *reply {
	body, err := json.Marshal(v)
	if err != nil {
		return &reply{}
	}
	return &reply{contentType: "application/json", body: body}
}

// metaHandshake gives hub.challenge back where hub.verify_token is ours
// (developers.facebook.com/docs/graph-api/webhooks/getting-started).
func metaHandshake(h *Handler, r *http.Request) (*reply, *refusal) {
	q := r.URL.Query()
	if r.Method != http.MethodGet || q.Get("hub.mode") != "subscribe" {
		return nil, nil
	}
	challenge, got, good := q.Get("hub.challenge"), []byte(q.Get("hub.verify_token")), 0
	if h.source.VerifyTokens != nil && len(got) > 0 {
		for _, want := range h.source.VerifyTokens() {
			good |= subtle.ConstantTimeCompare(got, []byte(want))
		}
	}
	if good != 1 {
		return nil, refuse(HandshakeRefused, "hub.verify_token is not the source's verify token")
	}
	if len(challenge) > maxChallenge {
		return nil, refuse(HandshakeRefused, "hub.challenge is longer than %d bytes", maxChallenge)
	}
	return plain(challenge), nil
}

// graphHandshake gives validationToken back (microsoft-graph-docs-contrib,
// change-notifications-delivery-notificationurl-validation.md). As plain text no browser takes it for HTML.
func graphHandshake(_ *Handler, r *http.Request) (*reply, *refusal) {
	token := r.URL.Query().Get("validationToken")
	if r.Method != http.MethodPost || token == "" {
		return nil, nil
	}
	if len(token) > maxChallenge {
		return nil, refuse(HandshakeRefused, "validationToken is longer than %d bytes", maxChallenge)
	}
	return plain(token), nil
}

// slackHandshake gives the challenge of url_verification back (api.slack.com/events/url_verification).
func slackHandshake(_ context.Context, _ *Handler, req *Request) (*reply, *refusal) {
	body, err := req.JSON()
	if err != nil {
		return nil, nil // A slash command is a form.
	}
	if kind, _ := textAt(body, "type"); kind != "url_verification" {
		return nil, nil
	}
	challenge, err := textAt(body, "challenge")
	if err != nil || len(challenge) > maxChallenge {
		return nil, refuse(HandshakeRefused, "url_verification without a challenge")
	}
	return plain(challenge), nil
}

// zoomHandshake signs plainToken with the secret that the request is signed with: while secrets are rotated, Zoom may know only one
// of them (github.com/zoom/webhook-sample, index.js).
func zoomHandshake(ctx context.Context, h *Handler, req *Request) (*reply, *refusal) {
	body, err := req.JSON()
	if err != nil {
		return nil, nil
	}
	if event, _ := textAt(body, "event"); event != "endpoint.url_validation" {
		return nil, nil
	}
	token, err := textAt(body, "payload.plainToken")
	secrets := slices.DeleteFunc(slices.Clone(h.source.secrets()), func(secret string) bool {
		return h.source.verify(ctx, &evidence{req: req, secrets: []string{secret}, now: h.now(), fetch: h.fetch}) != nil
	})
	if err != nil || len(token) > maxChallenge || len(secrets) == 0 || strings.HasPrefix(token, "v0:") {
		// What begins with "v0:" would come back as the signature of a delivery.
		return nil, refuse(HandshakeRefused, "endpoint.url_validation without a plainToken")
	}
	mac := hmac.New(sha256.New, []byte(secrets[0]))
	mac.Write([]byte(token))
	return jsonReply(map[string]string{"plainToken": token, "encryptedToken": hex.EncodeToString(mac.Sum(nil))}), nil
}
