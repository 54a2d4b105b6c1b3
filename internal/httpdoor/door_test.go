package httpdoor

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

type object = map[string]any

// TestIDs: ids hold any character, and stand where nothing reads them as a path.
func TestIDs(t *testing.T) {
	w := start(t, Config{})
	for _, id := range []string{"a/b", "100%", "%2F%00", "..", "../../etc", "a:record", ":record", "?x=1&y", "#", " ", "é\u2028", `"{}`, "a+b", strings.Repeat("x", 255)} {
		if got := w.posts("/v1/jobs:record", object{"job_id": id}); got["start_work"] != true || got["disposition"] != "DISPOSITION_FIRST" {
			t.Errorf("%q: %v", id, got)
		}
		if got := w.posts("/v1/jobs:record", object{"jobId": id}); got["start_work"] != false || got["deliveries"] != "2" {
			t.Errorf("%q again: %v", id, got)
		}
		got := w.answer(w.does(http.MethodGet, "/v1/jobs?"+url.Values{"job_id": {id}}.Encode(), nil))
		if job := got["job"].(object); job["job_id"] != id || job["deliveries"] != "2" {
			t.Errorf("%q: %v", id, got)
		}
	}
}

// TestWork goes through a job's life.
func TestWork(t *testing.T) {
	w := start(t, Config{})
	batch := w.posts("/v1/jobs:batchRecord", object{"deliveries": []object{{"job_id": "j", "work_mode": "WORK_MODE_QUEUED", "payload_bytes": "AP8="}, {}}})
	results := batch["results"].([]any)
	if results[0].(object)["response"] == nil || results[1].(object)["error"].(object)["field"] != "job_id" {
		t.Fatalf("got %v", batch)
	}
	claimed := w.posts("/v1/work:claim", object{"lease_duration": "60s"})["jobs"].([]any)[0].(object)
	if claimed["job"].(object)["payload_bytes"] != "AP8=" {
		t.Errorf("got %v", claimed)
	}
	lease := object{"job_id": "j", "lease_token": claimed["lease"].(object)["token"], "lease_duration": "90s"}
	if renewed := w.posts("/v1/work:renew", lease); renewed["lease"].(object)["token"] != lease["lease_token"] {
		t.Errorf("got %v", renewed)
	}
	changes := w.posts("/v1/work:batchChange", object{"changes": []object{{"release": object{"job_id": "j", "lease_token": lease["lease_token"]}}}})
	if result := changes["results"].([]any)[0].(object); result["error"] != nil {
		t.Errorf("got %v", changes)
	}
	lease["lease_token"] = w.posts("/v1/work:claim", object{"lease_duration": "60s"})["jobs"].([]any)[0].(object)["lease"].(object)["token"]
	delete(lease, "lease_duration")
	lease["result"] = "done"
	w.posts("/v1/work:complete", lease)
	if got := w.posts("/v1/jobs:record", object{"job_id": "j"}); got["disposition"] != "DISPOSITION_COMPLETED" || got["result"] != "done" {
		t.Errorf("got %v", got)
	}
	delete(lease, "result")
	if r := w.does(http.MethodPost, "/v1/work:release", fmt.Appendf(nil, `{"job_id":"j","lease_token":"X%v"}`, lease["lease_token"])); r.StatusCode != http.StatusConflict || r.reason() != "LEASE_LOST" {
		t.Errorf("%s: %s", r.Status, r.text)
	}
	if got := w.posts("/v1/expectations:create", object{"job_id": "e", "status_url": "https://example.org/e", "overdue_after": "0s"}); got["recorded"] != false {
		t.Errorf("got %v", got)
	}
	w.posts("/v1/expectations:cancel", object{"job_id": "e"})
}

// TestBadRequests: what is wrong with a request is said, with a reason, and the right status.
func TestBadRequests(t *testing.T) {
	token, callers := callers(t, "allow: [record, work, read]")
	w := start(t, Config{Callers: callers, Hosts: []string{"jobs.example.org"}})
	record, big := "/v1/jobs:record", strings.Repeat("x", 5<<20)
	for _, tc := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		reason, says             string
	}{
		{"good", "POST", record, `{"job_id":"j"}`, nil, 200, "", ""},
		{"good by another name", "POST", record, `{"job_id":"j"}`, []string{"Host", "Jobs.Example.org:80"}, 200, "", ""},
		{"good by localhost", "POST", record, `{"job_id":"j"}`, []string{"Host", "localhost:8080"}, 200, "", ""},
		{"good by an address", "POST", record, `{"job_id":"j"}`, []string{"Host", "[::1]:8080"}, 200, "", ""},
		{"good of the same origin", "POST", record, `{"job_id":"j"}`, []string{"Sec-Fetch-Site", "same-origin"}, 200, "", ""},
		{"good, UTF-8", "POST", record, `{"job_id":"j"}`, []string{"Content-Type", "application/json; charset=UTF-8"}, 200, "", ""},
		{"good, UTF-8 as many write it", "POST", record, `{"job_id":"j"}`, []string{"Content-Type", "application/json;charset=utf8"}, 200, "", ""},
		{"good, in capitals", "POST", record, zipped(`{"job_id":"j"}`), []string{"Content-Encoding", "GZIP"}, 200, "", ""},
		{"good, escaped path", "POST", "/v1/jobs%3Arecord", `{"job_id":"j"}`, nil, 200, "", ""},
		{"10 MB of a payload", "POST", record, `{"job_id":"j","payload":"` + big + big + `"}`, nil, 413, "PAYLOAD_TOO_LARGE", "as a message"},
		{"5 MB of a payload", "POST", record, `{"job_id":"j","payload":"` + big + `"}`, nil, 413, "PAYLOAD_TOO_LARGE", "payload"},
		{"17 MB", "POST", record, `{"job_id":"j","payload":"` + strings.Repeat("x", 17<<20) + `"}`, nil, 413, "PAYLOAD_TOO_LARGE", "larger than 16777216 bytes"},
		{"17 MB of gzip", "POST", record, zipped(strings.Repeat(" ", 17<<20)), []string{"Content-Encoding", "gzip"}, 413, "PAYLOAD_TOO_LARGE", "larger than"},
		{"no content type", "POST", record, `{}`, []string{"Content-Type", ""}, 415, "INVALID_FIELD", "Content-Type: application/json"},
		{"a form", "POST", record, `job_id=j`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "INVALID_FIELD", "Content-Type"},
		{"text", "POST", record, `{}`, []string{"Content-Type", "text/plain"}, 415, "INVALID_FIELD", "Content-Type"},
		{"UTF-16", "POST", record, `{}`, []string{"Content-Type", "application/json; charset=utf-16"}, 415, "INVALID_FIELD", "Content-Type"},
		{"brotli", "POST", record, `{}`, []string{"Content-Encoding", "br"}, 415, "INVALID_FIELD", `"br"`},
		{"gzip twice", "POST", record, `{}`, []string{"Content-Encoding", "gzip, gzip"}, 415, "INVALID_FIELD", `"gzip, gzip"`},
		{"no gzip", "POST", record, `{}`, []string{"Content-Encoding", "gzip"}, 400, "INVALID_FIELD", "Content-Encoding"},
		{"cut gzip", "POST", record, zipped(`{"job_id":"j"}`)[:20], []string{"Content-Encoding", "gzip"}, 400, "INVALID_FIELD", "Content-Encoding"},
		{"no body", "POST", record, ``, nil, 400, "INVALID_FIELD", "the body is empty"},
		{"no JSON", "POST", record, `job`, nil, 400, "INVALID_FIELD", "(line 1:1)"},
		{"cut JSON", "POST", record, `{"job_id":"j"`, nil, 400, "INVALID_FIELD", "unexpected"},
		{"two objects", "POST", record, `{"job_id":"j"} {"job_id":"k"}`, nil, 400, "INVALID_FIELD", "(line 1:16)"},
		{"a list", "POST", record, `[]`, nil, 400, "INVALID_FIELD", "unexpected token ["},
		{"unknown field", "POST", record, `{"job_id":"j","jobid":1}`, nil, 400, "INVALID_FIELD", "not known here: jobid"},
		{"long unknown field", "POST", record, `{"` + big[:100000] + `":1}`, nil, 400, "INVALID_FIELD", "unknown field"},
		{"field twice", "POST", record, `{"job_id":"j","jobId":"k"}`, nil, 400, "INVALID_FIELD", "duplicate field"},
		{"wrong type", "POST", record, `{"job_id":7}`, nil, 400, "INVALID_FIELD", "job_id must be a string"},
		{"unknown enum", "POST", record, `{"job_id":"j","work_mode":"NONE"}`, nil, 400, "INVALID_FIELD", "work_mode must be one of"},
		{"not UTF-8", "POST", record, "{\"job_id\":\"\xff\"}", nil, 400, "INVALID_FIELD", "UTF-8"},
		{"half a surrogate", "POST", record, `{"job_id":"\ud800 and more"}`, nil, 400, "INVALID_FIELD", "job_id must be a string of valid UTF-8"},
		{"byte order mark", "POST", record, "\ufeff{}", nil, 400, "INVALID_FIELD", "(line 1:1)"},
		{"null", "POST", record, `null`, nil, 400, "INVALID_FIELD", "null"},
		{"null in a list", "POST", "/v1/jobs:batchRecord", `{"deliveries":[null]}`, nil, 400, "INVALID_FIELD", "deliveries[0] must be an object"},
		{"unknown number of an enum", "POST", record, `{"job_id":"j","work_mode":99}`, nil, 400, "INVALID_FIELD", "work_mode"},
		{"not a number", "POST", "/v1/work:claim", `{"max_jobs":NaN}`, nil, 400, "INVALID_FIELD", "NaN"},
		{"huge exponent", "POST", "/v1/work:claim", `{"max_jobs":1e999999999}`, nil, 400, "INVALID_FIELD", "max_jobs must be a whole number"},
		{"endless duration", "POST", "/v1/work:claim", `{"lease_duration":"99999999999999999s"}`, nil, 400, "INVALID_FIELD", "lease_duration must be seconds"},
		{"NUL", "POST", record, `{"job_id":"\u0000"}`, nil, 400, "INVALID_FIELD", "job_id"},
		{"deep JSON", "POST", record, strings.Repeat(`{"a":`, 100000), nil, 400, "INVALID_FIELD", "more than 16 levels deep"},
		{"deep lists", "POST", record, `{"job_id":` + strings.Repeat(`[`, 100000), nil, 400, "INVALID_FIELD", "more than 16 levels deep"},
		{"a million values", "POST", "/v1/jobs:batchRecord", `{"deliveries":[` + strings.Repeat(`{},`, 1000000) + `{}]}`, nil, 400, "INVALID_FIELD", "more than 16384 values"},
		{"257 deliveries", "POST", "/v1/jobs:batchRecord", `{"deliveries":[` + strings.Repeat(`{},`, 256) + `{}]}`, nil, 400, "INVALID_FIELD", "deliveries has 257 items"},
		{"brackets in text", "POST", record, `{"job_id":"[[[[[[[[[[[[[[[[[\"[[[[{{{"}`, nil, 200, "", ""},
		{"bad field", "POST", record, `{"job_id":""}`, nil, 400, "INVALID_FIELD", "job_id"},
		{"query of a POST", "POST", record + "?job_id=j", `{"job_id":"j"}`, nil, 400, "INVALID_FIELD", "none in the query"},
		{"unknown parameter", "GET", "/v1/jobs?job_id=j&id=k", ``, nil, 400, "INVALID_FIELD", `no parameter "id"`},
		{"parameter twice", "GET", "/v1/jobs?job_id=j&job_id=k", ``, nil, 400, "INVALID_FIELD", "job_id"},
		{"parameter by both names", "GET", "/v1/jobs?job_id=j&jobId=k", ``, nil, 400, "INVALID_FIELD", "job_id"},
		{"unknown view", "GET", "/v1/jobs?job_id=j&view=ALL", ``, nil, 400, "INVALID_FIELD", "view"},
		{"no parameter", "GET", "/v1/jobs", ``, nil, 400, "INVALID_FIELD", "job_id"},
		{"broken escape", "GET", "/v1/jobs?job_id=j&view=%zz", ``, nil, 400, "INVALID_FIELD", "%zz"},
		{"not UTF-8 in the query", "GET", "/v1/jobs?job_id=%ff", ``, nil, 400, "INVALID_FIELD", "job_id is not valid UTF-8"},
		{"NUL in the query", "GET", "/v1/jobs?job_id=%00", ``, nil, 400, "INVALID_FIELD", "job_id"},
		{"semicolon in the query", "GET", "/v1/jobs?job_id=j;view=JOB_VIEW_FULL", ``, nil, 400, "INVALID_FIELD", "semicolon"},
		{"body of a GET", "GET", "/v1/jobs?job_id=j", `{}`, nil, 400, "INVALID_FIELD", "no body"},
		{"no such job", "GET", "/v1/jobs?job_id=none", ``, nil, 404, "JOB_NOT_FOUND", "job_id"},
		{"no such path", "POST", "/v1/jobs", `{}`, nil, 405, "UNIMPLEMENTED", "GET"},
		{"slash at the end", "POST", record + "/", `{}`, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"path escaped twice", "POST", "/v1/jobs%253Arecord", `{}`, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"path with dots", "POST", "/v1/x/../jobs:record", `{}`, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"path with NUL", "POST", "/v1/jobs:record%00", `{}`, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"TRACE", "TRACE", record, ``, nil, 405, "UNIMPLEMENTED", "POST"},
		{"id in the path", "GET", "/v1/jobs/j", ``, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"AdminService", "POST", "/jobonce.v1.AdminService/DeleteJob", `{}`, nil, 404, "UNIMPLEMENTED", "nothing at this path"},
		{"wrong method", "GET", record, ``, nil, 405, "UNIMPLEMENTED", "POST"},
		{"another method", "POST", record, `{}`, []string{"X-HTTP-Method-Override", "GET", "Content-Type", "application/x-www-form-urlencoded"}, 415, "INVALID_FIELD", ""},
		{"page of another origin", "POST", record, `{"job_id":"j"}`, []string{"Origin", "https://evil.example"}, 403, "PERMISSION_DENIED", "another origin"},
		{"page of another site", "POST", record, `{"job_id":"j"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "PERMISSION_DENIED", "another origin"},
		{"page without an origin", "POST", record, `{"job_id":"j"}`, []string{"Origin", "null"}, 403, "PERMISSION_DENIED", "another origin"},
		{"preflight", "OPTIONS", record, ``, []string{"Origin", "https://evil.example", "Access-Control-Request-Method", "POST"}, 405, "UNIMPLEMENTED", "POST"},
		{"foreign Host", "POST", record, `{"job_id":"j"}`, []string{"Host", "evil.example"}, 421, "PERMISSION_DENIED", `"evil.example"`},
		{"foreign Host of a GET", "GET", "/v1/jobs?job_id=j", ``, []string{"Host", "127.0.0.1.evil.example"}, 421, "PERMISSION_DENIED", "evil.example"},
		{"long bad deadline", "POST", record, `{"job_id":"j"}`, []string{"Grpc-Timeout", big[:60000]}, 400, "INVALID_FIELD", "grpc-timeout"},
		{"bad deadline", "POST", record, `{"job_id":"j"}`, []string{"Grpc-Timeout", "soon"}, 400, "INVALID_FIELD", "grpc-timeout"},
		{"nobody", "POST", record, `{"job_id":"j"}`, []string{"Authorization", ""}, 401, "UNAUTHENTICATED", "no credential"},
		{"nobody with too much", "POST", record, big, []string{"Authorization", ""}, 401, "UNAUTHENTICATED", "no credential"},
		{"forged metadata", "POST", record, `{"job_id":"j"}`, []string{"Authorization", "", "Grpc-Metadata-Authorization", "Bearer " + token}, 401, "UNAUTHENTICATED", "no credential"},
		{"unreadable token", "POST", record, `{"job_id":"j"}`, []string{"Authorization", "Bearer é"}, 401, "UNAUTHENTICATED", "Bearer"},
		{"wrong token", "POST", record, `{"job_id":"j"}`, []string{"Authorization", "Bearer x"}, 401, "UNAUTHENTICATED", "token"},
		{"no right", "POST", "/v1/expectations:cancel", `{"job_id":"j"}`, nil, 403, "PERMISSION_DENIED", "a may not call this method"},
	} {
		r := w.does(tc.method, tc.path, []byte(tc.body), append([]string{"Authorization", "Bearer " + token}, tc.headers...)...)
		if r.StatusCode != tc.status || r.reason() != tc.reason || !strings.Contains(r.Message, tc.says) || len(r.Message) > 1200 {
			t.Errorf("%s: %s, %s: %.1300s", tc.name, r.Status, r.reason(), r.text)
		}
		if cors := r.Header.Get("Access-Control-Allow-Origin"); cors != "" {
			t.Errorf("%s: other origins are allowed: %s", tc.name, cors)
		}
		switch {
		case tc.status == 401 && r.Header.Get("WWW-Authenticate") != "Bearer", tc.status == 405 && r.Header.Get("Allow") != tc.says:
			t.Errorf("%s: headers %v", tc.name, r.Header)
		}
	}
	if held := w.door.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held of bodies", held)
	}
}

// TestGzip: bodies are compressed in both directions, where they are large enough.
func TestGzip(t *testing.T) {
	w := start(t, Config{})
	body := zipped(`{"job_id":"j","payload":"` + strings.Repeat("body", 5000) + `"}`)
	w.answer(w.does(http.MethodPost, "/v1/jobs:record", []byte(body), "Content-Encoding", "gzip"))
	r := w.does(http.MethodGet, "/v1/jobs?job_id=j&view=JOB_VIEW_FULL", nil, "Accept-Encoding", "gzip")
	if r.Header.Get("Content-Encoding") != "gzip" || len(r.text) > 1000 {
		t.Fatalf("%d bytes, headers %v", len(r.text), r.Header)
	}
	unzip, err := gzip.NewReader(bytes.NewReader(r.text))
	testenv.Must(t, err)
	text, err := io.ReadAll(unzip)
	if err != nil || !strings.Contains(string(text), "bodybody") {
		t.Errorf("%v: %.100s", err, text)
	}
}

// TestWaits: long polls hear what they wait for, also when that takes longer than a body may, and are cut by their deadline.
func TestWaits(t *testing.T) {
	w := start(t, Config{}, func(d *Door) { d.bodyTime = 50 * time.Millisecond })
	lease := w.posts("/v1/jobs:record", object{"job_id": "j", "work_mode": "WORK_MODE_LEASED", "lease_duration": "600s"})["lease"].(object)
	if got := w.posts("/v1/jobs:record", object{"job_id": "j", "wait": "0.3s"}); got["disposition"] != "DISPOSITION_IN_PROGRESS" {
		t.Errorf("got %v", got)
	}
	answers := make(chan object, 2)
	go func() { answers <- w.posts("/v1/jobs:record", object{"job_id": "j", "wait": "60s"}) }()
	go func() { answers <- w.posts("/v1/work:claim", object{"lease_duration": "60s", "wait": "60s"}) }()
	w.until("j", "3")
	w.posts("/v1/work:complete", object{"job_id": "j", "lease_token": lease["token"], "result": "r"})
	if got := <-answers; got["disposition"] != "DISPOSITION_COMPLETED" || got["result"] != "r" {
		t.Errorf("got %v", got)
	}
	w.posts("/v1/jobs:record", object{"job_id": "k", "work_mode": "WORK_MODE_QUEUED"})
	if got := <-answers; len(got["jobs"].([]any)) != 1 {
		t.Errorf("got %v", got)
	}
	r := w.does(http.MethodPost, "/v1/work:claim", []byte(`{"lease_duration":"60s","wait":"60s"}`), "Grpc-Timeout", "200m")
	if r.StatusCode != http.StatusOK || string(bytes.ReplaceAll(r.text, []byte(" "), nil)) != `{"jobs":[]}` {
		t.Errorf("%s: %s", r.Status, r.text)
	}
}

// TestSlowBody: a body that does not come ends the request, and one for which there is no room is refused.
func TestSlowBody(t *testing.T) {
	w := start(t, Config{}, func(d *Door) { d.bodyTime = 20 * time.Millisecond })
	conn, err := net.Dial("tcp", w.address)
	testenv.Must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/jobs:record HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	testenv.Must(t, err)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408 ") || !strings.Contains(string(answer), "did not arrive in time") {
		t.Errorf("%v: %s", err, answer)
	}

	w = start(t, Config{}, func(d *Door) { d.bodies.most = 8 << 10 })
	r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{"job_id":"`+strings.Repeat(" ", 9<<10)+`"}`))
	if r.StatusCode != http.StatusTooManyRequests || r.reason() != "OVERLOADED" || r.Header.Get("Retry-After") != "1" {
		t.Errorf("%s: %s", r.Status, r.text)
	}
	w.posts("/v1/jobs:record", object{"job_id": "j"})
}

// TestRoomForSmallBodies: large bodies leave room for small ones.
func TestRoomForSmallBodies(t *testing.T) {
	r := &room{most: 4 * smallBody}
	large, further := &body{room: r}, &body{room: r}
	if !large.grow(2*smallBody) || further.grow(2*smallBody) || !further.grow(smallBody) || !(&body{room: r}).grow(smallBody) || (&body{room: r}).grow(1) {
		t.Errorf("%d of %d bytes are taken", r.held.Load(), r.most)
	}
}

// TestShutdown: a request under way gets its answer, nothing new is taken, and Run returns nil.
func TestShutdown(t *testing.T) {
	srv := service(t, nil)
	connect := func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
		return srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
	}
	w, other := start(t, Config{Connect: connect}), start(t, Config{Connect: connect})
	lease := w.posts("/v1/jobs:record", object{"job_id": "j", "work_mode": "WORK_MODE_LEASED", "lease_duration": "600s"})["lease"].(object)
	answered := make(chan object, 1)
	go func() { answered <- w.posts("/v1/jobs:record", object{"job_id": "j", "wait": "60s"}) }()
	other.until("j", "2")
	w.stop()
	for {
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			break
		}
		conn.Close()
	}
	other.posts("/v1/work:complete", object{"job_id": "j", "lease_token": lease["token"], "result": "r"})
	if got := <-answered; got["result"] != "r" {
		t.Errorf("got %v", got)
	}
	testenv.OK(t, <-w.stopped)
}

// TestConnections: too many are closed, and those of strangers that do not give up.
func TestConnections(t *testing.T) {
	log := new(testenv.Tail)
	w := start(t, Config{MaxConnections: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	w.posts("/v1/jobs:record", object{"job_id": "j"}) // The client keeps its connection.
	conn, err := net.Dial("tcp", w.address)
	testenv.Must(t, err)
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the second connection is open")
	}
	if !strings.Contains(log.String(), "--max-connections") {
		t.Errorf("the log has nothing about it: %s", log)
	}
	for i := range maxRefusals + 1 {
		r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{}`), "Host", "evil.example")
		if ends := i == maxRefusals; r.Close != ends {
			t.Fatalf("refusal %d: the connection ends: %v", i+1, r.Close)
		}
	}

	w = start(t, Config{MaxConnectionAge: time.Nanosecond})
	if r := w.does(http.MethodGet, "/v1/jobs?job_id=j", nil); !r.Close {
		t.Error("a connection of age is kept")
	}
}

// stuck is a peer that does not read.
type stuck struct {
	*httptest.ResponseRecorder
	writing chan int // how much
	release chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	s.writing <- len(b)
	<-s.release
	return s.ResponseRecorder.Write(b)
}

// TestUnread: answers that nobody reads are held within bounds, and then nothing is begun whose answer would be held too.
func TestUnread(t *testing.T) {
	w := start(t, Config{}, func(d *Door) { d.answers.most = 1 })
	w.posts("/v1/jobs:record", object{"job_id": "j", "payload": strings.Repeat("\x01", 10000)}) // six times as long in JSON
	for w.door.answers.held.Load() != 0 {                                                       // Its answer is held until the handler has returned.
		time.Sleep(time.Millisecond)
	}
	p := &peer{cfg: &w.door.cfg}
	defer p.close()
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, p), http.MethodGet, "http://localhost/v1/jobs?job_id=j&view=JOB_VIEW_FULL", nil)
	s, done := &stuck{httptest.NewRecorder(), make(chan int), make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		w.door.handler.ServeHTTP(s, r)
	}()
	if size, held := <-s.writing, w.door.answers.held.Load(); size < 60000 || held < int64(size)+10000 {
		t.Errorf("%d bytes are held for an answer of %d", held, size)
	}
	if r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{"job_id":"k"}`)); r.StatusCode != http.StatusTooManyRequests || r.reason() != "OVERLOADED" || r.Header.Get("Retry-After") != "1" {
		t.Errorf("%s: %s", r.Status, r.text)
	}
	close(s.release)
	<-done
	if held := w.door.answers.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
	if got := w.posts("/v1/jobs:record", object{"job_id": "k"}); got["disposition"] != "DISPOSITION_FIRST" {
		t.Errorf("got %v", got)
	}
}

// TestLateCaller: who was nobody when its body was to be read, and is somebody by the time of its call, is told to come again. The
// call has no body.
func TestLateCaller(t *testing.T) {
	srv := service(t, nil) // for which everybody is somebody
	_, callers := callers(t, "allow: [record]")
	w := start(t, Config{Callers: callers, Connect: func(ctx context.Context, addr string, secured *tls.ConnectionState) (net.Conn, error) {
		return srv.Connect(ctx, server.Peer{Addr: addr, TLS: secured})
	}})
	for path, body := range map[string]string{"/v1/jobs:record": `{"job_id":"j"}`, "/v1/jobs:batchRecord": `{"deliveries":[{"job_id":"j"}]}`} {
		r := w.does(http.MethodPost, path, []byte(body))
		if r.StatusCode != http.StatusServiceUnavailable || r.reason() != "STORE_UNAVAILABLE" || !strings.Contains(r.Message, "nothing was written") || r.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s: %s", path, r.Status, r.text)
		}
	}
}

// TestLargestMessage: the bound of the door is that of the service.
func TestLargestMessage(t *testing.T) {
	w := start(t, Config{})
	for over, says := range map[int]string{0: "deliveries has payloads", 1: "as a message"} {
		payload := &joboncev1.RecordDeliveryRequest_Payload{Payload: strings.Repeat("x", maxMessage-100)}
		req := &joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{{JobId: "j", Body: payload}}}
		payload.Payload += strings.Repeat("x", maxMessage+over-proto.Size(req))
		text, err := protojson.Marshal(req)
		testenv.Must(t, err)
		r := w.does(http.MethodPost, "/v1/jobs:batchRecord", text)
		if r.StatusCode != http.StatusRequestEntityTooLarge || r.reason() != "PAYLOAD_TOO_LARGE" || !strings.Contains(r.Message, says) {
			t.Errorf("%d over: %s: %s", over, r.Status, r.text)
		}
	}
}

// TestRoutes: whoever measures requests hears which method of ours they were for, and nothing that peers choose.
func TestRoutes(t *testing.T) {
	var route string
	refused := make(map[string]int)
	w := start(t, Config{Refused: func(reason string) { refused[reason]++ }, Instrument: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(rw, r)
			route = r.Pattern
		})
	}})
	for _, c := range []struct{ method, path, host, want string }{
		{http.MethodPost, "/v1/jobs:record", "localhost", "/v1/jobs:record"}, {http.MethodGet, "/v1/jobs?job_id=j", "localhost", "/v1/jobs"},
		{http.MethodPost, "/v1/work%3Aclaim", "localhost", "/v1/work:claim"}, {http.MethodPut, "/v1/work:claim", "localhost", ""},
		{http.MethodPost, "/v1/jobs:record", "evil.example", ""}, {http.MethodPost, "/v1/" + strings.Repeat("x", 1000), "localhost", ""},
	} {
		if w.does(c.method, c.path, nil, "Host", c.host); route != c.want {
			t.Errorf("%s %.30s of %s: %q", c.method, c.path, c.host, route)
		}
	}
	w.does(http.MethodPost, "/v1/jobs:record", []byte(`{"payload":"`+strings.Repeat("x", maxMessage)+`"}`))
	if want := map[string]int{"INVALID_FIELD": 2, "UNIMPLEMENTED": 2, "PERMISSION_DENIED": 1, "PAYLOAD_TOO_LARGE": 1}; !maps.Equal(refused, want) {
		t.Errorf("refused: %v", refused)
	}
}

// TestHTTP2: over TLS requests share a connection; each has a time of its own for its body, and none for its wait.
func TestHTTP2(t *testing.T) {
	ca := testenv.NewCA(t, "servers")
	pair, dir := ca.Issue("localhost"), t.TempDir()
	certificates, err := auth.LoadCertificates(auth.CertificateFiles{
		Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key),
	}, testenv.Logger(t))
	testenv.Must(t, err)
	w := start(t, Config{Certificates: certificates}, func(d *Door) { d.bodyTime = 50 * time.Millisecond })
	w.client.Transport = &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
	w.posts("/v1/jobs:record", object{"job_id": "j", "work_mode": "WORK_MODE_LEASED", "lease_duration": "600s"})
	body, never := io.Pipe()
	defer never.Close()
	slow := make(chan *http.Response, 1)
	go func() {
		resp, err := w.client.Post("https://"+w.address+"/v1/jobs:record", "application/json", body)
		testenv.OK(t, err)
		slow <- resp
	}()
	r := w.does(http.MethodPost, "/v1/jobs:record", []byte(`{"job_id":"j","wait":"0.3s"}`))
	if r.ProtoMajor != 2 || r.StatusCode != http.StatusOK || !strings.Contains(string(r.text), "IN_PROGRESS") {
		t.Errorf("%s %s: %s", r.Proto, r.Status, r.text)
	}
	resp := <-slow
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%s %s", resp.Proto, resp.Status)
	}
}
