package mongostore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// logs hands every line that is logged to the test.
type logs struct {
	lines   chan string
	awaited strings.Builder // the lines that await took
}

func newLogs() *logs { return &logs{lines: make(chan string, 10_000)} }

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logs) Write(p []byte) (int, error) {
	l.lines <- string(p)
	return len(p), nil
}

// await waits for a line that holds the text, and returns it.
func (l *logs) await(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case line := <-l.lines:
			t.Log(line)
			l.awaited.WriteString(line)
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			t.Fatalf("nobody logged %q", text)
		}
	}
}

// whole returns all that was logged.
func (l *logs) whole() string {
	l.awaited.WriteString(l.rest())
	return l.awaited.String()
}

// rest returns all that was logged and not yet awaited.
func (l *logs) rest() string {
	var b strings.Builder
	for {
		select {
		case line := <-l.lines:
			b.WriteString(line)
		default:
			return b.String()
		}
	}
}

// watched are the tests that look for goroutines at their end.
var watched sync.Map

// openLogged opens a store whose log the test reads. It looks for goroutines that outlive the test's stores, once all of
// them are closed: while one is open it may make new ones.
func openLogged(t *testing.T, opts mongostore.Options) (*mongostore.Store, *logs) {
	t.Helper()
	if _, already := watched.LoadOrStore(t, true); !already {
		before := goleak.IgnoreCurrent()
		t.Cleanup(func() {
			watched.Delete(t)
			goleak.VerifyNone(t, before)
		})
	}
	l := newLogs()
	opts.Logger = l.logger()
	s, err := mongostore.Open(opts)
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, s.Close()) })
	return s, l
}

// certificate makes a self-signed certificate for a host name; its file is one for tlsCAFile.
func certificate(t *testing.T, host string) (config *tls.Config, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testenv.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	testenv.Must(t, err)
	file = filepath.Join(t.TempDir(), "ca.pem")
	testenv.Must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, file
}

// TestUnreadyReasons holds what is said about each thing that an operator can have wrong, with a server that is made to
// answer so, and that the password stays out of it.
func TestUnreadyReasons(t *testing.T) {
	local, localCA := certificate(t, "127.0.0.1")
	other, otherCA := certificate(t, "db.example.com")
	const password = `p%s:w/ö@rd?#`
	refusal := failure(18, "AuthenticationFailed", "Authentication failed for "+password)
	denied := failure(13, "Unauthorized", "not authorized on app")
	collection := func(kind string, opts bson.D) bson.D {
		return cursorOf(bson.D{{Key: "name", Value: "sume_jobs"}, {Key: "type", Value: kind}, {Key: "options", Value: opts}})
	}
	for name, c := range map[string]struct {
		server  *tls.Config
		query   string
		login   bool
		answers map[string]bson.D
		want    string
	}{
		"wrong password":       {login: true, answers: map[string]bson.D{"saslStart": refusal}, want: "refuses the user name or password"},
		"may not look":         {answers: map[string]bson.D{"listCollections": denied}, want: "role in docs/mongodb.md"},
		"may not list indexes": {answers: map[string]bson.D{"listIndexes": denied}, want: "role in docs/mongodb.md"},
		"may not make indexes": {answers: map[string]bson.D{"createIndexes": denied}, want: "role in docs/mongodb.md"},
		"collation": {answers: map[string]bson.D{"listCollections": collection("collection",
			bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}})}, want: `default collation \"de\"`},
		"view": {answers: map[string]bson.D{"listCollections": collection("view", bson.D{})}, want: "is a view"},
		"non-unique index": {answers: map[string]bson.D{"listIndexes": cursorOf(
			bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "job_id", Value: 1}}}, {Key: "name", Value: "ours"}})},
			want: "it is not unique"},
		"TLS against plain":     {query: "tls=true", want: "may not speak TLS"},
		"plain against TLS":     {server: local, want: "may want TLS"},
		"unknown authority":     {server: local, query: "tls=true", want: "certificate is not trusted"},
		"certificate of others": {server: other, query: "tls=true&tlsCAFile=" + url.QueryEscape(otherCA), want: "for another host name"},
		"all is well over TLS":  {server: local, query: "tls=true&tlsCAFile=" + url.QueryEscape(localCA), want: "store ready"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, c.server)
			for command, reply := range c.answers {
				f.answer(command, reply)
			}
			u := url.URL{Scheme: "mongodb", Host: f.addr(), Path: "/", RawQuery: "directConnection=true&serverSelectionTimeoutMS=300&" + c.query}
			if c.login {
				u.User = url.UserPassword("frontend", password)
			}
			s, l := openLogged(t, mongostore.Options{URI: u.String()})
			if c.want == "store ready" {
				l.await(t, c.want)
				return
			}
			line := l.await(t, c.want) // the first look may end before the driver knows why
			reason := s.Check(t.Context())
			wantUnavailable(t, reason)
			if !strings.Contains(reason.Error(), strings.ReplaceAll(c.want, `\"`, `"`)) {
				t.Errorf("Check does not say %q: %v", c.want, reason)
			}
			encoded, _ := u.User.Password()
			for _, secret := range []string{password, url.PathEscape(password), url.QueryEscape(password)} {
				if c.login && (encoded != password || strings.Contains(line+reason.Error()+l.rest(), secret)) {
					t.Errorf("the password is in %s or %v", line, reason)
				}
			}
			select {
			case <-s.Ready():
				t.Error("the store is ready all the same")
			default:
			}
		})
	}
}

// TestPasswordStaysOutOfErrors opens stores on URIs that cannot be right, and reads what is said about them.
func TestPasswordStaysOutOfErrors(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://u:s3cr3t@host/?w=0":                "w=0",
		"mongodb://u:s3cr3t@host:port/":               "port",
		"mongodb://u:s3cr3t@/":                        "",
		"mongodb://u:s3cr3t@host/?maxPoolSize=many":   "maxPoolSize",
		"mongodb://u:s3cr3t@host/?authMechanism=NONE": "auth mechanism",
		"mongodb://u:s3cr3t%@host/":                   "percent-encoded",
		"mongodb://u:s3cr3t/x@host/":                  "percent-encoded",
		"mongodb://u:s3cr3t@x@host/":                  "percent-encoded",
		"mongodb://u:s3cr3t:x@host/":                  "percent-encoded",
		"mongodb://u:s3cr3t":                          "the @",
		"mongodb+srv://u:s3cr3t/app":                  "the @",
		"u:s3cr3t@host":                               "mongodb://",
		"postgres://u:s3cr3t@host/":                   "mongodb://",
		"":                                            "mongodb://",
		"mongodb://host/?tls=true&tlsCertificateKeyFilePassword=s3cr3t&ssl=maybe":                          "",
		"mongodb://host/?tls=true&tlsCertificateKeyFile=/nonexistent&tlsCertificateKeyFilePassword=s3cr3t": "/nonexistent",
		"mongodb://u:s3cr3t@host/?tls=true&tlsCAFile=/nonexistent":                                         "/nonexistent",
	} {
		l := newLogs()
		s, err := mongostore.Open(mongostore.Options{URI: uri, Logger: l.logger()})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s is taken", uri)
			continue
		}
		t.Log(err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error does not say %q: %v", uri, want, err)
		}
		if !strings.HasPrefix(err.Error(), "MongoDB URI: ") {
			t.Errorf("%s: the error does not say what is wrong: %v", uri, err)
		}
		if said := err.Error() + l.rest(); strings.Contains(said, "s3cr3t") {
			t.Errorf("the password is in %s", said)
		}
	}
}

func TestClockOffset(t *testing.T) {
	f := startFake(t, nil)
	f.answerWith("hello", func(bson.Raw) bson.D { return bson.D{{Key: "localTime", Value: time.Now().Add(time.Hour)}} })
	s, l := openLogged(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
	l.await(t, "clock differs")
	// A test machine may stall between the two clocks, but not for minutes.
	if off := s.ClockOffset(); off < 55*time.Minute || off > 65*time.Minute {
		t.Errorf("offset %v, want an hour", off)
	}
}

// TestTopology: a standalone is announced with what it means, the others are not.
func TestTopology(t *testing.T) {
	for kind, hello := range map[string]bson.D{
		"standalone":      {},
		"replica set":     {{Key: "setName", Value: "rs0"}},
		"sharded cluster": {{Key: "msg", Value: "isdbgrid"}},
	} {
		t.Run(kind, func(t *testing.T) {
			f := startFake(t, nil)
			f.answer("hello", hello)
			s, l := openLogged(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
			if line := l.await(t, "store ready"); !strings.Contains(line, kind) {
				t.Errorf("the log does not say %q: %s", kind, line)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			select {
			case <-s.Ready(): // closed after all that is logged
			case <-ctx.Done():
				t.Fatal("not ready")
			}
			if announced := strings.Contains(l.rest(), "standalone server"); announced != (kind == "standalone") {
				t.Errorf("announced as a standalone: %t", announced)
			}
		})
	}
}
