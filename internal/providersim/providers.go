// Package providersim plays the senders of webhooks: when they try again, what they take for success, and when they give up,
// on a clock of its own, so that a day takes no time. It is for tests, written from what the senders say and not from what
// client/webhook does, which it does not import.
package providersim

import (
	"fmt"
	"net/http"
	"time"
)

// Provider is a sender.
type Provider struct {
	// Name is the preset's.
	Name string
	// Gaps are the times from one attempt to the next.
	Gaps []time.Duration
	// Assumed says what of the gaps is not published. Empty: nothing.
	Assumed string
	// Timeout is how long it waits for an answer. 0: not published.
	Timeout time.Duration
	// OK says whether a status is a success. Nil: any 2xx.
	OK func(status int) bool
	// Again says whether it tries again after a status, 0 for no answer. Nil: after everything that is no success.
	Again func(status int) bool
	// RemovedByExhaustion: the subscription is removed when all attempts of one event failed.
	RemovedByExhaustion bool
	// DisabledAfter disables the endpoint when nothing was a success for so long, over at least DisabledInARow attempts. 0: no
	// such rule is known.
	DisabledAfter  time.Duration
	DisabledInARow int
	// Redelivery is how an event that was given up is got back.
	Redelivery string
	// Event makes the n-th event.
	Event func(n int) Event
	// Sign signs one attempt.
	Sign func(r *Attempt) http.Header
	// Secret is of the form that the sender gives out; Stale is an older one.
	Secret, Stale string
	// Survives says how many of each scenario's events are recorded in the end.
	Survives Survivors
}

// Event is what happened at the sender.
type Event struct {
	ID   string // As the sender names it, wherever that stands.
	Body []byte
	// Header has what does not change from attempt to attempt.
	Header http.Header
}

// Attempt is one delivery of an event.
type Attempt struct {
	Event
	URL    string
	Secret string
	At     time.Time
	Number int // from 0
}

// Survivors are numbers of events by scenario: of 100 that happen during an outage of the service of a minute, an hour and a day;
// of 300 over three restarts of the frontend; of 100 that are each delivered five times; of 100 while the frontend has a stale
// secret for an hour.
type Survivors struct{ Minute, Hour, Day, Restarts, Storm, Stale int }

// all is what a sender that tries for longer than a day gets.
var all = Survivors{100, 100, 100, 300, 100, 100}

// doubling are n gaps, each twice as long as the one before, that make total.
func doubling(n int, total time.Duration) []time.Duration {
	unit := total / time.Duration(1<<n-1)
	gaps := make([]time.Duration, n)
	for i := range gaps {
		gaps[i] = unit << i
	}
	return gaps
}

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

// svixGaps are those of docs.svix.com/retries.
var svixGaps = []time.Duration{5 * second, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 10 * hour}

const unpublished = "the gaps, within the published time"

// Where an event survives is a matter of arithmetic: one that happens when there is still d of the outage to go survives when
// the last attempt comes d later or more. The 100 events of an outage happen at equal distances.
//
// Each fact is from the sender's pages that the preset names.
var providers = []*Provider{
	{
		Name:    "standard-webhooks",
		Gaps:    []time.Duration{5 * second, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour},
		Assumed: "the schedule: it is the standard's example", Redelivery: "as the sender offers it",
		Event: standardEvent("webhook"), Sign: signStandard("webhook"), Secret: standardSecret, Stale: standardStale, Survives: all,
	},
	{
		Name: "svix", Gaps: svixGaps, Timeout: 15 * second, DisabledAfter: 5 * 24 * hour, Redelivery: "by hand or API",
		Event: standardEvent("svix"), Sign: signStandard("svix"), Secret: standardSecret, Stale: standardStale, Survives: all,
	},
	{
		Name: "clerk", Gaps: svixGaps, Timeout: 15 * second, DisabledAfter: 5 * 24 * hour, Redelivery: "by hand",
		Event: standardEvent("svix"), Sign: signStandard("svix"), Secret: standardSecret, Stale: standardStale, Survives: all,
	},
	{
		Name: "resend", Gaps: svixGaps, Timeout: 15 * second, DisabledAfter: 5 * 24 * hour, Redelivery: "by hand or API",
		Event: standardEvent("svix"), Sign: signStandard("svix"), Secret: standardSecret, Stale: standardStale, Survives: all,
	},
	{
		Name: "stripe", Gaps: doubling(15, 72*hour), Assumed: unpublished, Redelivery: "by hand up to 15 days, or `stripe events resend` up to 30",
		Event: jsonEvent(`{"id":"evt_%d","object":"event","type":"charge.succeeded"}`, "evt_%d"),
		Sign:  signPairs("Stripe-Signature", "t=%s,v1=%s", "."), Secret: "whsec_stripe", Stale: "whsec_older", Survives: all,
	},
	{
		Name: "github", Timeout: 10 * second, Redelivery: "by hand or API, for each delivery",
		Event: githubEvent, Sign: signGitHub, Secret: "github-secret", Stale: "older-secret",
		Survives: Survivors{Restarts: 270, Storm: 100},
	},
	{
		Name: "shopify", Gaps: doubling(8, 4*hour), Assumed: unpublished, Timeout: 5 * second, RemovedByExhaustion: true,
		Redelivery: "not known: subscribe again, and read what changed by the API",
		Event:      shopifyEvent, Sign: signShopify, Secret: "shopify-secret", Stale: "older-secret",
		Survives: Survivors{100, 100, 0, 300, 100, 100},
	},
	{
		Name: "slack", Gaps: []time.Duration{1 * second, 1 * minute, 5 * minute}, Timeout: 3 * second, Redelivery: "not known",
		Event: jsonEvent(`{"type":"event_callback","event_id":"Ev%d","event":{"type":"message"}}`, "Ev%d"),
		Sign:  signSlack, Secret: "slack-secret", Stale: "older-secret",
		Survives: Survivors{100, 10, 0, 300, 100, 10},
	},
	{
		// One more attempt, and that only where no connection was made.
		Name: "twilio", Gaps: []time.Duration{1 * second}, Timeout: 15 * second, Again: func(status int) bool { return status == 0 },
		Redelivery: "not known: read messages and calls by the API",
		Event:      twilioEvent, Sign: signTwilio, Secret: "12345", Stale: "54321",
		Survives: Survivors{Restarts: 273, Storm: 100},
	},
	{
		Name: "sendgrid", Gaps: doubling(10, 24*hour-minute), Assumed: unpublished, Redelivery: "not known",
		Event: jsonEvent(`[{"sg_event_id":"sg%d","event":"delivered"}]`, "sg%d"),
		Sign:  signSendGrid, Secret: sendGridPublic(0), Stale: sendGridPublic(1),
		Survives: Survivors{100, 100, 99, 300, 100, 100},
	},
	{
		Name: "square", Timeout: 10 * second,
		Gaps: []time.Duration{1 * minute, 2 * minute, 4 * minute, 8 * minute, 16 * minute, 32 * minute, 60 * minute,
			2 * hour, 4 * hour, 8 * hour, 8 * hour},
		DisabledAfter: 21 * 24 * hour, Redelivery: "read the events by its API",
		Event: jsonEvent(`{"event_id":"sq%d","type":"payment.created"}`, "sq%d"), Sign: signSquare, Secret: "square-secret", Stale: "older-secret",
		Survives: all,
	},
	{
		Name: "paddle", Gaps: doubling(14, 72*hour), Assumed: unpublished, Timeout: 5 * second, OK: only200, Redelivery: "by API",
		Event: jsonEvent(`{"event_id":"evt_%d","event_type":"transaction.completed"}`, "evt_%d"),
		Sign:  signPairs("Paddle-Signature", "ts=%s;h1=%s", ":"), Secret: "pdl_ntfset_1", Stale: "pdl_ntfset_0", Survives: all,
	},
	{
		Name: "openai", Gaps: doubling(14, 72*hour), Assumed: unpublished, Redelivery: "not known: read the response or the batch by its API",
		Event: openAIEvent, Sign: signStandard("webhook"), Secret: standardSecret, Stale: standardStale, Survives: all,
	},
	{
		Name: "replicate", Gaps: doubling(6, 1*minute), Assumed: unpublished, Redelivery: "read the prediction by its API",
		Event: replicateEvent, Sign: signStandard("webhook"), Secret: standardSecret, Stale: standardStale,
		Survives: Survivors{99, 1, 0, 300, 100, 1}, // The last attempt comes just before the minute is over.
	},
	{
		Name: "mux", Gaps: doubling(10, 24*hour-minute), Assumed: unpublished, Redelivery: "not known: read the asset by its API",
		Event: jsonEvent(`{"id":"mux%d","type":"video.asset.ready","attempts":[]}`, "mux%d"),
		Sign:  signPairs("Mux-Signature", "t=%s,v1=%s", "."), Secret: "mux-secret", Stale: "older-secret",
		Survives: Survivors{100, 100, 99, 300, 100, 100},
	},
	{
		Name: "hubspot", Gaps: doubling(10, 24*hour-minute), Assumed: unpublished, Timeout: 5 * second, Redelivery: "not known",
		Event: jsonEvent(`[{"eventId":%d,"subscriptionId":1,"objectId":2,"occurredAt":3,"subscriptionType":"contact.creation"}]`, "%d:1:2:3:"),
		Sign:  signHubSpot, Secret: "hubspot-secret", Stale: "older-secret",
		Survives: Survivors{100, 100, 99, 300, 100, 100},
	},
	{
		Name: "assemblyai", Gaps: doubling(9, 511*second), Assumed: "the gaps: only that there are up to ten attempts is published", Timeout: 10 * second,
		Again: func(status int) bool { return status == 0 || status >= 500 }, Redelivery: "read the transcript by its API",
		Event: jsonEvent(`{"transcript_id":"tr%d","status":"completed"}`, "tr%d:completed"),
		Sign:  func(a *Attempt) http.Header { return header("X-Assembly", a.Secret) }, Secret: "assembly-secret", Stale: "older-secret",
		Survives: Survivors{100, 14, 0, 300, 100, 14},
	},
	{
		Name: "elevenlabs", Gaps: []time.Duration{30 * second, 2 * minute, 8 * minute, 30 * minute}, OK: only200, Assumed: "that retries are switched on",
		DisabledAfter: 7 * 24 * hour, DisabledInARow: 10,
		Again:      func(status int) bool { return status == 0 || status >= 500 || status == 429 || status == 408 },
		Redelivery: "not known: read the conversation by its API",
		Event:      jsonEvent(`{"type":"post_call_transcription","data":{"conversation_id":"c%d"}}`, "post_call_transcription:c%d"),
		Sign:       signPairs("ElevenLabs-Signature", "t=%s,v0=%s", "."), Secret: "eleven-secret", Stale: "older-secret",
		Survives: Survivors{100, 67, 2, 300, 100, 67},
	},
}

// Providers returns the senders whose presets are promised.
func Providers() []*Provider { return providers }

func only200(status int) bool { return status == http.StatusOK }

func (p *Provider) ok(status int) bool {
	if p.OK != nil {
		return p.OK(status)
	}
	return status >= 200 && status < 300
}

func (p *Provider) again(status int) bool { return p.Again == nil || p.Again(status) }

func header(name, value string) http.Header {
	return http.Header{http.CanonicalHeaderKey(name): {value}}
}

func jsonEvent(body, id string) func(int) Event {
	return func(n int) Event {
		return Event{ID: fmt.Sprintf(id, n), Body: fmt.Appendf(nil, body, n), Header: header("Content-Type", "application/json")}
	}
}
