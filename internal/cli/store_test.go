package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// choose is the store that the flags, the environment and the configuration file choose, and the error.
func choose(t *testing.T, dir, args, env, file string) (*storeConfig, error) {
	t.Helper()
	cfg, keys := newServeConfig()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.AddFlagSet(keys)
	path := flags.String(config.FileFlag, filepath.Join(dir, "jobonce.yaml"), "")
	testenv.Must(t, os.WriteFile(*path, []byte(file), 0o600))
	testenv.Must(t, flags.Parse(strings.Fields(args)))
	variables := make(map[string]string)
	for _, v := range strings.Fields(env) {
		name, value, _ := strings.Cut(v, "=")
		variables[name] = value
	}
	if err := config.Apply(flags, keys, "serve", func(name string) (value string, ok bool) {
		value, ok = variables[name]
		return value, ok
	}); err != nil {
		t.Fatal(err)
	}
	return &cfg.store, cfg.store.choose(flags)
}

func TestWhichStore(t *testing.T) {
	dir := t.TempDir()
	uriFile := filepath.Join(dir, "uri")
	testenv.Must(t, os.WriteFile(uriFile, []byte("mongodb://u:p@in-file\n"), 0o600))
	for _, tc := range []struct{ args, env, file, uri, dir string }{
		{dir: "./jobonce-data"},
		{args: "--data-dir d", dir: "d"},
		{args: "--data-dir d", env: "MONGODB_URI=mongodb://env", dir: "d"},
		{args: "--data-dir d", env: "JOBONCE_MONGODB_URI_FILE=" + uriFile, dir: "d"},
		{args: "--data-dir d", file: "serve: {mongodb-uri: mongodb://file}", dir: "d"},
		{env: "MONGODB_URI=mongodb://u:p@env", uri: "mongodb://u:p@env"},
		{env: "JOBONCE_MONGODB_URI=mongodb://env", uri: "mongodb://env"},
		{env: "JOBONCE_DATA_DIR=d", file: "serve: {mongodb-uri: mongodb://file}", dir: "d"},
		{env: "MONGODB_URI=mongodb://env", file: "serve: {data-dir: d}", uri: "mongodb://env"},
		{env: "MONGODB_URI=mongodb://env", file: "serve: {data-dir: d, mongodb-uri-file: f}", uri: "mongodb://env"},
		{args: "--mongodb-uri mongodb://flag", env: "JOBONCE_DATA_DIR=d MONGODB_URI=mongodb://u:p@env", uri: "mongodb://flag"},
		{args: "--mongodb-uri-file " + uriFile, env: "MONGODB_URI=mongodb://env", uri: "mongodb://u:p@in-file"},
		{args: "--mongodb-uri-file " + uriFile, env: "MONGODB_URI=mongodb://env JOBONCE_DATA_DIR=d", uri: "mongodb://u:p@in-file"},
		{env: "JOBONCE_MONGODB_URI_FILE=" + uriFile, uri: "mongodb://u:p@in-file"},
		{file: "serve: {mongodb-uri: 'mongodb://u:p@file'}", uri: "mongodb://u:p@file"},
		{file: "serve: {mongodb-uri-file: " + uriFile + "}", uri: "mongodb://u:p@in-file"},
		{args: "--mongodb-database x --mongodb-uri mongodb://flag", uri: "mongodb://flag"},
		// What is set for good may well be for another store.
		{env: "JOBONCE_MONGODB_DATABASE=x JOBONCE_PAYLOAD_DOCUMENT=false", dir: "./jobonce-data"},
	} {
		got, err := choose(t, dir, tc.args, tc.env, tc.file)
		if err != nil || got.mongo != (tc.uri != "") || got.mongo && got.uri != tc.uri || !got.mongo && got.dataDir != tc.dir {
			t.Errorf("%q %q %q: got %+v, %v", tc.args, tc.env, tc.file, *got, err)
		}
	}
}

func TestNoStore(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": " \n", "two": "mongodb://a\nmongodb://u:secret@b\n"} {
		testenv.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	for _, tc := range []struct {
		args, env, file, want string
		usage                 bool
	}{
		{args: "--data-dir d --mongodb-uri mongodb://a", usage: true,
			want: "--data-dir and --mongodb-uri both say where jobs are kept; leave one out"},
		{args: "--data-dir d --mongodb-uri-file f", usage: true, want: "--data-dir and --mongodb-uri-file both say"},
		{args: "--mongodb-uri mongodb://a --mongodb-uri-file f", usage: true, want: "--mongodb-uri and --mongodb-uri-file both say"},
		{env: "MONGODB_URI=mongodb://u:secret@a JOBONCE_DATA_DIR=d", usage: true, want: "JOBONCE_DATA_DIR and MONGODB_URI both say"},
		{file: "serve: {data-dir: d, mongodb-uri: 'mongodb://u:secret@a'}", usage: true, want: "serve.data-dir of HERE/jobonce.yaml and serve.mongodb-uri of"},
		{args: "--mongodb-uri mongodb://u:secret@a", usage: true, want: "--mongodb-uri holds a password, which others can read"},
		{args: "--mongodb-database x", usage: true, want: "--mongodb-database is for MongoDB, but jobs would be kept in ./jobonce-data"},
		{args: "--data-dir d --mongodb-collection x", usage: true, want: "--mongodb-collection is for MongoDB"},
		{args: "--payload-document=false", usage: true, want: "--payload-document is for MongoDB"},
		{args: "--allow-weak-write-concern", usage: true, want: "--allow-weak-write-concern is for MongoDB"},
		{args: "--mongodb-uri-file HERE/missing", want: "cannot read the MongoDB URI: open HERE/missing: no such file"},
		{args: "--mongodb-uri-file HERE/empty", want: "--mongodb-uri-file: HERE/empty is empty"},
		{env: "JOBONCE_MONGODB_URI_FILE=HERE/two", want: "JOBONCE_MONGODB_URI_FILE: HERE/two must hold one URI and nothing else"},
	} {
		_, err := choose(t, dir, strings.ReplaceAll(tc.args, "HERE", dir), strings.ReplaceAll(tc.env, "HERE", dir), tc.file)
		if err == nil {
			t.Errorf("%q %q %q: no error", tc.args, tc.env, tc.file)
			continue
		}
		got := strings.ReplaceAll(err.Error(), dir, "HERE")
		if !strings.HasPrefix(got, tc.want) || strings.Contains(got, "secret") || errors.As(err, new(*usageError)) != tc.usage {
			t.Errorf("%q %q %q: got %v\nwant %s", tc.args, tc.env, tc.file, err, tc.want)
		}
	}
}

func TestHoldsSecret(t *testing.T) {
	for uri, want := range map[string]bool{
		"mongodb://127.0.0.1:27017/?replicaSet=rs0":                      false,
		"mongodb://a:1,b:2/db":                                           false,
		"mongodb+srv://user@cluster.example/?authMechanism=MONGODB-X509": false,
		"mongodb://user:secret@a":                                        true,
		"mongodb://user:@a":                                              true,
		"mongodb://user:se/cr?et@a":                                      true,
		"mongodb://user:se@cret@a":                                       true,
		"user:secret@a":                                                  true,
		"mongodb://a/?tlsCertificateKeyFilePassword=secret":              true,
		"mongodb://a/?authMechanismProperties=AWS_SESSION_TOKEN:secret":  true,
	} {
		if got := holdsSecret(uri); got != want {
			t.Errorf("%s: got %t", uri, got)
		}
	}
}

// Batches answer each caller when its own outcome is known where the store can tell.
var _ job.EachRecorder = (*mongostore.Store)(nil)

// TestStoresAreNotWrapped: what serve puts batches in front of is the store itself, so that it finds whatever the store can
// do beyond a job.Store.
func TestStoresAreNotWrapped(t *testing.T) {
	mongo := &storeConfig{mongo: true, uri: "mongodb://127.0.0.1:1", database: "d", collection: "c"}
	embedded := &storeConfig{dataDir: t.TempDir()}
	for _, c := range []*storeConfig{mongo, embedded} {
		opened, err := c.open(t.Context(), nil, nil, testenv.Logger(t))
		testenv.Must(t, err)
		defer opened.Store.Close()
		var own bool
		if c.mongo {
			_, own = opened.Store.(*mongostore.Store)
		} else {
			_, own = opened.Store.(*sqlitestore.Store)
		}
		if !own {
			t.Errorf("the store is a %T", opened.Store)
		}
	}
}

// TestCheckOfAnOlderFile: check says what serve would do with it, and does not do it.
func TestCheckOfAnOlderFile(t *testing.T) {
	data, err := os.ReadFile("../sqlitestore/testdata/v1/closed/jobonce.db")
	testenv.Must(t, err)
	file := filepath.Join(t.TempDir(), "old.db")
	testenv.Must(t, os.WriteFile(file, data, 0o600))
	want := file + ": 28 jobs, all in order; an older version of JobOnce wrote it, and serve upgrades it\n"
	for range 2 {
		var stdout, stderr bytes.Buffer
		if code := Main([]string{"check", file}, nil, &stdout, &stderr); code != exitOK || stdout.String() != want || stderr.Len() > 0 {
			t.Errorf("exit code %d, %q, %q; want %q", code, &stdout, &stderr, want)
		}
	}
}

// TestWatchWork: what a person is to hear of is an ERROR line that names the job, and nothing else is.
func TestWatchWork(t *testing.T) {
	var log bytes.Buffer
	watch := watchWork(nil, slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		work job.Work
		want string
	}{
		{job.Work{State: job.StateDead, Attempts: 3, Error: "secret"}, "a job died"},
		{job.Work{State: job.StateLeased, Lapses: 4}, ""},
		{job.Work{State: job.StateLeased, Lapses: 5}, "a job is suspect"},
		{job.Work{State: job.StateLeased, Lapses: 6}, ""},
	} {
		log.Reset()
		watch("job_1", c.work)
		line := log.String()
		said := strings.Contains(line, "level=ERROR") && strings.Contains(line, "job_id=job_1") && strings.Contains(line, c.want)
		if c.want == "" && line != "" || c.want != "" && !said || strings.Contains(line, "secret") {
			t.Errorf("%+v: %q, want %q", c.work, line, c.want)
		}
	}
}
