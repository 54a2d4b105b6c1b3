package webhook

import (
	"net/http"
	"strconv"
	"time"
)

// status has the answer to each reason. What can be mended, here or by the service's operator, is 503, so that the sender
// delivers again. 409 and 410 are never used: senders take them for a wish to hear no more.
var status = map[Reason]int{
	Handshaken: http.StatusOK,
	Unreadable: http.StatusServiceUnavailable,

	MethodNotAllowed: http.StatusMethodNotAllowed,
	EmptyBody:        http.StatusBadRequest,
	EncodedBody:      http.StatusBadRequest,
	BrokenBody:       http.StatusBadRequest,
	SlowBody:         http.StatusServiceUnavailable,
	TooLarge:         http.StatusRequestEntityTooLarge,
	TooManyItems:     http.StatusRequestEntityTooLarge,

	SignatureMissing:   http.StatusUnauthorized,
	SignatureRepeated:  http.StatusUnauthorized,
	SignatureMalformed: http.StatusUnauthorized,
	SignatureStale:     http.StatusUnauthorized,
	SignatureAhead:     http.StatusUnauthorized,
	SignatureWrong:     http.StatusUnauthorized,
	KeyUnavailable:     http.StatusServiceUnavailable,
	HandshakeRefused:   http.StatusForbidden,
	HandshakeFailed:    http.StatusServiceUnavailable,

	Invalid:     http.StatusBadRequest,
	NotRecorded: http.StatusServiceUnavailable,
	WorkPending: http.StatusServiceUnavailable,
}

// How long a sender is asked to wait, where the service says nothing.
const (
	defaultRetryAfter    = 5 * time.Second
	unreadableRetryAfter = time.Minute
)

// decide decides on the status.
func (h *Handler) decide(out *outcome) {
	out.Status = h.source.Success
	if code, refused := status[out.Reason]; refused {
		out.Status = code
	}
	if instead, ok := h.source.refused[out.Status]; ok {
		out.Status = instead
	}
	if out.handshake != nil && out.handshake.status != 0 {
		out.Status = out.handshake.status
	}
}

// send writes the answer. The body of a refusal is its reason, which senders show in their logs of deliveries; that of a good
// answer is empty, since Slack shows it to people.
func (h *Handler) send(w http.ResponseWriter, out *outcome) {
	switch {
	case out.Status == http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case out.Status == http.StatusServiceUnavailable:
		wait := out.retryAfter
		if wait == 0 {
			if wait = defaultRetryAfter; out.Reason == Unreadable {
				wait = unreadableRetryAfter
			}
		}
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int((wait+time.Second-1)/time.Second))))
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	var body []byte
	switch {
	case out.handshake != nil:
		body = out.handshake.body
		if len(body) > 0 {
			w.Header().Set("Content-Type", out.handshake.contentType)
		}
	case out.Status >= 300:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(string(out.Reason) + "\n")
	}
	w.WriteHeader(out.Status)
	_, _ = w.Write(body) // Who hung up hears nothing.
}
