package failuretest

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// The disasters of docs/operations.md, walked through by its commands. What the operator sees then stands there, word for word.

// jobonce runs a command, and returns its exit code and all that it wrote.
func jobonce(args ...string) (code int, said string) {
	var out bytes.Buffer
	code = cli.Main(args, strings.NewReader(""), &out, &out)
	return code, out.String()
}

// wantSaid runs a command that must say something, and fail unless code is 0.
func wantSaid(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	if got, said := jobonce(args...); got != code || !strings.Contains(said, text) {
		t.Errorf("%v: exit code %d, %q; want %d, %q", args, got, said, code, text)
	}
}

// delivered is what a delivery of the job is answered.
func delivered(t *testing.T, s *testenv.Service, id, want string) {
	t.Helper()
	wantSaid(t, 0, want+" ", "record", "--server", s.Direct, "--job-id", id)
}

// told waits for a text in what the log has had since a moment, and wants it in the documents, where an operator looks for it.
func told(t *testing.T, log func() string, text string) {
	t.Helper()
	documented(t, text)
	for end := time.Now().Add(patience); !strings.Contains(log(), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody says %q in\n%s", text, log())
		}
	}
}

// fromNow is the log from here on.
func fromNow(s *testenv.Service) func() string {
	before := len(s.Log())
	return func() string { return s.Log()[before:] }
}

// answered waits until a delivery is answered so.
func answered(t *testing.T, s *testenv.Service, id, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		// One request: a try whose outcome is unknown may have been recorded.
		if _, said := jobonce("record", "--server", s.Direct, "--job-id", id, "--request-id", "answered"); strings.HasPrefix(said, want+" ") {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%s is not answered %s, but %s", id, want, said)
		}
	}
}

func documented(t *testing.T, text string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	must(t, err)
	if !strings.Contains(string(page), "`"+text+"`") {
		t.Errorf("docs/operations.md does not have %q", text)
	}
}

// TestDisasterFileLost: the embedded file goes while it is served. What was backed up is there again, and what came later is not.
func TestDisasterFileLost(t *testing.T) {
	dir := t.TempDir()
	data, saved, restored := filepath.Join(dir, "data"), filepath.Join(dir, "saved.db"), filepath.Join(dir, "restored")
	s := startServe(t, nil, "--data-dir", data)
	delivered(t, s, "before", "FIRST")
	wantSaid(t, 0, "saved.db: backup of ", "backup", "--data-dir", data, saved)
	delivered(t, s, "after", "FIRST")
	must(t, os.RemoveAll(data))
	told(t, s.Log, "embedded store: out of service until the process is restarted")
	wantSaid(t, 6, "STORE_UNAVAILABLE", "record", "--server", s.Direct, "--job-id", "before")
	must(t, s.Kill())

	must(t, os.Mkdir(restored, 0o700))
	content, err := os.ReadFile(saved)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(restored, "jobonce.db"), content, 0o600))
	wantSaid(t, 0, "1 jobs, all in order", "check", "--data-dir", restored)
	s = startServe(t, nil, "--data-dir", restored)
	delivered(t, s, "before", "DUPLICATE")
	delivered(t, s, "after", "FIRST")
}

// database is a database of a test, and a client of it.
type database struct {
	*mongo.Database
	uri, name string
}

func newDatabase(t *testing.T) database {
	t.Helper()
	uri, name := testenv.MongoURI(t), testenv.Database(t)
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	must(t, err)
	t.Cleanup(func() { testenv.OK(t, c.Disconnect(context.Background())) })
	return database{c.Database(name), uri, name}
}

func (d database) serve(t *testing.T, args ...string) *testenv.Service {
	t.Helper()
	return startServe(t, []string{"MONGODB_URI=" + d.uri}, append([]string{"--mongodb-database", d.name}, args...)...)
}

// TestDisasterDatabaseLost: the collection is lost and comes from a backup, without its indexes.
func TestDisasterDatabaseLost(t *testing.T) {
	d := newDatabase(t)
	s := d.serve(t)
	jobs := d.Collection("sume_jobs")
	delivered(t, s, "before", "FIRST")
	cursor, err := jobs.Find(t.Context(), bson.D{})
	must(t, err)
	var backup []bson.Raw
	must(t, cursor.All(t.Context(), &backup))
	delivered(t, s, "after", "FIRST")
	must(t, s.Stop())
	must(t, d.Drop(t.Context()))

	_, err = jobs.InsertMany(t.Context(), backup)
	must(t, err)
	s = d.serve(t)
	if strings.Contains(s.Log(), "the collection was not there") {
		t.Error("a collection that was restored is told as new")
	}
	delivered(t, s, "before", "DUPLICATE")
	delivered(t, s, "after", "FIRST")
	delivered(t, s, "after", "DUPLICATE")
}

// TestDisasterWrongDatabase: a database that is named wrongly knows no job, and the log says so.
func TestDisasterWrongDatabase(t *testing.T) {
	d := newDatabase(t)
	s := d.serve(t)
	told(t, s.Log, "the collection was not there, and was made")
	delivered(t, s, "a", "FIRST")
	must(t, s.Stop())
	s = d.serve(t)
	if strings.Contains(s.Log(), "the collection was not there") {
		t.Error("a collection that was there is told as new")
	}
	delivered(t, s, "a", "DUPLICATE")
	d.name = testenv.Database(t)
	s = d.serve(t)
	told(t, s.Log, "the collection was not there, and was made")
	delivered(t, s, "a", "FIRST")
}

// TestDisasterIndexDropped: the unique index is dropped while the service runs. At the next look, within a minute, it says so, and
// makes it anew.
func TestDisasterIndexDropped(t *testing.T) {
	if !testenv.Long() {
		t.Skip("it takes a minute: JOBONCE_TEST_LONG")
	}
	d := newDatabase(t)
	s := d.serve(t)
	delivered(t, s, "a", "FIRST")
	must(t, d.Collection("sume_jobs").Indexes().DropAll(t.Context()))
	told(t, s.Log, "store not ready any more: what keeps a delivery from being FIRST twice is gone")
	answered(t, s, "a", "DUPLICATE")
}

// TestDisasterDatabaseAway: the database cannot be reached, and comes back.
func TestDisasterDatabaseAway(t *testing.T) {
	d := newDatabase(t)
	p := wireproxy.Start(t, d.uri)
	d.uri = p.URI()
	s := d.serve(t)
	delivered(t, s, "a", "FIRST")
	log := fromNow(s)
	p.Down()
	wantSaid(t, 6, "STORE_UNAVAILABLE", "record", "--server", s.Direct, "--job-id", "b")
	told(t, log, "not serving: the store is not ready")
	p.Up()
	answered(t, s, "b", "FIRST")
	told(t, log, "serving: the store is ready")
	delivered(t, s, "a", "DUPLICATE")
}

// TestDisasterTwoOnOneFile: a second service on the directory of another one is refused, and harms nothing.
func TestDisasterTwoOnOneFile(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, nil, "--data-dir", dir)
	documented(t, "data directory is in use")
	wantSaid(t, 1, "data directory is in use: another process serves "+dir, "serve", "--listen", "127.0.0.1:0", "--data-dir", dir)
	delivered(t, s, "a", "FIRST")
}

// TestDisasterDowngrade: an older version refuses the file of a newer one, and leaves it as it is.
func TestDisasterDowngrade(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, nil, "--data-dir", dir)
	delivered(t, s, "a", "FIRST")
	must(t, s.Stop())
	schema := func(n string) {
		db, err := sql.Open("sqlite", filepath.Join(dir, "jobonce.db"))
		must(t, err)
		_, err = db.ExecContext(t.Context(), "PRAGMA user_version = "+n)
		must(t, err)
		must(t, db.Close())
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "jobonce.db"))
	must(t, err)
	var now string
	must(t, db.QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&now))
	must(t, db.Close())
	schema("99")
	documented(t, "written by a newer JobOnce")
	for _, command := range []string{"serve --listen 127.0.0.1:0 --data-dir ", "check --data-dir "} {
		wantSaid(t, 1, "written by a newer JobOnce (schema 99, ", strings.Fields(command+dir)...)
	}
	schema(now)
	s = startServe(t, nil, "--data-dir", dir)
	delivered(t, s, "a", "DUPLICATE")
}

// TestDisasterCertificateExpires: the certificate runs out while the service runs. A new one in its place ends that.
func TestDisasterCertificateExpires(t *testing.T) {
	dir, ca := t.TempDir(), testenv.NewCA(t, "ca")
	ends := time.Now().Add(3 * time.Second)
	write := func(p testenv.Pair) (cert, key string) {
		return testenv.WriteFile(t, dir, "tls.crt", p.Cert), testenv.WriteFile(t, dir, "tls.key", p.Key)
	}
	cert, key := write(ca.IssueUntil(ends))
	authority := testenv.WriteFile(t, dir, "ca.crt", ca.PEM)
	s := startServe(t, nil, "--data-dir", filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key)
	told(t, s.Log, "the certificate has expired, and clients refuse it")
	record := []string{"record", "--server", s.Direct, "--ca-cert", authority, "--job-id", "a"}
	wantSaid(t, 6, "certificate has expired", record...)
	write(ca.Issue())
	told(t, s.Log, "the TLS files have changed and are in force")
	wantSaid(t, 0, "FIRST ", record...)
}

// TestDisasterTokensEmptied: the auth file of a running service, and then a caller's token file, lose their contents.
func TestDisasterTokensEmptied(t *testing.T) {
	dir := t.TempDir()
	token, sum := auth.NewToken()
	callers := testenv.WriteFile(t, dir, "auth.yaml", []byte("callers:\n- {name: shop, token_sha256: "+sum+", allow: [record]}\n...\n"))
	file := testenv.WriteFile(t, dir, "token", []byte(token))
	s := startServe(t, nil, "--data-dir", filepath.Join(dir, "data"), "--auth-file", callers)
	testenv.WriteFile(t, dir, "auth.yaml", nil)
	told(t, s.Log, "the auth file has changed and cannot be used; the callers stay as they were")
	record := []string{"record", "--server", s.Direct, "--token-file", file, "--job-id", "a"}
	wantSaid(t, 0, "FIRST ", record...)
	wantSaid(t, 1, "it lacks its closing line `...`", "serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "other"), "--auth-file", callers)
	testenv.WriteFile(t, dir, "token", nil)
	wantSaid(t, 1, "--token-file: "+file+" is empty", record...)
}
