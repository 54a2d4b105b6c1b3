//go:build !older

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
)

// webhookHandler is a handler of client/webhook that records what it verified with the service at an address.
func webhookHandler(address string) (http.Handler, io.Closer, error) {
	jobs, err := client.New(address)
	if err != nil {
		return nil, nil, err
	}
	signature := webhook.Signature{Kind: webhook.HMAC, Header: frontendHeader, Template: "{body}", Encoding: "hex"}
	handler, err := webhook.NewHandler(jobs, webhook.Source{
		Name: "bench", Signature: &signature, Secrets: webhook.Secrets(frontendSecret),
		ID: webhook.Field("job_id"), Event: webhook.Field("event"), Status: webhook.Field("status"),
	})
	return handler, jobs, err
}

// options are what a client needs for it.
func (s secured) options() ([]client.Option, error) {
	if s == (secured{}) {
		return nil, nil
	}
	pem, err := os.ReadFile(s.CACert)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", s.CACert)
	}
	return []client.Option{client.WithTLS(&tls.Config{RootCAs: pool}), client.WithTokenFile(s.TokenFile)}, nil
}
