package mongostore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"syscall"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// explain puts a driver's error into an operator's words, where it knows some, and takes the password out of the rest.
// The driver hides the cause of a failed connection in the description of the servers.
func (s *Store) explain(err error) error {
	var schema *schemaError
	if err == nil || errors.As(err, &schema) {
		return err
	}
	causes := []error{err}
	var selection topology.ServerSelectionError
	if errors.As(err, &selection) {
		for _, server := range selection.Desc.Servers {
			if server.LastError != nil {
				causes = append(causes, server.LastError)
			}
		}
	}
	advice := ""
	for _, cause := range causes {
		if a := s.advise(cause); a != "" {
			advice = a + ": "
			break
		}
	}
	return errors.New(redact(fmt.Sprintf("%s%v", advice, err), s.secret))
}

// advise names what an operator has to change; empty when it does not know.
func (s *Store) advise(err error) string {
	var (
		de       driver.Error
		record   tls.RecordHeaderError
		verify   *tls.CertificateVerificationError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
	)
	switch {
	case errors.As(err, &de) && de.Code == codeAuthenticationFailed:
		return "the database refuses the user name or password; check the URI's credentials and its authSource"
	case errors.As(err, &de) && de.Code == codeUnauthorized:
		return "the database user may not do this; give it the role in docs/mongodb.md"
	case errors.As(err, &de) && de.Code == codeNotWritablePrimary && s.direct:
		return errNoPrimary.Error()
	case errors.As(err, &record):
		return "the server does not speak TLS; take tls=true out of the URI, or turn TLS on there"
	case errors.As(err, &hostname):
		return "the server's certificate is for another host name; use a name in the URI that the certificate has"
	case errors.As(err, &unknown), errors.As(err, &verify):
		return "the server's certificate is not trusted; name its authority with tlsCAFile in the URI"
	case s.deployment.Load() != nil || !hungUp(err):
		return "" // once it has answered, the way to it is right
	case s.tls:
		return "the server hangs up on TLS; it may not speak TLS, then take tls=true out of the URI, or it wants a client certificate"
	}
	return "the server hangs up; it may want TLS, then put tls=true into the URI"
}

// hungUp tells whether the server ended the connection. One that speaks TLS does so, without a word, when the other side
// does not, and the other way round.
func hungUp(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }
