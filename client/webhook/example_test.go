package webhook_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
)

// A sender with a preset.
func ExampleNewHandler() {
	jobs, err := client.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer jobs.Close()
	handler, err := webhook.NewHandler(jobs, webhook.Source{
		Name: "stripe", Provider: "stripe", Secrets: webhook.Secrets(os.Getenv("STRIPE_SECRET")),
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/stripe", handler)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}

// A sender without one: its scheme, and what its bodies mean. Explain says what would become of a request.
func ExampleHandler_Explain() {
	handler, err := webhook.NewHandler(nil, webhook.Source{
		Name: "acme", Secrets: webhook.Secrets("secret"),
		Signature: &webhook.Signature{
			Kind: webhook.HMAC, Header: "X-Acme-Signature", TimestampHeader: "X-Acme-Time", Unit: "s", Tolerance: 5 * time.Minute,
			Template: "{timestamp}.{body}", Encoding: "hex",
		},
		ID: webhook.Field("job.id"), Event: webhook.Field("event"),
		When: webhook.OneOf(webhook.Field("event"), "job.completed", "job.failed"),
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/acme", strings.NewReader(`{"event":"job.completed","job":{"id":"7"}}`))
	e := handler.Explain(r)
	fmt.Println(e.Status, e.Reason, e.Err)
	// Output: 401 signature_missing the header X-Acme-Signature is missing
}
