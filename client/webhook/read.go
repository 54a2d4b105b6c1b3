package webhook

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// read reads the body. w is nil for a request that did not come over HTTP.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, refuse(EncodedBody, "the body has a Content-Encoding")
	}
	if r.ContentLength > int64(h.maxBody) {
		return nil, refuse(TooLarge, "the body is %d bytes, and %d are taken", r.ContentLength, h.maxBody)
	}
	done := h.bound(w)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.maxBody)))
	if err == nil {
		done()
	}
	large := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &large):
		return nil, refuse(TooLarge, "the body is over %d bytes", h.maxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse(SlowBody, "the body did not come within %v", h.readTimeout)
	case err != nil:
		return nil, refuse(BrokenBody, "the body ended early")
	case len(body) == 0:
		return nil, refuse(EmptyBody, "there is no body")
	}
	return body, nil
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
