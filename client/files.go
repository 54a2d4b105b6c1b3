package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// fileAge is how long what a file held is used before it is read again.
const fileAge = time.Second

// WithClientCertificateFiles shows the service the certificate in certFile, whose key is in keyFile, both PEM. They are read
// again with each new connection, so a certificate that is replaced in time needs no restart; while the new files cannot be
// used, or do not belong together, the last ones that could be are. It needs TLS: say [WithTLS] where that is not the default.
//
// [New] fails when the files cannot be used.
func WithClientCertificateFiles(certFile, keyFile string) Option {
	return func(o *options) {
		f := &certificateFiles{cert: certFile, key: keyFile}
		if err := f.load(); err != nil && o.invalid == nil {
			o.invalid = fmt.Errorf("WithClientCertificateFiles: %w", err)
		}
		o.clientCert = f
	}
}

// certificateFiles is a certificate in files that may be replaced.
type certificateFiles struct {
	cert, key string

	mu   sync.Mutex
	pair *tls.Certificate
}

// load reads the files. What was read before stays when they cannot be used.
func (f *certificateFiles) load() error {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.pair = &pair
	return nil
}

// get is for [tls.Config.GetClientCertificate].
func (f *certificateFiles) get(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.load() // The last one is as good as it was.
	return f.pair, nil
}

// clientTLS is the configuration of TLS, nil for the default one.
func (o *options) clientTLS() *tls.Config {
	if o.clientCert == nil {
		return o.tlsConfig
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.tlsConfig != nil {
		config = o.tlsConfig.Clone()
	}
	config.GetClientCertificate = o.clientCert.get
	return config
}

// WithTokenFile is [WithToken] with the token in a file, without the spaces and line breaks around it. The file is read again
// when it is older in memory than a second, so a token that is replaced, as Kubernetes does every hour, needs no restart; while the
// file cannot be read, or is empty, the last token is sent. [New] fails when there is none.
func WithTokenFile(path string) Option {
	return func(o *options) {
		f := &tokenFile{path: path, now: time.Now}
		token, err := f.load()
		if err == nil {
			err = checkToken(token)
		}
		if err != nil && o.invalid == nil {
			o.invalid = fmt.Errorf("WithTokenFile: %w", err)
		}
		o.token, o.tokenVaries = f.get, false
	}
}

// tokenFile is a token in a file that may be replaced.
type tokenFile struct {
	path string
	now  func() time.Time

	mu    sync.Mutex
	token string
	read  time.Time
}

// load reads the file.
func (f *tokenFile) load() (string, error) {
	content, err := os.ReadFile(f.path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", errors.New(f.path + " is empty")
	}
	f.token, f.read = token, f.now()
	return token, nil
}

// get is the token's source.
func (f *tokenFile) get(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now().Sub(f.read) < fileAge {
		return f.token, nil
	}
	if _, err := f.load(); err != nil {
		f.read = f.now() // The last one is as good as it was.
	}
	return f.token, nil
}
