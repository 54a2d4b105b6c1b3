package client

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/resolver"
)

// target is what the text that [New] is given names.
type target struct {
	// scheme is gRPC's name of the resolver. Empty for an address as it is, and for a list.
	scheme string
	// addresses are hosts, with or without a port. Empty where only the resolver understands what is named.
	addresses []string
}

// parseTarget refuses what can never be an address: gRPC takes it for a name, and would look that up again and again.
// With custom resolvers gRPC knows schemes that cannot be seen here.
func parseTarget(text string, custom bool) (target, error) {
	if text == "" {
		return target{}, errors.New("the target is empty")
	}
	if strings.Contains(text, ",") && !strings.Contains(text, "/") { // gRPC's own names have no comma, but in a path.
		return parseList(text)
	}
	scheme, rest, _ := strings.Cut(text, ":")
	scheme = strings.ToLower(scheme)
	known := resolver.Get(scheme) != nil
	switch {
	case !known && !strings.HasPrefix(rest, "//"):
		scheme, rest = "", text
	case !known && (scheme == "http" || scheme == "https"):
		return target{}, fmt.Errorf("the target %q is a URL: write host:port", text)
	case !known && !custom:
		return target{}, fmt.Errorf("the target %q: gRPC has no resolver for %q", text, scheme)
	}
	t := target{scheme: scheme}
	switch scheme {
	case "", "dns", "passthrough":
		if _, path, ok := strings.Cut(strings.TrimPrefix(rest, "//"), "/"); ok && scheme != "" {
			rest = path
		}
		t.addresses = []string{rest}
	}
	if len(t.addresses) > 0 && scheme != "passthrough" {
		if err := checkAddress(rest); err != nil {
			return target{}, fmt.Errorf("the target %q %w", text, err)
		}
	}
	return t, nil
}

func parseList(text string) (target, error) {
	t := target{addresses: strings.Split(text, ",")}
	for i, addr := range t.addresses {
		addr = strings.TrimSpace(addr)
		if addr == "" {
			return target{}, errors.New("the target is a list with an empty address")
		}
		if _, _, err := net.SplitHostPort(addr); err != nil { // A list has no default port.
			return target{}, fmt.Errorf("the target is a list, and %q in it is not host:port", addr)
		}
		if err := checkAddress(addr); err != nil {
			return target{}, fmt.Errorf("the target is a list, and %q in it %w", addr, err)
		}
		if strings.HasPrefix(addr, ":") {
			addr = "localhost" + addr // It is the name in the certificate, too.
		}
		t.addresses[i] = addr
	}
	return t, nil
}

// checkAddress says what is wrong with an address. The port may be missing.
func checkAddress(addr string) error {
	if addr != "" && strings.Trim(addr, "0123456789") == "" {
		return errors.New("is a port alone: write host:port")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		port = "443" // gRPC's default.
		host, _, err = net.SplitHostPort(addr + ":" + port)
	}
	if err != nil || port == "" || strings.ContainsAny(addr, "/ \t\r\n") || strings.Contains(host, ":") && !isIP(host) {
		return errors.New("is not host:port; an IPv6 address stands in brackets, as in [::1]:50051")
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return errors.New("has no port from 1 to 65535")
	}
	return nil
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// IsLoopback tells whether target, as [New] takes it, can only be of this machine: a loopback address, "localhost", no host, or a
// Unix socket. Calls to it are in plaintext unless an option says otherwise. It is false in doubt, and for what is no target.
func IsLoopback(target string) bool {
	t, err := parseTarget(target, false)
	return err == nil && t.loopback()
}

// list says whether the target is several addresses.
func (t target) list() bool { return len(t.addresses) > 1 }

// unix says whether the target is a socket in the file system.
func (t target) unix() bool { return t.scheme == "unix" || t.scheme == "unix-abstract" }

// loopback says whether the target can only be of this machine. In doubt it is not.
func (t target) loopback() bool {
	if t.unix() {
		return true
	}
	return len(t.addresses) > 0 && !slices.ContainsFunc(t.addresses, func(addr string) bool {
		host := hostOf(addr)
		ip, err := netip.ParseAddr(host)
		return host != "localhost" && !(err == nil && ip.IsLoopback())
	})
}

// single says whether the target can only be one service. In doubt it is not.
func (t target) single() bool {
	if t.unix() || t.scheme == "passthrough" {
		return true
	}
	return len(t.addresses) == 1 && (hostOf(t.addresses[0]) == "localhost" || isIP(hostOf(t.addresses[0])))
}

// hostOf is an address without its port. No host means this machine, as in [net.Dial].
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	if host == "" {
		return "localhost"
	}
	return strings.ToLower(host)
}
