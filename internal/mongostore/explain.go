package mongostore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"syscall"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// explain puts a driver's error into an operator's words, where it knows some. The driver hides the cause of a failed
// connection in the description of the servers. What a server says to a password is left out: nobody knows what it repeats.
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
		if code, refused := loginRefused(cause); refused {
			return fmt.Errorf("the database refuses the user name or password (error %d); check the URI's credentials and its authSource", code)
		}
		if a := s.advise(cause); a != "" && advice == "" {
			advice = a + ": "
		}
	}
	var pool driver.RetryablePoolError
	if errors.As(err, &pool) { // which hides a cause that may be a refused password
		return errors.New("the connections to the database were closed, because another operation failed on one of them")
	}
	return fmt.Errorf("%s%v", advice, err)
}

// loginRefused tells whether a server has refused to authenticate, and its code.
func loginRefused(err error) (code int32, refused bool) {
	var login *auth.Error
	var server driver.Error
	if errors.As(err, &server) && (server.Code == codeAuthenticationFailed || errors.As(err, &login)) {
		return server.Code, true
	}
	return 0, false
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
	case errors.As(err, &de) && de.Code == codeUnauthorized:
		return "the database user may not do this; give it the role in docs/mongodb.md"
	case errors.As(err, &de) && de.Code == codeNotWritablePrimary && s.direct:
		return errNoPrimary.Error()
	case errors.As(err, &de) && de.Code == codeInvalidNamespace:
		return "the database does not take the name of the database or the collection; give others with --mongodb-database and --mongodb-collection"
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
