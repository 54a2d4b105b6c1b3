package mongostore_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// openedOn is the name of a store that is opened with these options, and the error.
func openedOn(t *testing.T, opts mongostore.Options) (string, error) {
	t.Helper()
	opts.Logger = newLogs().logger()
	s, err := mongostore.Open(opts)
	if err != nil {
		return "", err
	}
	name := s.String()
	testenv.OK(t, s.Close())
	return name, nil
}

// wantRefused checks that an error names what it is about.
func wantRefused(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want an error that says %q", what, err, want)
	}
}

// TestUnknownOptions: what would have no effect is refused by name, also before a name is looked up.
func TestUnknownOptions(t *testing.T) {
	for query, want := range map[string]string{
		"readPreferenc=secondary":         "readpreferenc",
		"tls=false&wtimeoutMS=100":        "wtimeoutms",
		"uuidRepresentation=standard&b=2": `"b" "uuidrepresentation"`,
		"socketTimeoutMS=1000":            "socketTimeoutMS",
		"maxPoolSize=7&retryWrites=false": "",
	} {
		for _, front := range []string{"mongodb://127.0.0.1:1/?", "mongodb://u:s3cr3t@127.0.0.1:1/app?", "mongodb+srv://u:s3cr3t@name.invalid/?"} {
			_, err := openedOn(t, mongostore.Options{URI: front + query})
			if want == "" {
				if err != nil {
					t.Errorf("%s: %v", front+query, err)
				}
				continue
			}
			wantRefused(t, front+query, err, want)
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Error(err)
			}
		}
	}
}

// TestDatabaseOfTheURI: the one in the path is used where the options name none, and never ignored without a word.
func TestDatabaseOfTheURI(t *testing.T) {
	const here = "@127.0.0.1:1"
	for _, c := range []struct{ uri, database, want, refused string }{
		{uri: "mongodb://127.0.0.1:1", want: "app"},
		{uri: "mongodb://127.0.0.1:1/", want: "app"},
		{uri: "mongodb://127.0.0.1:1/mine", want: "mine"},
		{uri: "mongodb://127.0.0.1:1/mine?tls=true", want: "mine"},
		{uri: "mongodb+srv://name.invalid/mine", want: "mine"},
		{uri: "mongodb://127.0.0.1:1/mine", database: "mine", want: "mine"},
		{uri: "mongodb://127.0.0.1:1/mine", database: "other", refused: `path names the database "mine", and --mongodb-database "other"`},
		{uri: "mongodb+srv://name.invalid/mine", database: "other", refused: `path names the database "mine"`},
		// It says who knows the user.
		{uri: "mongodb://u:p" + here + "/admin", want: "app"},
		{uri: "mongodb://u:p" + here + "/admin", database: "mine", want: "mine"},
		{uri: "mongodb://u:p" + here + "/users", database: "mine", want: "mine"},
		{uri: "mongodb://u:p" + here + "/users?authSource=users", database: "mine", want: "mine"},
		{uri: "mongodb://u:p" + here + "/mine", want: "mine"},
		{uri: "mongodb://u:p" + here + "/mine?authSource=admin", want: "mine"},
		{uri: "mongodb://u:p" + here + "/mine?authSource=admin", database: "other", refused: `path names the database "mine"`},
	} {
		name, err := openedOn(t, mongostore.Options{URI: c.uri, Database: c.database})
		if c.refused != "" {
			wantRefused(t, c.uri, err, c.refused)
		} else if err != nil || !strings.HasPrefix(name, "MongoDB "+c.want+".sume_jobs on ") {
			t.Errorf("%s, %q: %s, %v", c.uri, c.database, name, err)
		}
	}
}

// TestNames: a name that no MongoDB takes is refused at the start; one that this database does not take is told as that.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct{ database, collection, refused string }{
		{"app", long[:251], ""},
		{"app", long[:252], "--mongodb-collection"},
		{"app", strings.Repeat("ö", 126), "252 bytes"},
		{long[:63], long[:191], ""},
		{long[:63], long[:192], "at most 191"},
		{long[:64], "", "--mongodb-database"},
		{"a.b", "", "--mongodb-database"},
		{"a b", "", "--mongodb-database"},
		{"a$b", "", "--mongodb-database"},
		{"a\x00", "", "--mongodb-database"},
		{"local", "", "MongoDB's own"},
		{"admin", "", "MongoDB's own"},
		{"config", "", "MongoDB's own"},
		{"", "a.b c/d", ""},
		{"", "a$b", "--mongodb-collection"},
		{"", "a\x00b", "--mongodb-collection"},
		{"", "system.jobs", "--mongodb-collection"},
		{"", ".jobs", "--mongodb-collection"},
	} {
		_, err := openedOn(t, mongostore.Options{URI: "mongodb://127.0.0.1:1", Database: c.database, Collection: c.collection})
		if c.refused != "" {
			wantRefused(t, c.database+"."+c.collection, err, c.refused)
		} else if err != nil {
			t.Errorf("%s.%s: %v", c.database, c.collection, err)
		}
	}
	f := startFake(t, nil)
	f.answer("createIndexes", failure(73, "InvalidNamespace", "must not exceed 235 bytes"))
	s, l := openFake(t, f)
	l.await(t, "--mongodb-collection")
	wantUnready(t, s, "does not take the name")
}

// nameServer answers for mongodb+srv once it is told to.
type nameServer struct {
	port atomic.Uint32 // of the database; 0: the name does not exist
}

// startNames makes every look-up of this process go to a name server of the test.
func startNames(t *testing.T) *nameServer {
	t.Helper()
	n := &nameServer{}
	addr := testenv.StartNames(t, n.answer)
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", addr)
	}}
	t.Cleanup(func() { net.DefaultResolver = before })
	return n
}

func (n *nameServer) answer(q dnsmessage.Question) []dnsmessage.ResourceBody {
	port := uint16(n.port.Load())
	switch name := q.Name.String(); {
	case port == 0:
		return nil
	case q.Type == dnsmessage.TypeSRV && name == "_mongodb._tcp.jobs.example.com.":
		return []dnsmessage.ResourceBody{&dnsmessage.SRVResource{Port: port, Target: dnsmessage.MustNewName("db.example.com.")}}
	case q.Type == dnsmessage.TypeA && name == "db.example.com.":
		return []dnsmessage.ResourceBody{&dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}
	}
	return []dnsmessage.ResourceBody{}
}

// TestNameOfSRV: a mongodb+srv name that cannot be looked up is waited for, as any other host is.
func TestNameOfSRV(t *testing.T) {
	f := startFake(t, nil)
	names := startNames(t)
	s, l := openLogged(t, mongostore.Options{URI: "mongodb+srv://jobs.example.com/?tls=false"})
	if line := l.await(t, "cannot be looked up"); strings.Contains(line, "level=ERROR") {
		t.Errorf("an error, at once: %s", line)
	}
	wantUnready(t, s, "cannot be looked up")
	if !strings.HasSuffix(s.String(), " on jobs.example.com") {
		t.Errorf("it is %s", s)
	}
	names.port.Store(uint32(f.listener.Addr().(*net.TCPAddr).Port))
	awaitReady(t, s)
	testenv.OK(t, s.Close())

	// One that never appears does not keep the store from closing.
	names.port.Store(0)
	_, l = openLogged(t, mongostore.Options{URI: "mongodb+srv://other.example.com/?srvServiceName=jobs"})
	l.await(t, "lookup _jobs._tcp.other.example.com")

	for _, uri := range []string{"mongodb+srv://a.example.com,b.example.com/", "mongodb+srv://a.example.com:27017/",
		"mongodb+srv://a.example.com/?directConnection=true", "mongodb+srv://", "mongodb+srv://a.example.com/?w=1"} {
		if name, err := openedOn(t, mongostore.Options{URI: uri}); err == nil {
			t.Errorf("%s is taken: %s", uri, name)
		}
	}
}

// TestShortPassword: a password is kept out of the log by not being put there. One that stands in other words as well, and
// is taken out of them, is told by the gaps.
func TestShortPassword(t *testing.T) {
	f := startFake(t, nil)
	f.answer("saslStart", failure(18, "AuthenticationFailed", "Authentication failed for e"))
	for _, uri := range []string{"mongodb://u:e@" + f.addr() + "/?directConnection=true", "mongodb://u:e@127.0.0.1:1/?serverSelectionTimeoutMS=100"} {
		s, l := openLogged(t, mongostore.Options{URI: uri})
		l.await(t, "not ready")
		err := s.Check(t.Context())
		wantUnavailable(t, err)
		if said := l.whole() + err.Error(); strings.Contains(said, "REDACTED") || !strings.Contains(said, "the database") && !strings.Contains(said, "refused") {
			t.Errorf("the log is garbled:\n%s", said)
		} else if strings.Contains(said, "failed for e") {
			t.Errorf("the server's words are repeated:\n%s", said)
		}
	}
}

// TestQuietStart: a healthy start has nothing to complain of.
func TestQuietStart(t *testing.T) {
	s, l := openLogged(t, mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t)})
	awaitReady(t, s)
	if said := l.whole(); strings.Contains(said, "level=ERROR") || strings.Contains(said, "not ready") {
		t.Errorf("complained at the start:\n%s", said)
	}
}

// TestSlowStart: a database that is away for a moment is worth a warning, and an error when it stays away.
func TestSlowStart(t *testing.T) {
	s, l := openLogged(t, mongostore.Options{URI: "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"})
	if line := l.await(t, "store not ready"); !strings.Contains(line, "level=WARN") {
		t.Errorf("said at once: %s", line)
	}
	began := time.Now()
	if line := l.await(t, "level=ERROR"); !strings.Contains(line, "connection refused") || time.Since(began) < 5*time.Second {
		t.Errorf("after %v: %s", time.Since(began), line)
	}
	wantUnready(t, s, "connection refused")
}
