package client_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/testenv"
)

// A target can be a list of addresses. One of them that is away is passed by.
func TestAddressList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &script{}, &script{}
		_, first := start(t, &fake{record: one.record})
		_, second := start(t, &fake{record: two.record})
		dial := func(ctx context.Context, address string) (net.Conn, error) {
			return map[string]*network{"127.0.0.1:1": first, "127.0.0.1:2": second}[address].dial(ctx, address)
		}
		c, err := client.New("127.0.0.1:1, 127.0.0.1:2", client.WithDialOptions(grpc.WithContextDialer(dial)))
		testenv.Must(t, err)
		defer func() { _ = c.Close() }()
		call := func() {
			t.Helper()
			for range 11 {
				if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // After the first call: until both are connected.
			}
		}
		call()
		if len(one.ids) < 5 || len(two.ids) < 5 {
			t.Errorf("%d and %d calls", len(one.ids), len(two.ids))
		}
		first.shut()
		call()
		if len(one.ids)+len(two.ids) < 22 {
			t.Errorf("%d and %d calls, with one address away", len(one.ids), len(two.ids))
		}
	})
}

// TestImpossibleAddresses: what can never be reached is refused at once, in a sentence that says what to write.
func TestImpossibleAddresses(t *testing.T) {
	const notHostPort = "is not host:port; an IPv6 address stands in brackets"
	for target, want := range map[string]string{
		"":                            "the target is empty",
		"http://127.0.0.1:50051":      "is a URL: write host:port",
		"https://jobonce.example":     "is a URL: write host:port",
		"HTTP://jobonce.example":      "is a URL: write host:port",
		"grpc://jobonce.example:1":    `gRPC has no resolver for "grpc"`,
		"50051":                       "is a port alone: write host:port",
		"dns:///50051":                "is a port alone: write host:port",
		"::1:50051":                   notHostPort,
		"::1":                         notHostPort,
		"2001:db8::7:50051":           notHostPort,
		"dns:///::1:50051":            notHostPort,
		"dns://8.8.8.8/::1:50051":     notHostPort,
		"[::1:50051":                  notHostPort,
		"[nonsense::]:50051":          notHostPort,
		"jobonce.example:":            notHostPort,
		"jobonce.example:50051/":      notHostPort,
		"jobonce.example :50051":      notHostPort,
		"jobonce.example:50051\n":     notHostPort,
		"jobonce.example:0":           "has no port from 1 to 65535",
		"jobonce.example:65536":       "has no port from 1 to 65535",
		"jobonce.example:fifty":       "has no port from 1 to 65535",
		"127.0.0.1:1,":                "a list with an empty address",
		"one:50051,two":               `"two" in it is not host:port`,
		"one:,two:50051":              `"one:" in it is not host:port`,
		"one:50051, [::1":             `"[::1" in it is not host:port`,
		"one:50051,::1:50051":         `"::1:50051" in it is not host:port`,
		"one:50051,two:99999":         `"two:99999" in it has no port`,
		"127.0.0.1:50051":             "",
		"[::1]:50051":                 "",
		":50051":                      "",
		"jobonce.example":             "",
		"jobonce.example:https":       "",
		"dns:///jobonce.example:1":    "",
		"dns://8.8.8.8/one.example:1": "",
		"unix:///run/jobonce.sock":    "",
		"passthrough:///memory":       "",
		"one:50051, two:50051":        "",
	} {
		c, err := client.New(target)
		if err == nil {
			_ = c.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", target, err, want)
		}
	}
}

// TestOwnResolver: a resolver among the dial options may know what nobody else does.
func TestOwnResolver(t *testing.T) {
	names := manual.NewBuilderWithScheme("own")
	names.InitialState(resolver.State{})
	c, err := client.New("own:///anything", client.WithDialOptions(grpc.WithResolvers(names)))
	testenv.Must(t, err)
	_ = c.Close()
}

// TestIsLoopback: of a list, all must be. A token goes there in plaintext, and nowhere else.
func TestIsLoopback(t *testing.T) {
	for target, is := range map[string]bool{
		"127.0.0.1:50051": true, "127.9.9.9:1": true, "[::1]:50051": true, "LOCALHOST:50051": true, "localhost": true, ":50051": true,
		"unix:/run/jobonce.sock": true, "unix-abstract:jobonce": true, "dns:///localhost:50051": true, "passthrough:127.0.0.1:1": true,
		"dns://example.com/localhost:1": true, "127.0.0.1:1,[::1]:2": true, "localhost:1, :2": true,
		"10.0.0.1:50051": false, "example.com:50051": false, "localhost.example.com:50051": false, "0.0.0.0:50051": false, "": false,
		"dns:///example.com:50051": false, "127.0.0.1:1,example.com:2": false,
	} {
		if got := client.IsLoopback(target); got != is {
			t.Errorf("%q: %v", target, got)
		}
		c, err := client.New(target, client.WithInsecure(), client.WithToken("t"))
		if (err == nil) != is {
			t.Errorf("a token in plaintext to %s: %v", target, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}
