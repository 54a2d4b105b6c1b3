package auth

import (
	"net"
	"strings"
)

// Hosts says by which names requests over HTTP may call a listener. A page of somebody else's can have its own name lead here, and
// would then be of the same origin as what is served here: its name is not one of these.
type Hosts struct {
	// Names are allowed beside localhost, addresses, and the names of the certificate.
	Names []string
	// Certificates are the listener's; nil in plaintext.
	Certificates *Certificates
}

// Serve tells whether requests for the host, with or without a port, are meant for this listener. Addresses are nobody's to lead
// elsewhere.
func (h Hosts) Serve(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil {
		return true
	}
	for _, name := range h.Names {
		if strings.EqualFold(name, host) {
			return true
		}
	}
	return h.Certificates != nil && host != "" && h.Certificates.Names(host)
}
