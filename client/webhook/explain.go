package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// Explanation is what a handler would do with a request.
type Explanation struct {
	// Reason and Verified are as in [Report]; Accepted means that Items would be recorded.
	Reason   Reason
	Verified bool
	// Err says what is wrong, Hints what may be the cause. Neither has a secret in it.
	Err   error
	Hints []string
	// Status is what would be answered, given that the service records.
	Status int
	// Items are what would be recorded.
	Items []ExplainedItem
}

// ExplainedItem is what would become of one event.
type ExplainedItem struct {
	// JobID, Event and Status are what would be recorded; the JobID of what is unreadable is that under which the whole
	// body is kept.
	JobID, Event, Status string
	// Filtered: When says no. It would not be recorded.
	Filtered bool
	// Err is why it is unreadable.
	Err error
	// Size is the size of what would be stored, in bytes.
	Size int
}

// Explain says what the handler would do with a request, and records nothing. It reads the request's body, and fetches keys
// where the signature needs that; a subscription of SNS that waits for its confirmation gets it.
func (h *Handler) Explain(r *http.Request) Explanation {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = nil
	}
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	out := h.examine(r.Context(), nil, again)
	e := h.explanation(out)
	if out.Reason == SignatureWrong {
		e.Hints = h.hints(again, body)
	}
	return e
}

// Interpret says what the handler would do with a request whose signature is good, without looking at that. It is for tests
// of what a [Source] reads, with bodies that nobody has signed. It records nothing, and does nothing about handshakes.
func (h *Handler) Interpret(r *http.Request, body []byte) Explanation {
	sum := sha256.Sum256(body)
	return h.explanation(h.source.find(NewRequest(r, body), sum[:], 0))
}

func (h *Handler) explanation(out *outcome) Explanation {
	h.decide(out)
	e := Explanation{Reason: out.Reason, Verified: out.Verified, Err: out.Err, Status: out.Status}
	for _, f := range out.items {
		e.Items = append(e.Items, ExplainedItem{
			JobID: f.jobID, Event: f.event, Status: f.status, Filtered: f.filtered, Err: f.err, Size: len(f.body),
		})
	}
	return e
}

// hints tries the mistakes that are made most often.
func (h *Handler) hints(r *http.Request, body []byte) (hints []string) {
	try := func(hint string, r *http.Request, body []byte, secrets []string) {
		e := h.evidence(NewRequest(r, body), r)
		if secrets != nil {
			e.secrets = secrets
		}
		if refusal := h.source.verify(r.Context(), e); refusal == nil || refusal.reason == SignatureStale || refusal.reason == SignatureAhead {
			hints = append(hints, hint)
		}
	}
	try("it fits without the line's end at the end of the body: it was added after signing", r, bytes.TrimRight(body, "\r\n"), nil)
	try("it fits with a line's end at the end of the body: it was lost after signing", r, append(bytes.Clone(body), '\n'), nil)
	var compact bytes.Buffer
	if json.Compact(&compact, body) == nil && !bytes.Equal(compact.Bytes(), body) {
		try("it fits the body without its blanks: it was written anew after signing", r, compact.Bytes(), nil)
	}
	var trimmed, prefixed []string
	for _, secret := range h.source.secrets() {
		trimmed = append(trimmed, strings.TrimPrefix(secret, "whsec_"))
		prefixed = append(prefixed, "whsec_"+secret)
	}
	try("it fits the secret without whsec_", r, body, trimmed)
	try("it fits the secret with whsec_ before it", r, body, prefixed)
	if h.source.usesURL() {
		hints = append(hints, "the sender signs the URL: it was checked against "+strings.Join(h.evidence(NewRequest(r, body), r).urls, " and ")+
			"; public_url sets it")
	}
	return hints
}
