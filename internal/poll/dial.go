package poll

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// errInner: the address is not one of the public Internet.
var errInner = errors.New("its address is not of the public Internet; allow_private lets it be asked all the same")

// notPublic are networks that are not of the public Internet beyond those that netip knows, from IANA's registries of
// special-purpose addresses (https://www.iana.org/assignments/iana-ipv4-special-registry, iana-ipv6-special-registry).
var notPublic = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20")

// embedding are the networks of IPv6 that hold an IPv4 address, and where in them.
var embedding = []struct {
	netip.Prefix
	at int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, {netip.MustParsePrefix("2002::/16"), 2},
}

// unicast is all of IPv6 that was given out for the public Internet, but for the translation of IPv4 in 64:ff9b::/96
// (https://www.iana.org/assignments/ipv6-address-space). Beyond it lie other translations, such as that of a network's own under
// 64:ff9b:1::/48, of which nobody can tell where in them the IPv4 address stands.
var unicast = prefixes("2000::/3", "64:ff9b::/96")

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// public tells whether an address is one of the public Internet, also as an IPv4 address within an IPv6 one.
func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsPrivate() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsInterfaceLocalMulticast() {
		return false
	}
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(notPublic, within) || a.Is6() && !slices.ContainsFunc(unicast, within) {
		return false
	}
	for _, e := range embedding {
		if b := a.As16(); a.Is6() && e.Contains(a) && !public(netip.AddrFrom4([4]byte(b[e.at:e.at+4]))) {
			return false
		}
	}
	return true
}

// dialer connects to public addresses alone, unless private is set. The address is looked at when the socket is about to be
// connected to it: what a name stood for before does not count.
func dialer(private bool) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !private {
		d.Control = func(network, address string, _ syscall.RawConn) error {
			a, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("cannot tell what address %s is", network)
			}
			if !public(a.Addr()) {
				return errInner
			}
			return nil
		}
	}
	return d
}
