// Package examples_test runs the example clients against a service, as docs/clients.md prints them.
package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{
		"jobonce": func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
	}))
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// serve runs "jobonce serve" in a process of its own and returns its address once it listens, ready or not.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	p, err := testenv.Program{Role: "jobonce", Args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)}.Start()
	testenv.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if match := listening.FindStringSubmatch(p.Log.String()); match != nil {
			return match[1]
		}
	}
	t.Fatalf("serve does not listen: %s", &p.Log)
	return ""
}

// client is a running driver of testdata, which makes the calls that it is told to with one of the examples.
type client struct {
	t      *testing.T
	stdin  io.Writer
	stdout *json.Decoder
	stderr bytes.Buffer
}

// answer is what became of a call.
type answer struct {
	Disposition string  `json:"disposition"`
	StartWork   bool    `json:"startWork"`
	Deliveries  int64   `json:"deliveries"`
	LeaseToken  string  `json:"leaseToken"`
	Error       failure `json:"error"`
}

type failure struct {
	Code, Reason, Field string
	RetrySeconds        float64
}

// languages start the client of each language against a service.
var languages = map[string]func(t *testing.T, address string) *exec.Cmd{"node": nodeClient, "python": pythonClient}

func nodeClient(t *testing.T, address string) *exec.Cmd {
	testenv.Need(t, "node", "npm")
	packages := testenv.Cached(t, "example-node", []string{"node/package.json", "node/package-lock.json"}, func(dir string) error {
		copyFiles(t, dir, "node/package.json", "node/package-lock.json")
		return testenv.Run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	dir := t.TempDir()
	copyFiles(t, dir, "node/package.json", "node/client.mjs", "testdata/drive.mjs")
	testenv.Must(t, os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")))
	return exec.Command("node", filepath.Join(dir, "drive.mjs"), address, "../proto")
}

func pythonClient(t *testing.T, address string) *exec.Cmd {
	testenv.Need(t, "python3")
	version, err := exec.Command("python3", "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))").Output()
	testenv.Must(t, err)
	protos, err := filepath.Glob("../proto/jobonce/v1/*.proto")
	if err != nil || len(protos) == 0 {
		t.Fatalf("there are no protos: %v", err)
	}
	name := "example-python-" + strings.TrimSpace(string(version))
	packages := testenv.Cached(t, name, append(protos, "python/requirements.txt"), func(dir string) error {
		copyFiles(t, dir, "python/requirements.txt")
		for _, args := range [][]string{
			{"python3", "-m", "venv", "."},
			{"bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", "requirements.txt"},
		} {
			if err := testenv.Run(t, dir, args[0], args[1:]...); err != nil {
				return err
			}
		}
		return testenv.Run(t, ".", filepath.Join(dir, "bin/python"), slices.Concat([]string{"-m", "grpc_tools.protoc", "-I", "../proto",
			"--python_out=" + dir, "--grpc_python_out=" + dir}, protos)...)
	})
	dir := t.TempDir()
	copyFiles(t, dir, "python/client.py", "testdata/drive.py")
	cmd := exec.Command(filepath.Join(packages, "bin/python"), filepath.Join(dir, "drive.py"), address)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages)
	return cmd
}

func copyFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), content, 0o600)
		}
		testenv.Must(t, err)
	}
}

// start starts the client, which ends with the test.
func start(t *testing.T, cmd *exec.Cmd) *client {
	t.Helper()
	c := &client{t: t}
	stdin, err := cmd.StdinPipe()
	testenv.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	c.stdin, c.stdout, cmd.Stderr = stdin, json.NewDecoder(stdout), &c.stderr
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // It ends with its input.
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &c.stderr)
		}
	})
	return c
}

// does has the client do something, and returns what came of it.
func (c *client) does(op string, args map[string]any) answer {
	c.t.Helper()
	args["op"] = op
	line, err := json.Marshal(args)
	testenv.Must(c.t, err)
	if _, err := c.stdin.Write(append(line, '\n')); err != nil {
		c.t.Fatalf("%v\n%s", err, &c.stderr)
	}
	var a answer
	if err := c.stdout.Decode(&a); err != nil {
		c.t.Fatalf("%v\n%s", err, &c.stderr)
	}
	return a
}

// record has the client record a delivery; args are as the drivers take them.
func (c *client) record(body string, args map[string]any) answer {
	c.t.Helper()
	args["body"], args["patience"] = []byte(body), 20
	return c.does("record", args)
}

func eachLanguage(t *testing.T, test func(t *testing.T, start func(address string, args ...string) *client)) {
	for name, command := range languages {
		t.Run(name, func(t *testing.T) {
			test(t, func(address string, args ...string) *client {
				cmd := command(t, address)
				cmd.Args = append(cmd.Args, args...)
				return start(t, cmd)
			})
		})
	}
}

// TestDeliveries records to either store, with requests as they are and compressed.
func TestDeliveries(t *testing.T) {
	stores := map[string]func(t *testing.T) []string{
		"embedded": func(t *testing.T) []string { return []string{"--data-dir", t.TempDir()} },
		"MongoDB": func(t *testing.T) []string {
			return []string{"--mongodb-uri", testenv.MongoURI(t), "--mongodb-database", testenv.Database(t)}
		},
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			address := serve(t, store(t)...)
			eachLanguage(t, func(t *testing.T, start func(string, ...string) *client) {
				for _, compression := range []string{"none", "gzip"} {
					recordsOnce(start(address, compression), t.Name()+compression)
				}
			})
		})
	}
}

// recordsOnce has the client record jobs whose ids begin with prefix, each twice.
func recordsOnce(c *client, prefix string) {
	c.t.Helper()
	for _, body := range []string{`{"job_id":"` + prefix + `text","event":"e"}`, "\xef\xbb\xbf{\"job_id\":\"" + prefix + "bom\"}", "no text: \xff\x00"} {
		args := map[string]any{}
		if strings.HasPrefix(body, "no text") {
			args["jobId"] = prefix + "bytes"
		}
		if a := c.record(body, args); a.Disposition != "DISPOSITION_FIRST" || !a.StartWork || a.Deliveries != 1 {
			c.t.Errorf("%q: %+v", body, a)
		}
		if a := c.record(body, args); a.Disposition != "DISPOSITION_DUPLICATE" || a.StartWork || a.Deliveries != 2 {
			c.t.Errorf("%q again: %+v", body, a)
		}
	}
	want := failure{Code: "INVALID_ARGUMENT", Reason: "INVALID_FIELD", Field: "job_id"}
	if a := c.record(`{}`, map[string]any{}); a.Error != want {
		c.t.Errorf("got %+v, want %+v", a.Error, want)
	}
}

// TestLeases repeats what ends a lease: whoever did not hear the answer may ask again.
func TestLeases(t *testing.T) {
	eachLanguage(t, func(t *testing.T, start func(string, ...string) *client) {
		c := start(serve(t, "--data-dir", t.TempDir()))
		for _, end := range []string{"complete", "release"} {
			a := c.record("", map[string]any{"jobId": end, "leased": true})
			if a.LeaseToken == "" {
				t.Fatalf("got %+v", a)
			}
			lease := map[string]any{"jobId": end, "leaseToken": a.LeaseToken}
			for _, op := range []string{"renew", "renew", end, end} {
				if a := c.does(op, lease); a.Error != (failure{}) {
					t.Errorf("%s: %+v", op, a)
				}
			}
			if a := c.does("renew", lease); a.Error != (failure{Code: "ABORTED", Reason: "LEASE_LOST"}) {
				t.Errorf("renew after %s: %+v", end, a)
			}
		}
	})
}

// TestStoreAway has the service say when to try again.
func TestStoreAway(t *testing.T) {
	eachLanguage(t, func(t *testing.T, start func(string, ...string) *client) {
		c := start(serve(t, "--mongodb-uri", "mongodb://127.0.0.1:1/"))
		a := c.does("record", map[string]any{"jobId": "j", "body": []byte{}, "patience": 2})
		if a.Error != (failure{Code: "UNAVAILABLE", Reason: "STORE_UNAVAILABLE", RetrySeconds: 0.5}) {
			t.Errorf("got %+v", a.Error)
		}
	})
}

// losing stands before a service. It loses the answers to as many deliveries as it has codes, and fails each with a code
// and nothing else, as a proxy does or a connection.
type losing struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	behind joboncev1.IdempotencyServiceClient

	mu         sync.Mutex
	codes      []codes.Code
	requestIDs map[string]bool
}

func (l *losing) RecordDelivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	resp, err := l.behind.RecordDelivery(ctx, req)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requestIDs[req.GetRequestId()] = true
	if len(l.codes) > 0 {
		code := l.codes[0]
		l.codes = l.codes[1:]
		return nil, status.Error(code, "lost")
	}
	return resp, nil
}

// TestLostAnswers: an error without details says nothing about the call, and the same call again has the answer.
func TestLostAnswers(t *testing.T) {
	eachLanguage(t, func(t *testing.T, start func(string, ...string) *client) {
		conn, err := grpc.NewClient(serve(t, "--data-dir", t.TempDir()), grpc.WithTransportCredentials(insecure.NewCredentials()))
		testenv.Must(t, err)
		defer conn.Close()
		l := &losing{
			behind:     joboncev1.NewIdempotencyServiceClient(conn),
			codes:      []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled},
			requestIDs: make(map[string]bool),
		}
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Must(t, err)
		srv := grpc.NewServer()
		joboncev1.RegisterIdempotencyServiceServer(srv, l)
		go func() { _ = srv.Serve(lis) }()
		defer srv.Stop()

		c := start(lis.Addr().String())
		a := c.record("", map[string]any{"jobId": "j"})
		l.mu.Lock()
		if a.Disposition != "DISPOSITION_FIRST" || !a.StartWork || a.Deliveries != 4 || len(l.requestIDs) != 1 {
			t.Errorf("got %+v, by the request ids %v", a, l.requestIDs)
		}
		l.codes = []codes.Code{codes.Internal}
		l.mu.Unlock()
		if a := c.record("", map[string]any{"jobId": "k"}); a.Error != (failure{Code: "INTERNAL"}) {
			t.Errorf("got %+v", a)
		}
	})
}

// TestNobodyThere: a connection's own error has no details, and nobody waits for longer than asked.
func TestNobodyThere(t *testing.T) {
	eachLanguage(t, func(t *testing.T, start func(string, ...string) *client) {
		relay := testenv.StartRelay(t, "")
		c := start(relay.Addr())
		if a := c.does("record", map[string]any{"jobId": "j", "body": []byte{}, "patience": 0.5}); a.Error.Reason != "" || a.Error.Code != "UNAVAILABLE" && a.Error.Code != "DEADLINE_EXCEEDED" {
			t.Errorf("got %+v", a)
		}
		relay.To(serve(t, "--data-dir", t.TempDir()))
		if a := c.record("", map[string]any{"jobId": "j"}); a.Disposition != "DISPOSITION_FIRST" {
			t.Errorf("got %+v", a)
		}
	})
}

// TestDocs holds the code that docs/clients.md prints to that which is tested here.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/clients.md")
	testenv.Must(t, err)
	for tag, file := range map[string]string{"js": "node/client.mjs", "python": "python/client.py"} {
		code, err := os.ReadFile(file)
		testenv.Must(t, err)
		blocks := regexp.MustCompile("(?ms)^```"+tag+"\n(.*?)^```$").FindAllStringSubmatch(string(doc), -1)
		if len(blocks) == 0 {
			t.Errorf("docs/clients.md has no code from %s", file)
		}
		for _, block := range blocks {
			if !strings.Contains(string(code), block[1]) {
				t.Errorf("docs/clients.md has code that is not in %s:\n%s", file, block[1])
			}
		}
	}
}
