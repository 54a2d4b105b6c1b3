package webhook

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// MaxStreamed is the largest body that is taken where the job is recorded without it, in bytes.
const MaxStreamed = 32 << 20

// read reads the body. What is over the limit of bodies comes back as rest, where it can be verified without being kept.
// w is nil for a request that did not come over HTTP.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (body []byte, rest io.Reader, refused *refusal) {
	done := h.bound(w)
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, nil, refuse(EncodedBody, "the body has a Content-Encoding")
	}
	limit := int64(h.maxBody)
	if h.source.streams(r.Header) {
		limit = max(limit, MaxStreamed)
	}
	if r.ContentLength > limit {
		return nil, nil, refuse(TooLarge, "the body is %d bytes, and %d are taken", r.ContentLength, limit)
	}
	whole := http.MaxBytesReader(w, r.Body, limit)
	body, err := io.ReadAll(io.LimitReader(whole, int64(h.maxBody)+1))
	switch {
	case err != nil:
		return nil, nil, h.broken(err)
	case len(body) > h.maxBody:
		return body, whole, nil
	case len(body) == 0:
		refused = refuse(EmptyBody, "there is no body")
	}
	done()
	return body, nil, refused
}

// broken is why a body could not be read.
func (h *Handler) broken(err error) *refusal {
	large := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &large):
		return refuse(TooLarge, "the body is over %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(SlowBody, "the body did not come within %v", h.readTimeout)
	}
	return refuse(BrokenBody, "the body ended early")
}

// bound gives the body its time. done lifts the deadline: it is not called for a body that did not come, since the server
// still waits for the rest of it after the answer.
func (h *Handler) bound(w http.ResponseWriter) (done func()) {
	if w == nil || h.readTimeout <= 0 {
		return func() {}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(h.readTimeout)) // Only writers of tests have none.
	return func() { _ = control.SetReadDeadline(time.Time{}) }
}
