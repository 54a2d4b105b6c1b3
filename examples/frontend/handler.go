// Package frontend is a webhook frontend that does the work itself.
package frontend

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// patience is how long the answer to the provider may take: less than the provider waits.
const patience = 5 * time.Second

// Handler starts the work of each webhook's job, and has the provider deliver again for as long as it is not done.
func Handler(jobs *client.Client, ship client.WorkFunc) http.Handler {
	handle := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		} else if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		// The work goes on when the provider hangs up.
		result, err := jobs.Do(context.WithoutCancel(r.Context()), delivery(body), ship)
		if err != nil {
			log.Print(err)
		}
		// The result comes first: the error may be ship's, which is no reason to refuse the delivery.
		switch {
		case result.Settled:
			w.WriteHeader(http.StatusNoContent)
		case result.Response == nil && errors.Is(err, client.ErrInvalidField):
			w.WriteHeader(http.StatusBadRequest) // It will never be right.
		case result.Response == nil && errors.Is(err, client.ErrPayloadTooLarge):
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		default:
			w.Header().Set("Retry-After", strconv.Itoa(int(result.RetryAfter.Seconds())))
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	// Work that takes longer goes on after the 503, and a later delivery hears that it is done.
	return http.TimeoutHandler(http.HandlerFunc(handle), patience, "")
}

// delivery has the body as text where it is text. Elsewhere no job_id can be read from it, and the body's hash is the id.
func delivery(body []byte) *joboncev1.RecordDeliveryRequest {
	req := &joboncev1.RecordDeliveryRequest{Source: "webhook"}
	if utf8.Valid(body) {
		req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: string(body)}
	} else {
		req.JobId = fmt.Sprintf("unreadable:%x", sha256.Sum256(body))
		req.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: body}
	}
	return req
}
