package client

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// listScheme is the scheme of targets that are a list.
const listScheme = "jobonce-list"

// addressList makes the endpoints of a list. It is gRPC's resolver for one client.
type addressList struct{ addresses []string }

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
