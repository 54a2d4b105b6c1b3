package webhook

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// read reads the body.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, refuse(EncodedBody, "the body has a Content-Encoding")
	}
	if r.ContentLength > int64(h.maxBody) {
		return nil, refuse(TooLarge, "the body is %d bytes, and %d are taken", r.ContentLength, h.maxBody)
	}
	if w != nil && h.readTimeout > 0 {
		control := http.NewResponseController(w)
		// A connection that has no deadline is one of tests.
		if control.SetReadDeadline(time.Now().Add(h.readTimeout)) == nil {
			defer func() { _ = control.SetReadDeadline(time.Time{}) }()
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.maxBody)))
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
