package client

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// listScheme is the scheme of targets that are a list.
const listScheme = "jobonce-list"

// isList says whether target names several services. gRPC's own names have no comma, but in a path.
func isList(target string) bool {
	return strings.Contains(target, ",") && !strings.Contains(target, "/")
}

// addressList makes the endpoints of a list. It is gRPC's resolver for one client.
type addressList struct{ addresses []string }

func newAddressList(target string) addressList {
	list := strings.Split(target, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return addressList{list}
}

// checkList says what is wrong with a target that is a list. One alone is gRPC's to judge, which knows a default port; of
// those in a list it would report nothing but failing connections.
func checkList(target string) error {
	if !isList(target) {
		return nil
	}
	for _, addr := range newAddressList(target).addresses {
		if addr == "" {
			return errors.New("the target is a list with an empty address")
		}
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return fmt.Errorf("the target is a list, and %q in it is not host:port", addr)
		}
	}
	return nil
}

// option has the client resolve its target with the list.
func (l addressList) option() grpc.DialOption { return grpc.WithResolvers(l) }

// Scheme is what makes gRPC ask this resolver.
func (addressList) Scheme() string { return listScheme }

// Build says all that there is to say at once. Each address is to show the certificate of its own host.
func (l addressList) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var state resolver.State
	for _, addr := range l.addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr, ServerName: addr}}})
	}
	return fixed{}, cc.UpdateState(state)
}

// fixed is a resolver whose addresses do not change.
type fixed struct{}

// ResolveNow has nothing to look up.
func (fixed) ResolveNow(resolver.ResolveNowOptions) {}

// Close has nothing to close.
func (fixed) Close() {}
