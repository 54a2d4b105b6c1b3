package auth

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/internal/testenv"
)

// handshake is the certificate that a new connection sees, and what either side says.
func handshake(c *Certificates, client *tls.Config) (served *x509.Certificate, clients []*x509.Certificate, err error) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for _, c := range []net.Conn{near, far} { // Both may have something to say at once.
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return nil, nil, err
		}
	}
	server := tls.Server(far, c.Server())
	told := make(chan error, 1)
	go func() {
		told <- server.Handshake()
		far.Close()
	}()
	conn := tls.Client(near, client)
	if err := conn.Handshake(); err != nil {
		near.Close()
		<-told
		return nil, nil, err
	}
	go conn.Read(make([]byte, 1)) // The server's tickets and alerts want a reader.
	if err := <-told; err != nil {
		return nil, nil, err
	}
	return conn.ConnectionState().PeerCertificates[0], server.ConnectionState().PeerCertificates, nil
}

// TestCertificatesReload replaces the files in each way, under TLS 1.3 and mutual.
func TestCertificatesReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, next := testenv.NewCA(t, "first"), testenv.NewCA(t, "second")
		pairs := []testenv.Pair{ca.Issue("one"), ca.Issue("two"), ca.Issue("three"), ca.Issue("four")}
		oldClient, newClient := ca.Issue("client").TLS(t), next.Issue("client").TLS(t)
		both := append(append([]byte(nil), ca.PEM...), next.PEM...)
		dir := t.TempDir()
		// As Kubernetes has it: the names lead through a link, which is swapped.
		for i, d := range []string{"v1", "v2"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
			testenv.WriteFile(t, filepath.Join(dir, d), "tls.crt", pairs[i].Cert)
			testenv.WriteFile(t, filepath.Join(dir, d), "tls.key", pairs[i].Key)
			testenv.WriteFile(t, filepath.Join(dir, d), "ca.crt", ca.PEM)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.Symlink("v1", filepath.Join(dir, "..data")))
		for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
		in := func(name string) string { return filepath.Join(dir, name) }
		c, err := LoadCertificates(CertificateFiles{Cert: in("tls.crt"), Key: in("tls.key"), ClientCA: in("ca.crt")}, testenv.Logger(t))
		must(err)
		go c.Run(t.Context())
		client := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{oldClient}}
		var vouched Vouched
		serves := func(what string, want testenv.Pair) []*x509.Certificate {
			t.Helper()
			time.Sleep(3 * time.Second) // of the bubble
			synctest.Wait()
			served, clients, err := handshake(c, client)
			if err != nil || !served.Equal(want.TLS(t).Leaf) {
				t.Fatalf("%s: not the certificate that the files hold (%v)", what, err)
			}
			return clients
		}
		clients := serves("start", pairs[0])
		must(c.Vouch(&vouched, clients))

		must(os.Symlink("v2", in("..next")))
		must(os.Rename(in("..next"), in("..data")))
		serves("swapped link", pairs[1])

		// In place, the certificate before its key: for a while they do not match.
		must(os.WriteFile(in("tls.crt"), pairs[2].Cert, 0o600))
		serves("half of a pair", pairs[1])
		must(os.WriteFile(in("tls.key"), pairs[2].Key, 0o600))
		serves("in place", pairs[2])

		must(os.Rename(testenv.WriteFile(t, dir, "new.key", pairs[3].Key), in("tls.key")))
		must(os.Rename(testenv.WriteFile(t, dir, "new.crt", pairs[3].Cert), in("tls.crt")))
		serves("rename", pairs[3])
		if !c.Expires().Equal(pairs[3].TLS(t).Leaf.NotAfter) {
			t.Error("the expiry is another certificate's")
		}

		for _, broken := range []string{"", "-----BEGIN CERTIFICATE-----\n", string(ca.PEM) + "-----BEGIN CERTIFICATE-----\nAAAA\n"} {
			must(os.WriteFile(in("ca.crt"), []byte(broken), 0o600))
			must(c.Vouch(&vouched, serves("broken authorities", pairs[3])))
		}
		must(os.WriteFile(in("ca.crt"), both, 0o600))
		must(c.Vouch(&vouched, serves("two authorities", pairs[3])))
		must(os.WriteFile(in("ca.crt"), next.PEM, 0o600))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := c.Vouch(&vouched, clients); err == nil {
			t.Error("a connection keeps the authority that is gone")
		}
		// A client that heeds which authorities are asked for does not even show it.
		if _, clients, err := handshake(c, client); err == nil && len(clients) > 0 {
			t.Error("a certificate of the authority that is gone is taken")
		}
		client.Certificates = []tls.Certificate{newClient}
		must(c.Vouch(&vouched, serves("the other authority", pairs[3])))
	})
}

func TestCertificatesThatCannotBe(t *testing.T) {
	ca := testenv.NewCA(t, "ca")
	one, two := ca.Issue("one"), ca.Issue("two")
	dir := t.TempDir()
	cert, key := testenv.WriteFile(t, dir, "cert", one.Cert), testenv.WriteFile(t, dir, "key", one.Key)
	other, empty := testenv.WriteFile(t, dir, "other", two.Key), testenv.WriteFile(t, dir, "empty", nil)
	for _, files := range []CertificateFiles{
		{Cert: filepath.Join(dir, "none"), Key: key}, {Cert: cert, Key: other}, {Cert: cert, Key: empty}, {Cert: key, Key: cert},
		{Cert: cert, Key: key, ClientCA: empty}, {Cert: cert, Key: key, ClientCA: key},
	} {
		_, err := LoadCertificates(files, testenv.Logger(t))
		if err == nil || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "PRIVATE KEY-") {
			t.Errorf("%+v: %v", files, err)
		}
	}
}

func TestMinVersion(t *testing.T) {
	ca := testenv.NewCA(t, "ca")
	pair := ca.Issue("one")
	dir := t.TempDir()
	files := CertificateFiles{Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key)}
	old := &tls.Config{RootCAs: ca.Pool(), ServerName: "one", MaxVersion: tls.VersionTLS12}
	for version, taken := range map[uint16]bool{0: false, tls.VersionTLS13: false, tls.VersionTLS12: true} {
		files.MinVersion = version
		c, err := LoadCertificates(files, testenv.Logger(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := handshake(c, old); (err == nil) != taken {
			t.Errorf("at least %x: %v", version, err)
		}
	}
}

// TestExpiryIsSaid: once when the certificate in force expires, also long after the start, and again for another one.
func TestExpiryIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := testenv.NewCA(t, "ca"), t.TempDir()
		write := func(p testenv.Pair) CertificateFiles {
			return CertificateFiles{Cert: testenv.WriteFile(t, dir, "cert", p.Cert), Key: testenv.WriteFile(t, dir, "key", p.Key)}
		}
		log := new(testenv.Tail)
		c, err := LoadCertificates(write(ca.IssueUntil(time.Now().Add(time.Hour))), slog.New(slog.NewTextHandler(log, nil)))
		testenv.Must(t, err)
		go c.Run(t.Context())
		said := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if n := strings.Count(log.String(), "the certificate has expired"); n != want {
				t.Errorf("it was said %d times, want %d", n, want)
			}
		}
		said(59*time.Minute, 0)
		said(2*time.Minute, 1)
		said(time.Hour, 1)
		write(ca.IssueUntil(time.Now().Add(time.Minute)))
		said(50*time.Second, 1)
		said(20*time.Second, 2)
	})
}
