//go:build older

package main

import (
	"errors"
	"io"
	"net/http"

	"github.com/jobonce/jobonce/client"
)

// What stands here stands in for what needs packages that an older JobOnce may not have. Built with the packages of one,
// this program is nothing but its callers: what they need is its Go client and internal/load.

// decodeRaw decodes nothing faster than the decoder beside it.
func decodeRaw(body string) (event, error) { return decodeTokens(body) }

func webhookHandler(string) (http.Handler, io.Closer, error) {
	return nil, nil, errors.New("the frontend is not measured for an older version")
}

func (s secured) options() ([]client.Option, error) {
	if s == (secured{}) {
		return nil, nil
	}
	return nil, errors.New("TLS and tokens are not measured for an older version")
}
