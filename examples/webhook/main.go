// Command webhook receives the webhooks of the senders whose secrets are in the environment, and records them with the JobOnce
// service on this machine. Workers do the work.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
)

// secrets are the environment variables, by sender.
var secrets = map[string]string{"stripe": "STRIPE_SECRET", "github": "GITHUB_SECRET", "sume": "SUME_SECRET"}

func main() {
	jobs, err := client.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	handler, err := frontend(jobs, os.Getenv)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", handler))
}

// frontend has a path for each sender whose secret is set.
func frontend(jobs webhook.Jobs, getenv func(string) string) (http.Handler, error) {
	mux := http.NewServeMux()
	for provider, variable := range secrets {
		if getenv(variable) == "" {
			continue
		}
		source := webhook.Source{Name: provider, Provider: provider, Secrets: webhook.Secrets(getenv(variable))}
		handler, err := webhook.NewHandler(jobs, source, webhook.WithReport(logged))
		if err != nil {
			return nil, err
		}
		mux.Handle("/"+provider, handler)
	}
	return mux, nil
}

// logged is a line for each delivery.
func logged(_ context.Context, r webhook.Report) {
	log.Printf("%s: %s, answered %d in %v, job %q, error %v", r.Source, r.Reason, r.Status, r.Duration, r.JobID, r.Err)
}
