package ui

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// world is a service with its page.
type world struct {
	t    *testing.T
	page *Page
	// url is the page's, client follows no redirects.
	url    string
	client *http.Client
	// tokens are those of the callers, by name; file is the auth file, and log what service and page have logged.
	tokens map[string]string
	file   string
	log    *testenv.Tail
	conn   *grpc.ClientConn
}

// everybody are the callers of most tests.
var everybody = map[string]string{
	"admin": "allow: [admin, record, work, expect]", "reader": "allow: [read]", "bodies": "allow: [read_bodies]", "worker": "allow: [work, record]",
	"shop": "allow: [admin], job_id_prefix: 'shop:'", "expired": "allow: [admin], expires: 2020-01-01",
}

// setup is how a world is made.
type setup struct {
	Config
	// store is the service's; an embedded one where it is nil.
	store job.Store
	// change is done to the page before it serves. It may be nil.
	change func(*Page)
}

// eachStore runs a test over the embedded store, and over MongoDB.
func eachStore(t *testing.T, test func(t *testing.T, over func(*setup))) {
	t.Run("embedded", func(t *testing.T) { test(t, func(*setup) {}) })
	t.Run("MongoDB", func(t *testing.T) {
		uri := testenv.MongoURI(t)
		test(t, func(s *setup) {
			store, err := mongostore.Open(mongostore.Options{URI: uri, Database: testenv.Database(t), MaxAttempts: 10, Logger: testenv.Logger(t)})
			testenv.Must(t, err)
			s.store = store
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			select {
			case <-store.Ready():
			case <-ctx.Done():
				t.Errorf("not ready: %v", store.Check(t.Context()))
			}
		})
	})
}

// start starts a service with these callers, none for nil, and its page until the test ends.
func start(t *testing.T, callers map[string]string, changes ...func(*setup)) *world {
	t.Helper()
	w := &world{t: t, tokens: make(map[string]string), log: new(testenv.Tail), client: &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	logger := slog.New(slog.NewTextHandler(w.log, nil))
	s := setup{Config: Config{ShutdownTimeout: server.DefaultShutdownTimeout, Logger: logger}}
	ctx, stop := context.WithCancel(context.Background())
	running := make(chan error, 2)
	parts := 1
	if callers != nil {
		w.file = filepath.Join(t.TempDir(), "auth.yaml")
		for name := range callers {
			token, _ := auth.NewToken()
			w.tokens[name] = token
		}
		w.allow(callers)
		var err error
		s.Callers, err = auth.Open(auth.Config{File: w.file, Logger: logger})
		testenv.Must(t, err)
		parts++
		go func() { s.Callers.Run(ctx); running <- nil }()
	}
	for _, change := range changes {
		change(&s)
	}
	grpcListener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	if s.store == nil {
		s.store, err = sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{MaxAttempts: 10, Logger: testenv.Logger(t)})
		testenv.Must(t, err)
	}
	srv := embedded.Serve(t, grpcListener, server.Config{Logger: logger, Callers: s.Callers}, s.store)
	if s.Connect == nil {
		s.Connect = func(ctx context.Context) (net.Conn, error) { return srv.Connect(ctx, server.Peer{Addr: "page"}) }
	}
	w.page, err = New(s.Config)
	testenv.Must(t, err)
	if s.change != nil {
		s.change(w.page)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	w.url = "http://" + lis.Addr().String()
	if s.Certificates != nil {
		w.url = "https://" + lis.Addr().String()
		w.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	}
	go func() { running <- w.page.Run(ctx, lis) }()
	w.conn, err = grpc.NewClient(grpcListener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testenv.Must(t, err)
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		w.conn.Close()
		stop()
		for range parts {
			testenv.OK(t, <-running)
		}
	})
	return w
}

// allow writes the auth file, with what each caller may do. It is in force once the service has read it again.
func (w *world) allow(callers map[string]string) {
	w.t.Helper()
	text := "callers:\n"
	for name, rest := range callers {
		text += fmt.Sprintf("- {name: %s, token_sha256: %x, %s}\n", name, sha256.Sum256([]byte(w.tokens[name])), rest)
	}
	temp := w.file + ".new"
	testenv.Must(w.t, os.WriteFile(temp, []byte(text+"...\n"), 0o600))
	testenv.Must(w.t, os.Rename(temp, w.file))
}

// ctx makes calls as the caller, if there are callers.
func (w *world) ctx(caller string) context.Context {
	if token := w.tokens[caller]; token != "" {
		return metadata.AppendToOutgoingContext(w.t.Context(), "authorization", "Bearer "+token)
	}
	return w.t.Context()
}

// record records a job that is queued.
func (w *world) record(id, payload string, changes ...func(*joboncev1.RecordDeliveryRequest)) {
	w.t.Helper()
	req := &joboncev1.RecordDeliveryRequest{
		JobId: id, Event: "paid", Status: "OK", Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: payload}, OpaquePayload: true,
		WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED,
	}
	for _, change := range changes {
		change(req)
	}
	_, err := joboncev1.NewIdempotencyServiceClient(w.conn).RecordDelivery(w.ctx("admin"), req)
	testenv.Must(w.t, err)
}

// work has a worker claim a job, and completes it, or gives it up.
func (w *world) work(dead bool, problem string) {
	w.t.Helper()
	work := joboncev1.NewWorkServiceClient(w.conn)
	claimed, err := work.ClaimWork(w.ctx("admin"), &joboncev1.ClaimWorkRequest{MaxJobs: 1, LeaseDuration: durationpb.New(time.Minute)})
	testenv.Must(w.t, err)
	if len(claimed.GetJobs()) != 1 {
		w.t.Fatalf("claimed %v", claimed)
	}
	id, token := claimed.GetJobs()[0].GetJob().GetJobId(), claimed.GetJobs()[0].GetLease().GetToken()
	if dead {
		_, err = work.ReleaseWork(w.ctx("admin"), &joboncev1.ReleaseWorkRequest{JobId: id, LeaseToken: token, Dead: true, Error: problem})
	} else {
		_, err = work.CompleteWork(w.ctx("admin"), &joboncev1.CompleteWorkRequest{JobId: id, LeaseToken: token, Result: "done"})
	}
	testenv.Must(w.t, err)
}

// reply is what came back.
type reply struct {
	*http.Response
	text string
}

// has tells whether the reply has the text, as people see it.
func (r *reply) has(text string) bool { return strings.Contains(r.text, html.EscapeString(text)) }

// ask sends a request as the caller who has signed in; "" is nobody. A form makes it a POST. Headers are names and values in turn.
func (w *world) ask(caller, path string, form url.Values, headers ...string) *reply {
	w.t.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, body)
	testenv.Must(w.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token := w.tokens[caller]; token != "" {
		req.AddCookie(w.page.cookie(token))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := w.client.Do(req)
	testenv.Must(w.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testenv.Must(w.t, err)
	return &reply{resp, string(text)}
}

var handles = regexp.MustCompile(`name="job" value="([^"]*)"`)

// handles are the jobs that a form on the page names, as it names them.
func (r *reply) handles() (all []string) {
	for _, m := range handles.FindAllStringSubmatch(r.text, -1) {
		all = append(all, html.UnescapeString(m[1]))
	}
	return all
}
