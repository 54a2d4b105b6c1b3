package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Frontends and those who deliver to them have this secret, and sign the body with it.
const (
	frontendSecret = "bench-secret"
	frontendHeader = "X-Signature"

	frontendMaxBody = 1 << 20 // what the handler of client/webhook takes
)

func frontendSignature(body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(frontendSecret))
	mac.Write(body)
	return mac.Sum(nil)
}

// bareFrontend verifies and does nothing: what any frontend must cost.
func bareFrontend(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, frontendMaxBody))
	sent, encoding := hex.DecodeString(r.Header.Get(frontendHeader))
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case encoding != nil || !hmac.Equal(sent, frontendSignature(body)):
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// serveFrontend reads a spec from its input, prints its address, and serves until its input ends: a webhook handler of the
// client for the service that the spec names, or without one a bare handler.
func serveFrontend(stdin io.Reader, stdout io.Writer) error {
	in := json.NewDecoder(stdin)
	var s spec
	if err := in.Decode(&s); err != nil {
		return err
	}
	handler := http.Handler(http.HandlerFunc(bareFrontend))
	if s.Address != "" {
		var closer io.Closer
		var err error
		if handler, closer, err = webhookHandler(s.Address); err != nil {
			return err
		}
		defer closer.Close()
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, lis.Addr()); err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		_ = server.Close()
	}()
	_ = server.Serve(lis) // Its error says that it was closed.
	return nil
}

// frontend is a frontend of its own process, before a service on a new embedded store unless it is to be bare.
func (l *lab) frontend(ctx context.Context, kind string, version programs, undo *cleanup) (place, error) {
	var behind place
	if kind == kindFrontend {
		var err error
		if behind, err = l.embeddedService(ctx, kindService, version, l.cfg.seed, undo); err != nil {
			return place{}, err
		}
	}
	server, address, err := startBare(ctx, l.dir, childFrontend, behind.spec)
	if err != nil {
		return place{}, err
	}
	undo.add(server.stop)
	return place{spec: spec{Address: address}, pids: append(behind.pids, server.pid())}, nil
}

// sender delivers webhooks.
type sender struct {
	url  string
	http *http.Client
}

func newSender(s spec) (runner, string, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: s.Callers}
	return target{
		Target: sender{url: "http://" + s.Address + "/", http: &http.Client{Transport: transport}},
		reason: func(err error) string { return err.Error() },
		end:    transport.CloseIdleConnections,
	}, "", nil
}

// Record says that each delivery is the first: the sender is not told, and delivers nothing twice.
func (s sender) Record(ctx context.Context, _, body string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(frontendHeader, hex.EncodeToString(frontendSignature([]byte(body))))
	resp, err := s.http.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	var said bytes.Buffer
	if _, err := io.Copy(&said, resp.Body); err != nil {
		return false, err
	}
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("answered %d: %s", resp.StatusCode, &said)
	}
	return true, nil
}
