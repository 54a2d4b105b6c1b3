package webhook_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/jobonce/jobonce/client/webhook"
)

// TestBadInput: each has its answer and its reason, and nothing is recorded but what the body says.
func TestBadInput(t *testing.T) {
	items := func(s *webhook.Source) { s.Items = webhook.Array("[]") }
	long := strings.Repeat("é", 150) // 300 bytes
	for name, test := range map[string]struct {
		body   string
		change func(*http.Request)
		source func(*webhook.Source)
		reason webhook.Reason
		status int
		stored []string // ids; of what is unreadable only "unreadable"
	}{
		"good":             {body: `{"id":"1"}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"no token":         {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Del("X-Token") }, reason: webhook.SignatureMissing, status: 401},
		"wrong token":      {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Set("X-Token", "secrets") }, reason: webhook.SignatureWrong, status: 401},
		"an empty token":   {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Set("X-Token", "") }, reason: webhook.SignatureWrong, status: 401},
		"two tokens":       {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Add("X-Token", "secret") }, reason: webhook.SignatureRepeated, status: 401},
		"no secrets":       {body: `{"id":"1"}`, source: func(s *webhook.Source) { s.Secrets = vanishing() }, reason: webhook.SignatureWrong, status: 401},
		"wrong method":     {body: `{"id":"1"}`, change: func(r *http.Request) { r.Method = http.MethodPut }, reason: webhook.MethodNotAllowed, status: 405},
		"GET":              {change: func(r *http.Request) { r.Method = http.MethodGet }, reason: webhook.MethodNotAllowed, status: 405},
		"no body":          {reason: webhook.EmptyBody, status: 400},
		"oversize":         {body: `{"id":"1"}` + strings.Repeat(" ", 1<<20), reason: webhook.TooLarge, status: 413},
		"oversize chunked": {body: `{"id":"1"}` + strings.Repeat(" ", 1<<20), change: chunked, reason: webhook.TooLarge, status: 413},
		"chunked":          {body: `{"id":"1"}`, change: chunked, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"gzip": {body: zipped(`{"id":"1"}`), change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") },
			reason: webhook.EncodedBody, status: 400},
		"gzip unannounced":     {body: zipped(`{"id":"1"}`), reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"unknown content type": {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Set("Content-Type", "x/y") }, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"broken content type":  {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Set("Content-Type", ";;;") }, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"byte-order mark":      {body: "\xef\xbb\xbf" + `{"id":"1"}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"no JSON":              {body: `id=1`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"half a JSON":          {body: `{"id":"1"`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"two values":           {body: `{"id":"1"}{"id":"2"}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"not UTF-8":            {body: "\xff\xfe", reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"not UTF-8 beside":     {body: "{\"id\":\"1\",\"x\":\"\xff\"}", reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"no id":                {body: `{}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"an empty id":          {body: `{"id":""}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"a null id":            {body: `{"id":null}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"an id with a control": {body: `{"id":"1\n"}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"an id not UTF-8":      {body: "{\"id\":\"1\xff\"}", reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"half a surrogate":     {body: `{"id":"1\ud800"}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"an object as id":      {body: `{"id":{}}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"a number as id":       {body: `{"id":9007199254740993}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:9007199254740993"}},
		"a huge number as id":  {body: `{"id":123456789012345678901234567890}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:123456789012345678901234567890"}},
		"a fraction as id":     {body: `{"id":1.5}`, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"300 bytes of id": {body: `{"id":"` + long + `"}`, reason: webhook.Accepted, status: 200,
			stored: []string{"shop:" + strings.Repeat("é", 89) + ":sha256:cb1fa3158102cb16"}},
		"a long event":   {body: `{"id":"1","type":"` + long + `"}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"a number event": {body: `{"id":"1","type":7}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"an empty part of an id": {body: `{"id":"","type":"paid"}`, source: func(s *webhook.Source) {
			s.ID = webhook.Join(webhook.Field("type"), webhook.Field("id"))
		}, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"a trace that is none": {body: `{"id":"1"}`, change: func(r *http.Request) { r.Header.Set("Traceparent", "\xff"+strings.Repeat("0", 54)) },
			reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"when divides by zero": {body: `{"id":"1"}`, source: func(s *webhook.Source) {
			s.When = func(*webhook.Item) (bool, error) { return false, errors.New("division by zero") }
		}, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"when says no": {body: `{"id":"1"}`, source: func(s *webhook.Source) {
			s.When = webhook.OneOf(webhook.Field("id"), "2")
		}, reason: webhook.Accepted, status: 200},
		"items fails":      {body: `{"id":"1"}`, source: items, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"no items":         {body: `[]`, source: items, reason: webhook.Accepted, status: 200},
		"a null item":      {body: `[null]`, source: items, reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"one item bad":     {body: `[{"id":"1"},{}]`, source: items, reason: webhook.Unreadable, status: 503, stored: []string{"shop:1", "unreadable"}},
		"the same twice":   {body: `[{"id":"1"},{"id":"1","x":1}]`, source: items, reason: webhook.Accepted, status: 200, stored: []string{"shop:1"}},
		"11,000 items":     {body: "[" + strings.Repeat(`{"id":"1"},`, 10_999) + `{"id":"1"}]`, source: items, reason: webhook.TooManyItems, status: 413},
		"deep JSON":        {body: strings.Repeat("[", 100_000), reason: webhook.Unreadable, status: 503, stored: []string{"unreadable"}},
		"an id of another": {body: `{"id":"unreadable:1"}`, reason: webhook.Accepted, status: 200, stored: []string{"shop:unreadable:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			j, s := &jobs{}, token()
			if test.source != nil {
				test.source(&s)
			}
			r := post(test.body)
			if test.change != nil {
				test.change(r)
			}
			resp, report := deliver(t, j, s, r)
			if resp.StatusCode != test.status || report.Reason != test.reason {
				t.Errorf("answered %d for %s, want %d for %s; %v", resp.StatusCode, report.Reason, test.status, test.reason, report.Err)
			}
			if (report.Err == nil) != (report.Reason == webhook.Accepted) {
				t.Errorf("%s with the error %v", report.Reason, report.Err)
			}
			if report.Err != nil && strings.Contains(report.Err.Error(), "secret\"") {
				t.Errorf("the error has the secret: %v", report.Err)
			}
			for _, req := range j.all {
				if _, err := proto.Marshal(req); err != nil {
					t.Errorf("the service refuses it: %v", err)
				}
			}
			got := slices.Sorted(maps.Keys(j.ids()))
			if len(got) != len(test.stored) {
				t.Fatalf("stored %q, want %q", got, test.stored)
			}
			for i, want := range test.stored {
				whole := want == "unreadable" && strings.HasPrefix(got[i], "shop:unreadable:") && j.ids()[got[i]] == test.body
				if got[i] != want && !whole && !(strings.Contains(want, ":sha256:") && strings.HasPrefix(got[i], want) && len(got[i]) <= 255) {
					t.Errorf("stored %q, want %q", got[i], want)
				}
				if whole != (j.stored[got[i]].GetWorkMode().String() == "WORK_MODE_UNTRACKED") {
					t.Errorf("%q is recorded as %v", got[i], j.stored[got[i]].GetWorkMode())
				}
			}
		})
	}
}

// vanishing has a secret when the source is checked, and none afterwards.
func vanishing() func() []string {
	asked := false
	return func() []string {
		if !asked {
			asked = true
			return []string{"secret"}
		}
		return nil
	}
}

func chunked(r *http.Request) { r.ContentLength = -1 }

func zipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return b.String()
}

// TestBodiesThatDoNotCome sends them over a connection.
func TestBodiesThatDoNotCome(t *testing.T) {
	for name, test := range map[string]struct {
		hangUp bool
		reason webhook.Reason
		status string
	}{
		"slow":      {reason: webhook.SlowBody, status: "503"},
		"truncated": {hangUp: true, reason: webhook.BrokenBody},
	} {
		t.Run(name, func(t *testing.T) {
			j, reports := &jobs{}, make(chan webhook.Report, 1)
			h := handler(t, j, token(), webhook.WithReadTimeout(50*time.Millisecond),
				webhook.WithReport(func(_ context.Context, r webhook.Report) { reports <- r }))
			server := httptest.NewServer(h)
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Token: secret\r\nContent-Length: 100\r\n\r\n{\"id\":\"1\"}")
			if test.hangUp {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			if r := <-reports; r.Reason != test.reason {
				t.Errorf("reason %s: %v", r.Reason, r.Err)
			}
			if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, test.status) {
				t.Errorf("answered %q", line)
			}
			if len(j.all) > 0 {
				t.Error("something was recorded")
			}
		})
	}
}
