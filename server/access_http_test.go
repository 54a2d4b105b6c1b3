package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/jobonce/jobonce/internal/httpdoor"
	"github.com/jobonce/jobonce/internal/testenv"
)

// httpRule is how a method is called over HTTP.
type httpRule struct{ Selector, Get, Post string }

func httpRules(t *testing.T) map[protoreflect.FullName]httpRule {
	text, err := os.ReadFile("../proto/jobonce/v1/http.yaml")
	testenv.Must(t, err)
	var file struct{ HTTP struct{ Rules []httpRule } }
	testenv.Must(t, yaml.Unmarshal(text, &file))
	rules := make(map[protoreflect.FullName]httpRule)
	for _, r := range file.HTTP.Rules {
		rules[protoreflect.FullName(r.Selector)] = r
	}
	return rules
}

// TestHTTPRules: every method of ours can be called over HTTP, but for those of AdminService.
func TestHTTPRules(t *testing.T) {
	s, err := New(Config{}, new(memoryJobs))
	testenv.Must(t, err)
	rules := httpRules(t)
	for _, m := range methodsOf(t, s.grpc) {
		_, ok := rules[m.FullName()]
		if want := m.Parent().ParentFile().Package() == "jobonce.v1" && m.Parent().Name() != "AdminService"; ok != want {
			t.Errorf("%s: over HTTP %v, want %v", m.FullName(), ok, want)
		}
		delete(rules, m.FullName())
	}
	if len(rules) > 0 {
		t.Errorf("rules of no method: %v", rules)
	}
}

// openHTTP serves the server's methods over HTTP and returns the address.
func openHTTP(t *testing.T, s *Server) string {
	door, err := httpdoor.New(httpdoor.Config{
		Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
			return s.Connect(ctx, Peer{Addr: addr, TLS: secured})
		},
		Callers: s.cfg.Callers, Certificates: s.cfg.Certificates, MaxConnections: 100, ShutdownTimeout: s.cfg.ShutdownTimeout, Logger: s.log,
	})
	testenv.Must(t, err)
	lis := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- door.Run(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		testenv.OK(t, <-done)
	})
	return lis.Addr().String()
}

// accessHTTP is what became of a call over HTTP, in the words of [access].
func accessHTTP(t *testing.T, address string, id identity, m protoreflect.MethodDescriptor, rule httpRule) string {
	input, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	testenv.Must(t, err)
	output, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	testenv.Must(t, err)
	msg, answer := input.New(), output.New().Interface()
	fill(msg, id.jobID)
	text, err := protojson.Marshal(msg.Interface())
	testenv.Must(t, err)
	scheme, client := "http", &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: id.tls}}
	if id.tls != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, scheme+"://"+address+rule.Post, bytes.NewReader(text))
	testenv.Must(t, err)
	if rule.Get != "" {
		query := url.Values{"job_id": {msg.Get(m.Input().Fields().ByName("job_id")).String()}}
		req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+address+rule.Get+"?"+query.Encode(), nil)
		testenv.Must(t, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Grpc-Metadata-Authorization", "Bearer forged") // It is nobody's.
	for _, token := range id.tokens {
		req.Header.Add("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "no connection"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	switch {
	case resp.Header.Get("Content-Type") != "application/json": // net/http's own, to plaintext where there is TLS.
		return "no connection"
	case resp.StatusCode == http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case resp.StatusCode == http.StatusForbidden:
		return "PERMISSION_DENIED"
	case resp.StatusCode == http.StatusNotImplemented || resp.StatusCode == http.StatusMethodNotAllowed || !strings.HasPrefix(string(body), "{"):
		return resp.Status
	case resp.StatusCode == http.StatusOK:
		testenv.Must(t, protojson.Unmarshal(body, answer))
		if refusesItem(answer) {
			return "item refused"
		}
	}
	return "in"
}
