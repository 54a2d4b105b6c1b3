package webhook_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// instant records nothing, at once.
type instant struct{ jobs }

func (*instant) RecordDelivery(context.Context, *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	return &joboncev1.RecordDeliveryResponse{}, nil
}

// BenchmarkHandler is the handler's own cost of a delivery of 1 KiB.
func BenchmarkHandler(b *testing.B) {
	body := `{"job_id":"j","event":"e","status":"OK","text":"` + strings.Repeat("x", 960) + `"}`
	signature := webhook.Signature{Kind: webhook.HMAC, Header: "X-Signature", Template: "{body}", Encoding: "hex"}
	h := handler(b, &instant{}, webhook.Source{Name: "bench", Signature: &signature, Secrets: webhook.Secrets("secret"),
		ID: webhook.Field("job_id"), Event: webhook.Field("event"), Status: webhook.Field("status")})
	v := vector{Body: body, Headers: map[string]string{"X-Signature": macHex("secret", body)}}
	b.ReportAllocs()
	for b.Loop() {
		w := recorder()
		if h.ServeHTTP(w, v.request()); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
