package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// secured is how the service is reached by TLS and with a token: the files' paths. The zero value is in plaintext, by nobody.
type secured struct {
	CACert, TokenFile string
}

// secure makes a certificate and a caller for a service, and returns the flags by which it has them.
func secure(dir, binary string) (s secured, flags []string, err error) {
	if dir, err = os.MkdirTemp(dir, "secure-"); err != nil {
		return s, nil, err
	}
	s = secured{CACert: filepath.Join(dir, "tls.crt"), TokenFile: filepath.Join(dir, "token")}
	key, auth := filepath.Join(dir, "tls.key"), filepath.Join(dir, "auth.yaml")
	entry, err := exec.Command(binary, "token", "new", "--name", "bench", "--allow", "record", "--out", s.TokenFile).Output()
	if err != nil {
		return s, nil, fmt.Errorf("jobonce token new: %w", err)
	}
	err = errors.Join(writeCertificate(s.CACert, key), os.WriteFile(auth, fmt.Appendf(nil, "callers:\n%s...\n", entry), 0o600))
	return s, []string{"--tls-cert", s.CACert, "--tls-key", key, "--auth-file", auth}, err
}

// writeCertificate writes a certificate for this machine, which is its own authority, and its key.
func writeCertificate(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 7),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	write := func(file, kind string, bytes []byte) error {
		return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600)
	}
	return errors.Join(write(certFile, "CERTIFICATE", cert), write(keyFile, "PRIVATE KEY", private))
}
