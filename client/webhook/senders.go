package webhook

import (
	"strings"
	"time"
)

// standard is the scheme of Standard Webhooks 1.0.0, with its headers under a prefix.
func standard(prefix, key string) Signature {
	return Signature{
		Kind: HMAC, Header: prefix + "-signature", IDHeader: prefix + "-id", TimestampHeader: prefix + "-timestamp",
		Unit: "s", Tolerance: 5 * time.Minute, Template: "{id}.{timestamp}.{body}", Encoding: "base64",
		Split: " ", Prefix: "v1,", AsymmetricPrefix: "v1a,", Key: key,
	}
}

// svix are the headers that Svix sends: its own, or those of the standard.
var svix = []Signature{standard("svix", "standard"), standard("webhook", "standard")}

// svixID is the id that stands in those of them that are signed.
var svixID = signedID(First(Header("svix-id"), Header("webhook-id")))

// senders are all presets. To add one, add an entry here and its published value to testdata/vectors.json, and say where each
// fact is from. Without a source for the id or the retries it is Experimental.
func senders() []*Preset {
	return []*Preset{
		{
			Name: "standard-webhooks", Title: "Standard Webhooks", Tier: Promised,
			Signatures: []Signature{standard("webhook", "standard")},
			Secret:     "the secret, with or without whsec_; or the public key that begins with whpk_",
			ID:         "the header webhook-id", id: Header("webhook-id"), event: Field("type"),
			idInHeader: true, Punishes: "the standard advises senders to disable what fails for long",
			Sources: []string{"github.com/standard-webhooks/standard-webhooks spec/standard-webhooks.md"},
		},
		{
			Name: "svix", Title: "Svix", Tier: Promised,
			Signatures: svix, Secret: "the endpoint's secret, whsec_...",
			ID: "the header svix-id", id: svixID, event: Field("type"),
			AnswerWithin: 10 * time.Second, // of 15 s
			idInHeader:   true, RetriedFor: 27*time.Hour + 35*time.Minute, Punishes: "an endpoint that fails for 5 days is disabled",
			Sources: []string{"github.com/svix/svix-webhooks go/webhook_test.go", "docs.svix.com/retries",
				"docs.svix.com/idempotency"},
		},
		{
			Name: "stripe", Title: "Stripe", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "Stripe-Signature", Split: ",", Prefix: "v1=", TimestampPrefix: "t=", Unit: "s",
				Tolerance: 5 * time.Minute, Template: "{timestamp}.{body}", Encoding: "hex",
			}},
			Secret: "the endpoint's secret as a whole, whsec_ included",
			ID:     "the event's id, evt_...", id: Field("id"), event: Field("type"),
			RetriedFor: 72 * time.Hour,
			Sources: []string{"github.com/stripe/stripe-go webhook/client.go", "docs.stripe.com/webhooks",
				"docs.stripe.com/webhooks/process-undelivered-events"},
		},
		{
			Name: "github", Title: "GitHub", Tier: Promised,
			Signatures: []Signature{{Kind: HMAC, Header: "X-Hub-Signature-256", Prefix: "sha256=", Template: "{body}", Encoding: "hex"}},
			Secret:     "the webhook's secret",
			ID:         "the header X-GitHub-Delivery", id: Header("X-GitHub-Delivery"), event: Header("X-GitHub-Event"),
			Left: "ping", when: func(i *Item) (bool, error) { return i.Request.Header.Get("X-GitHub-Event") != "ping", nil },
			Notes:        "GitHub never delivers again by itself: what fails has to be redelivered by hand or by its API. The id is not signed.",
			AnswerWithin: 8 * time.Second, // of 10 s
			idInHeader:   true,
			Sources: []string{"github.com/github/docs content/webhooks/using-webhooks/validating-webhook-deliveries.md",
				"github.com/github/docs content/webhooks/using-webhooks/handling-failed-webhook-deliveries.md",
				"github.com/github/docs content/webhooks/using-webhooks/best-practices-for-using-webhooks.md"},
		},
		{
			Name: "gitlab", Title: "GitLab", Tier: Experimental,
			Signatures: []Signature{standard("webhook", "standard"), {Kind: Token, Header: "X-Gitlab-Token"}},
			Secret:     "the signing token, whsec_..., or the secret token",
			ID:         "with a signing token the header webhook-id, else Idempotency-Key, of GitLab 17.4 and later: they are the same",
			id:         signedID(Header("Idempotency-Key")), event: Header("X-Gitlab-Event"),
			Notes: "Whether GitLab delivers again by itself is not certain. A secret token proves the sender, not the body, and the id is " +
				"not signed with it. Four failures in a row pause the webhook, forty end it.",
			AnswerWithin: 8 * time.Second,
			idInHeader:   true, Punishes: "failures in a row pause a webhook, and disable it",
			Sources: []string{"gitlab.com/gitlab-org/gitlab/-/merge_requests/230944", "gitlab.com/gitlab-org/gitlab/-/merge_requests/166329",
				"GitLab documentation, doc/user/project/integrations/webhooks.md"},
		},
		{
			Name: "shopify", Title: "Shopify", Tier: Promised,
			Signatures: []Signature{
				{Kind: HMAC, Header: "X-Shopify-Hmac-SHA256", Template: "{body}", Encoding: "base64"},
				{Kind: HMAC, Header: "shopify-hmac-sha256", Template: "{body}", Encoding: "base64"},
			},
			Secret: "the app's client secret",
			ID:     "the header X-Shopify-Webhook-Id", id: First(Header("X-Shopify-Webhook-Id"), Header("shopify-webhook-id")),
			event: First(Header("X-Shopify-Topic"), Header("shopify-topic")),
			Notes: "Two subscriptions of one topic give two ids: take X-Shopify-Event-Id then. The id is not signed. After eight failures " +
				"in a row Shopify removes a subscription that was made by the Admin API.",
			AnswerWithin: 4 * time.Second, // of 5 s
			idInHeader:   true, RetriedFor: 4 * time.Hour, Punishes: "failures in a row remove a subscription",
			Sources: []string{"shopify.dev/docs/apps/build/webhooks/verify-deliveries",
				"github.com/Shopify/shopify-app-js packages/apps/shopify-api/lib/webhooks",
				"shopify.dev/changelog/updates-to-webhook-retry-mechanism", "shopify.dev/apps/build/webhooks/ignore-duplicates"},
		},
		{
			Name: "slack", Title: "Slack", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "X-Slack-Signature", TimestampHeader: "X-Slack-Request-Timestamp", Prefix: "v0=", Unit: "s",
				Tolerance: 5 * time.Minute, Template: "v0:{timestamp}:{body}", Encoding: "hex",
			}},
			Secret: "the app's signing secret",
			ID:     "event_id of the Events API", id: Field("event_id"), event: Field("event.type"),
			Notes:        "Slash commands and interactions have no event_id: give them an id of their own, in a source of their own.",
			handshake:    handshake{signed: slackHandshake},
			AnswerWithin: 2400 * time.Millisecond, // of 3 s
			RetriedFor:   6 * time.Minute, Punishes: "an app whose deliveries fail is disabled for a time",
			Sources: []string{"github.com/slackapi/python-slack-sdk tests/slack_sdk/signature/test_signature_verifier.py",
				"github.com/slackapi/bolt-js src/receivers/verify-request.ts", "docs.slack.dev/apis/events-api",
				"api.slack.com/events/url_verification"},
		},
		{
			Name: "twilio", Title: "Twilio", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "X-Twilio-Signature", Template: "{url}{params}", Hash: "sha1", Encoding: "base64",
			}},
			Secret: "the account's auth token",
			ID:     "MessageSid or CallSid, and the status",
			id: Join(First(FormField("MessageSid"), FormField("CallSid"), FormField("SmsSid")),
				First(FormField("MessageStatus"), FormField("CallStatus"), FormField("SmsStatus"))),
			event:  optional(First(FormField("EventType"), FormField("StatusCallbackEvent"))),
			status: First(FormField("MessageStatus"), FormField("CallStatus"), FormField("SmsStatus")),
			Notes: "The URL is signed: set PublicURL behind a proxy. By default Twilio does not deliver again after an error: put #rc=3&rp=all " +
				"at the end of the webhook's URL. An empty answer is none to a call or a message. Requests of one call in one state, as " +
				"those of Gather, are one job, and those about recordings have no such status: give these an id of their own, in a source of their own.",
			AnswerWithin: 10 * time.Second, // of 15 s
			Sources: []string{"github.com/twilio/twilio-go client/request_validator.go",
				"twilio.com/docs/usage/webhooks/webhooks-connection-overrides"},
		},
		{
			Name: "sendgrid", Title: "Twilio SendGrid events", Tier: Promised,
			Signatures: []Signature{{
				Kind: ECDSA, Header: "X-Twilio-Email-Event-Webhook-Signature", TimestampHeader: "X-Twilio-Email-Event-Webhook-Timestamp",
				Template: "{timestamp}{body}", Encoding: "base64", Key: "spki",
			}},
			Secret: "the public key of the signed event webhook",
			ID:     "sg_event_id of each event", items: Array("[]"), id: Field("sg_event_id"), event: Field("event"),
			Notes:      "The signature has to be switched on.",
			RetriedFor: 24 * time.Hour,
			Sources: []string{"github.com/sendgrid/sendgrid-go helpers/eventwebhook",
				"docs.sendgrid.com/for-developers/tracking-events/troubleshooting"},
		},
		{
			Name: "adyen", Title: "Adyen payments", Tier: Experimental,
			Signatures: []Signature{{
				Kind: HMAC, Items: "notificationItems[].NotificationRequestItem", Field: "additionalData.hmacSignature", Key: "hex",
				Template: "{field:pspReference}:{field:originalReference}:{field:merchantAccountCode}:{field:merchantReference}:" +
					"{field:amount.value}:{field:amount.currency}:{field:eventCode}:{field:success}", Encoding: "base64",
			}},
			Secret: "the HMAC key, in hex",
			ID:     "eventCode and pspReference of the item, as far as is known: three pages quote this rule, and its own text was not read",
			Notes: "Only the eight fields of the signature are signed. One event that fails holds up all others of the endpoint, so an id that " +
				"cannot be read stops them.",
			AnswerWithin: 8 * time.Second, // of 10 s
			RetriedFor:   30 * 24 * time.Hour, Punishes: "one event that fails holds up all others",
			Sources: []string{"github.com/Adyen/adyen-go-api-library src/hmacvalidator", "docs.adyen.com/development-resources/webhooks/troubleshoot",
				"docs.adyen.com/development-resources/webhooks/webhook-types"},
		},
		{
			Name: "square", Title: "Square", Tier: Promised,
			Signatures: []Signature{{Kind: HMAC, Header: "x-square-hmacsha256-signature", Template: "{url}{body}", Encoding: "base64"}},
			Secret:     "the subscription's signature key",
			ID:         "event_id", id: Field("event_id"), event: Field("type"),
			Notes:        "The URL is signed: set PublicURL to the notification URL as it is registered.",
			AnswerWithin: 8 * time.Second, // of 10 s
			RetriedFor:   24 * time.Hour, Punishes: "an endpoint that fails for three weeks is disabled",
			Sources: []string{"github.com/square/square-go-sdk webhooks/client/verify_signature.go",
				"developer.squareup.com/docs/webhooks/overview", "developer.squareup.com/docs/webhooks/troubleshooting"},
		},
		{
			Name: "paddle", Title: "Paddle Billing", Tier: Promised,
			Signatures: []Signature{{
				// The SDKs' tolerance of 5 s leaves a wrong clock no room.
				Kind: HMAC, Header: "Paddle-Signature", Split: ";", Prefix: "h1=", TimestampPrefix: "ts=", Unit: "s",
				Tolerance: 5 * time.Minute, Template: "{timestamp}:{body}", Encoding: "hex",
			}},
			Secret: "the destination's secret key as a whole, pdl_ntfset_...",
			ID:     "event_id", id: Field("event_id"), event: Field("event_type"),
			AnswerWithin: 4 * time.Second, // of 5 s
			RetriedFor:   72 * time.Hour,
			Sources: []string{"developer.paddle.com/webhooks/signature-verification", "github.com/PaddleHQ/paddle-go-sdk webhook_verifier.go",
				"developer.paddle.com/webhooks/about/respond-to-webhooks", "developer.paddle.com/webhooks/about/how-webhooks-work"},
		},
		{
			Name: "clerk", Title: "Clerk", Tier: Promised,
			Signatures: svix, Secret: "the endpoint's signing secret, whsec_...",
			ID: "the header svix-id", id: svixID, event: Field("type"), AnswerWithin: 10 * time.Second,
			idInHeader: true, RetriedFor: 27*time.Hour + 35*time.Minute, Punishes: "an endpoint that fails for 5 days is disabled",
			Sources: []string{"github.com/clerk/clerk-docs docs/webhooks/overview.mdx", "github.com/clerk/javascript packages/backend/src/webhooks.ts"},
		},
		{
			Name: "resend", Title: "Resend", Tier: Promised,
			Signatures: svix, Secret: "the webhook's signing secret, whsec_...",
			ID: "the header svix-id", id: svixID, event: Field("type"), AnswerWithin: 10 * time.Second,
			idInHeader: true, RetriedFor: 27*time.Hour + 35*time.Minute, Punishes: "an endpoint that fails for 5 days is disabled",
			Sources: []string{"resend.com/docs/dashboard/webhooks/verify-webhooks-requests", "github.com/resend/resend-node src/webhooks/webhooks.ts",
				"resend.com/docs/webhooks/retries-and-replays"},
		},
		{
			Name: "openai", Title: "OpenAI", Tier: Promised,
			Signatures: []Signature{standard("webhook", "whsec_or_text")},
			Secret:     "the endpoint's secret, whsec_...",
			ID:         "the header webhook-id", id: Header("webhook-id"), event: Field("type"), status: optional(ending("type")),
			Left: "what does not say how a response, batch, run or job ended", when: OneOf(ending("type"),
				"completed", "failed", "cancelled", "canceled", "incomplete", "expired", "succeeded"),
			RetriedFor: 72 * time.Hour,
			Sources:    []string{"github.com/openai/openai-go webhooks/webhook_secret.go", "developers.openai.com/api/docs/guides/webhooks"},
		},
		{
			Name: "replicate", Title: "Replicate", Tier: Promised,
			Signatures: []Signature{standard("webhook", "standard")},
			Secret:     "the account's signing secret, whsec_...",
			ID:         "the prediction's id and status", id: Join(Field("id"), Field("status")), status: Field("status"),
			Left: "predictions that are not over", when: OneOf(Field("status"), "succeeded", "failed", "canceled"),
			Notes:      "Replicate tries for about one minute: after a longer outage, predictions have to be fetched from its API.",
			RetriedFor: time.Minute,
			Sources: []string{"replicate.com/docs/topics/webhooks/verify-webhook", "replicate.com/docs/topics/webhooks/receive-webhook",
				"github.com/replicate/replicate-javascript lib/util.js"},
		},
		{
			Name: "fal", Title: "fal", Tier: Experimental,
			Signatures: []Signature{{
				Kind: Ed25519, Header: "X-Fal-Webhook-Signature", IDHeader: "X-Fal-Webhook-Request-Id",
				TimestampHeader: "X-Fal-Webhook-Timestamp", Unit: "s", Tolerance: 5 * time.Minute, Encoding: "hex",
				Template: "{id}\n{header:X-Fal-Webhook-User-Id}\n{timestamp}\n{sha256}",
				KeysURL:  "https://rest.fal.ai/.well-known/jwks.json", AccountHeader: "X-Fal-Webhook-User-Id",
			}},
			Secret: "your user id at fal: its keys sign for everybody",
			ID:     "request_id", id: Field("request_id"), status: Field("status"),
			Left: "what has neither OK nor ERROR as status", when: OneOf(Field("status"), "OK", "ERROR"),
			Notes: "There is no published value to check the signature with, and two wordings of the retry rule. An older address of the keys is " +
				"rest.alpha.fal.ai.",
			AnswerWithin: 10 * time.Second, // of 15 s
			Sources:      []string{"fal.ai/docs/documentation/model-apis/inference/webhooks"},
		},
		{
			Name: "mux", Title: "Mux", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "Mux-Signature", Split: ",", Prefix: "v1=", TimestampPrefix: "t=", Unit: "s",
				Tolerance: 5 * time.Minute, Template: "{timestamp}.{body}", Encoding: "hex",
			}},
			Secret: "the webhook's signing secret",
			ID:     "the event's id", id: Field("id"), event: Field("type"),
			RetriedFor: 24 * time.Hour,
			Sources: []string{"mux.com/docs/core/verify-webhook-signatures", "mux.com/docs/core/listen-for-webhooks",
				"github.com/muxinc/mux-node-sdk src/resources/webhooks/webhooks.ts"},
		},
		{
			Name: "zoom", Title: "Zoom", Tier: Experimental,
			Signatures: []Signature{{
				// Whether the time is in seconds or milliseconds is not certain, so it is not looked at.
				Kind: HMAC, Header: "x-zm-signature", TimestampHeader: "x-zm-request-timestamp", Prefix: "v0=",
				Template: "v0:{timestamp}:{body}", Encoding: "hex",
			}},
			Secret: "the app's secret token; the one that Zoom's validation is signed with answers it",
			ID:     "event, event_ts and payload.object.uuid, perhaps: nothing that Zoom says of it was found",
			event:  Field("event"), handshake: handshake{signed: zoomHandshake},
			AnswerWithin: 2400 * time.Millisecond, // of 3 s
			Sources: []string{"github.com/zoom/webhook-sample index.js", "developers.zoom.us/blog/webhook-delays.md",
				"developers.zoom.us/changelog/platform/webhook-url-validation.md"},
		},
		{
			Name: "meta", Title: "Meta: WhatsApp, Messenger, Instagram, Pages", Tier: Experimental,
			Signatures: []Signature{{Kind: HMAC, Header: "X-Hub-Signature-256", Prefix: "sha256=", Template: "{body}", Encoding: "hex"}},
			Secret:     "the app's secret",
			ID: "the id of each message, perhaps: WhatsApp's entry[].changes[].value.messages[].id, Messenger's " +
				"entry[].messaging[].message.mid. No page says by what to tell duplicates",
			handshake: handshake{unsigned: metaHandshake},
			Sources: []string{"developers.facebook.com/docs/graph-api/webhooks/getting-started",
				"github.com/WhatsApp/WhatsApp-Nodejs-SDK src/__tests__/utils.test.ts"},
		},
		{
			Name: "hubspot", Title: "HubSpot", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "X-HubSpot-Signature-v3", TimestampHeader: "X-HubSpot-Request-Timestamp", Unit: "ms",
				Tolerance: 5 * time.Minute, Template: "{method}{url}{body}{timestamp}", Encoding: "base64",
			}},
			Secret: "the app's client secret",
			ID:     "eventId, subscriptionId, objectId, occurredAt and, where there is one, propertyName of each event",
			items:  Array("[]"), event: Field("subscriptionType"),
			id: with(Join(Field("eventId"), Field("subscriptionId"), Field("objectId"), Field("occurredAt")), Field("propertyName")),
			Notes: "The URL is signed: set PublicURL behind a proxy. Only version 3 of the signature is taken. eventId alone is not unique, " +
				"by HubSpot's own words.",
			AnswerWithin: 4 * time.Second, // of 5 s
			RetriedFor:   24 * time.Hour,
			Sources: []string{"developers.hubspot.com/docs-beta/webhooks/validating-requests", "developers.hubspot.com/docs/api/webhooks",
				"github.com/HubSpot/hubspot-api-nodejs src/utils/signature.ts"},
		},
		{
			Name: "linear", Title: "Linear", Tier: Experimental,
			Signatures: []Signature{{
				Kind: HMAC, Header: "Linear-Signature", TimestampField: "webhookTimestamp", Unit: "ms", Tolerance: time.Minute,
				Template: "{body}", Encoding: "hex",
			}},
			Secret: "the webhook's signing secret",
			ID:     "the header Linear-Delivery, perhaps: that a retry repeats it is not said",
			event:  Field("type"), status: Field("action"),
			AnswerWithin: 4 * time.Second, // of 5 s
			Sources:      []string{"linear.app/developers/webhooks", "github.com/linear/linear packages/sdk/src/webhooks/client.ts"},
		},
		{
			Name: "sentry", Title: "Sentry integration platform", Tier: Experimental,
			Signatures: []Signature{{Kind: HMAC, Header: "Sentry-Hook-Signature", Template: "{body}", Encoding: "hex"}},
			Secret:     "the integration's client secret",
			ID: "the header Sentry-Hook-Resource, action, and data.issue.id or data.event.event_id, perhaps; never Request-ID, which is new on " +
				"every attempt",
			event: Header("Sentry-Hook-Resource"), status: Field("action"),
			Notes:        "Internal integrations get one attempt. 1000 timeouts in a day end the subscription.",
			Instead:      map[int]int{401: 503},  // A 4xx is not tried again.
			AnswerWithin: 800 * time.Millisecond, // of 1 s
			Sources: []string{"docs.sentry.io/integrations/integration-platform/webhooks/",
				"github.com/getsentry/sentry src/sentry/sentry_apps/tasks/sentry_apps.py"},
		},
		{
			Name: "microsoft-graph", Title: "Microsoft Graph", Tier: Experimental,
			Signatures: []Signature{{Kind: Token, Field: "value[].clientState"}},
			Secret:     "the clientState of the subscription",
			ID:         "subscriptionId, resourceData.id and changeType of each of value[], perhaps: nothing is said of retries",
			Notes:      "clientState proves the sender, not the body.",
			handshake:  handshake{unsigned: graphHandshake}, Success: 202,
			AnswerWithin: 2400 * time.Millisecond, // of 3 s
			Sources: []string{"github.com/microsoftgraph/microsoft-graph-docs-contrib concepts/change-notifications-delivery-webhooks.md",
				"github.com/microsoftgraph/microsoft-graph-docs-contrib concepts/includes/change-notifications-delivery-notificationurl-validation.md"},
		},
		{
			Name: "aws-sns", Title: "Amazon SNS", Tier: Experimental,
			Signatures: []Signature{{Kind: SNS}},
			Secret:     "the topic's ARN: SNS signs for everybody who has a topic",
			ID:         "MessageId, perhaps: that it stays the same is not said in what was read",
			event:      Field("Type"), handshake: handshake{signed: snsHandshake},
			Notes: "Subscriptions are confirmed by themselves.",
			Sources: []string{"github.com/aws/aws-php-sns-message-validator src/MessageValidator.php",
				"github.com/awsdocs/amazon-sns-developer-guide doc_source/sns-message-delivery-retries.md"},
		},
		{
			Name: "assemblyai", Title: "AssemblyAI", Tier: Promised,
			Signatures: []Signature{{Kind: Token}},
			Secret:     "webhook_auth_header_value; set SignatureHeader to webhook_auth_header_name",
			ID:         "transcript_id and status", id: Join(Field("transcript_id"), Field("status")), status: Field("status"),
			Left: "transcripts that are not over", when: OneOf(Field("status"), "completed", "error"),
			Notes: "There is no signature: the header proves the sender, not the body. Any 4xx ends the delivery for good, so there is none.",
			// No 4xx (assemblyai.com/docs/deployment/webhooks).
			Instead:      map[int]int{400: 503, 401: 503, 403: 503, 405: 503, 413: 503},
			AnswerWithin: 8 * time.Second, // of 10 s
			Sources:      []string{"assemblyai.com/docs/deployment/webhooks-for-pre-recorded-audio", "assemblyai.com/docs/deployment/webhooks"},
		},
		{
			Name: "elevenlabs", Title: "ElevenLabs", Tier: Promised,
			Signatures: []Signature{{
				Kind: HMAC, Header: "ElevenLabs-Signature", Split: ",", Prefix: "v0=", TimestampPrefix: "t=", Unit: "s",
				Tolerance: 30 * time.Minute, Template: "{timestamp}.{body}", Encoding: "hex",
			}},
			Secret: "the webhook's secret",
			ID:     "type and data.conversation_id", id: Join(Field("type"), Field("data.conversation_id")), event: Field("type"),
			Left: "what does not tell of a call that is over", when: func(i *Item) (bool, error) {
				kind, err := Field("type")(i)
				return strings.HasPrefix(kind, "post_call_"), err
			},
			Notes:    "Retries are off until they are switched on for the webhook, and are for post_call_transcription only.",
			Instead:  map[int]int{401: 503}, // Of the 4xx only 408 and 429 are tried again.
			Punishes: "ten failures in a row, and none good for 7 days, disable a webhook",
			Sources: []string{"elevenlabs.io/docs/conversational-ai/workflows/post-call-webhooks", "elevenlabs.io/docs/eleven-api/resources/webhooks",
				"github.com/elevenlabs/elevenlabs-js src/wrapper/webhooks.ts"},
		},
		{
			Name: "sume", Title: "Sume", Tier: Experimental,
			Signatures: []Signature{{
				Kind: HMAC, Header: "X-Sume-Signature", TimestampHeader: "X-Sume-Timestamp", Split: ",", Prefix: "v1=", Unit: "s",
				Tolerance: 5 * time.Minute, Template: "{timestamp}.{body}", Encoding: "hex",
			}},
			Secret: "the webhook's secret",
			ID:     "job_id", id: Field("job_id"), event: Field("event"), status: Field("status"),
			Notes: "The names of the headers, the prefix v1= and the tolerance are assumptions: set Signature to what your account says. " +
				"An attempt that fails or is slow is tried up to 10 times.",
			Sources: []string{"Sume's page on the MongoDB upsert: job_id is the idempotency key; up to 10 retries; terminal events only"},
		},
	}
}

// ending is the text behind the last point of a field.
func ending(path string) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		s, err := Field(path)(i)
		return s[strings.LastIndex(s, ".")+1:], err
	}
}
