package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestRotationUnderLoad replaces everything that a service and its callers show each other, one after the other, while calls
// are made, each on a connection of its own. None fails, and what was replaced is taken no more.
func TestRotationUnderLoad(t *testing.T) {
	calls := int64(600)
	if testenv.Long() {
		calls = 20_000
	}
	dir, issuer := t.TempDir(), testenv.NewIssuer(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	// Files are replaced by a rename, so that no client reads half of one.
	replace := func(name string, content []byte) {
		testenv.WriteFile(t, dir, ".new", content)
		testenv.Must(t, os.Rename(in(".new"), in(name)))
	}
	pair := func(name string, p testenv.Pair) { replace(name+".crt", p.Cert); replace(name+".key", p.Key) }
	servers, clients := testenv.NewCA(t, "servers 1"), testenv.NewCA(t, "clients 1")
	servers2, clients2 := testenv.NewCA(t, "servers 2"), testenv.NewCA(t, "clients 2")
	roots := servers.Pool()
	testenv.Must(t, addPEM(roots, servers2.PEM))
	firstServer, firstClient := servers.Issue(), clients.Issue("reader")
	pair("tls", firstServer)
	pair("client", firstClient)
	replace("clients.crt", clients.PEM)
	entry := func(name string) (token, item string) {
		token, item, err := auth.NewEntry(auth.Entry{Name: name, Allow: []string{"read"}})
		testenv.Must(t, err)
		return token, item
	}
	firstToken, firstEntry := entry("shop")
	others := "- {name: reader, certificate: reader, allow: [read]}\n- {name: pod, oidc: {sub: pod}, allow: [read]}\n"
	callers := func(items string) { replace("auth.yaml", []byte("callers:\n"+items+others+"...\n")) }
	callers(firstEntry)
	replace("token", []byte(firstToken))
	var jwt atomic.Value
	firstJWT := issuer.Token("first", map[string]any{"sub": "pod"})
	jwt.Store(firstJWT)

	cfg := testServeConfig(t)
	cfg.security.cert, cfg.security.key, cfg.security.clientCA, cfg.security.authFile = in("tls.crt"), in("tls.key"), in("clients.crt"), in("auth.yaml")
	cfg.security.issuer, cfg.security.audience = issuer.URL(), "jobonce"
	h := serveHere(t, cfg)
	defer h.stop()

	// call makes a call on a new connection. There is no such job: that it says so means that it let the caller in.
	call := func(opt client.Option) error {
		c, err := client.New(h.addr, client.WithTLS(&tls.Config{RootCAs: roots}), client.WithTimeout(time.Minute), client.WithoutRetry(), opt)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err = c.GetJob(t.Context(), "none", joboncev1.JobView_JOB_VIEW_BASIC); errors.Is(err, client.ErrJobNotFound) {
			return nil
		}
		return err
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for begin := time.Now(); !is(); time.Sleep(50 * time.Millisecond) {
			if time.Since(begin) > 2*time.Minute {
				t.Fatal(what)
			}
		}
	}
	passes := func(opt client.Option) func() bool { return func() bool { return call(opt) == nil } }
	refused := func(opt client.Option) func() bool {
		return func() bool { return errors.Is(call(opt), client.ErrUnauthenticated) }
	}
	serves := func(p testenv.Pair) func() bool {
		return func() bool {
			conn, err := tls.Dial("tcp", h.addr, &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}})
			if err != nil {
				return false
			}
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].Equal(p.TLS(t).Leaf)
		}
	}
	jwtSource := client.WithTokenSource(func(context.Context) (string, error) { return jwt.Load().(string), nil })
	until("the issuer's keys are not there", passes(jwtSource))

	var made atomic.Int64
	var load sync.WaitGroup
	rotated := make(chan struct{})
	for _, credential := range []func() client.Option{
		func() client.Option { return client.WithTokenFile(in("token")) }, func() client.Option { return jwtSource },
		func() client.Option { return client.WithClientCertificateFiles(in("client.crt"), in("client.key")) },
	} {
		load.Go(func() {
			for over := false; !over || made.Load() < calls; {
				select {
				case <-rotated:
					over = true
				default:
				}
				// A certificate whose key is not there yet is a matter of the moment.
				if err := call(credential()); err != nil && !isMismatch(err) {
					t.Errorf("a call failed: %v", err)
					return
				}
				made.Add(1)
			}
		})
	}

	renewed := servers2.Issue()
	pair("tls", renewed)
	until("the certificate is not renewed", serves(renewed))

	secondToken, secondEntry := entry("shop")
	callers(firstEntry + secondEntry)
	until("the second token is not taken", passes(client.WithToken(secondToken)))
	replace("token", []byte(secondToken))
	callers(secondEntry)
	until("the first token is still taken", refused(client.WithToken(firstToken)))

	replace("clients.crt", append(append([]byte(nil), clients.PEM...), clients2.PEM...))
	second := clients2.Issue("reader")
	testenv.WriteFile(t, dir, "second.crt", second.Cert)
	testenv.WriteFile(t, dir, "second.key", second.Key)
	testenv.WriteFile(t, dir, "first.crt", firstClient.Cert)
	testenv.WriteFile(t, dir, "first.key", firstClient.Key)
	until("the second authority is not taken", passes(client.WithClientCertificateFiles(in("second.crt"), in("second.key"))))
	pair("client", second)
	replace("clients.crt", clients2.PEM)
	until("the first authority is still taken", func() bool { // The connection ends over it.
		return call(client.WithClientCertificateFiles(in("first.crt"), in("first.key"))) != nil
	})

	issuer.AddKey("second")
	fresh := issuer.Token("second", map[string]any{"sub": "pod"})
	until("the second key is not known", passes(client.WithToken(fresh)))
	jwt.Store(fresh)
	close(rotated)
	load.Wait()
	if !serves(renewed)() {
		t.Error("the old certificate is served")
	}
	t.Logf("%d calls", made.Load())
}

// isMismatch tells whether the error is that of a certificate and a key that do not belong together.
func isMismatch(err error) bool {
	return err != nil && err.Error() == "client: WithClientCertificateFiles: tls: private key does not match public key"
}

func addPEM(pool *x509.CertPool, pem []byte) error {
	if !pool.AppendCertsFromPEM(pem) {
		return errors.New("no certificate")
	}
	return nil
}
