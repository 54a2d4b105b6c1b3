package frontend_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/testenv"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// many is a body with n events.
func many(n int) string {
	var b strings.Builder
	b.WriteString(`{"events":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"%d"}`, i)
	}
	return b.String() + "]}"
}

// TestBadInput: each has an answer, is told apart, and records nothing that anybody would work on.
func TestBadInput(t *testing.T) {
	never := "[1,2,3,4,5,6,7,8,9,0]"
	for range 6 {
		never = "[1,2,3,4,5,6,7,8,9,0].map(x, " + never + ")"
	}
	const unreadable = 503
	for name, c := range map[string]struct {
		source, body string
		status       int
		says         string // in the log
	}{
		"divides by zero":         {"job_id: item.id\nwhen: 1 / item.n > 0", `{"id":"a","n":0}`, unreadable, "when: division by zero"},
		"never ends":              {"job_id: item.id\nwhen: size(" + never + ") > 0", `{"id":"a"}`, unreadable, "when: costs more than"},
		"items never ends":        {"job_id: item.id\nitems: " + never, `{"id":"a"}`, unreadable, "items: costs more than"},
		"id a number":             {"job_id: item.id", `{"id":7}`, unreadable, "id: gives int, and must give a string"},
		"id an object":            {"job_id: item.id", `{"id":{}}`, unreadable, "id: gives map, and must give a string"},
		"id null":                 {"job_id: item.id", `{"id":null}`, unreadable, "id: gives null_type"},
		"id empty":                {"job_id: item.id", `{"id":""}`, unreadable, "id: is empty"},
		"id missing":              {"job_id: item.id", `{}`, unreadable, "id: there is no id"},
		"id with a line end":      {"job_id: item.id", `{"id":"a\nb"}`, unreadable, "id: has control characters"},
		"no JSON":                 {"job_id: item.id", `id=a`, unreadable, "id: item: the body is no JSON"},
		"no object":               {"job_id: item.id", `["a"]`, unreadable, "id: "},
		"when says no such thing": {"job_id: item.id\nwhen: item.state == 'x'", `{"id":"a"}`, unreadable, "when: there is no state"},
		"when gives a text":       {"job_id: item.id\nwhen: item.id", `{"id":"a"}`, unreadable, "when: gives string, and must give true or false"},
		"items is missing":        {"job_id: item.id\nitems: body.events", `{"id":"a"}`, unreadable, "items: "},
		"items is no list":        {"job_id: item.id\nitems: body.events", `{"events":"a"}`, unreadable, "items: "},
		"items of an expression":  {"job_id: item.id\nitems: 'body.events.map(e, e.x)'", `{"events":[{}]}`, unreadable, "items: events[].x is missing"},
		"an item is null":         {"job_id: item.id\nitems: body.events", `{"events":[null]}`, unreadable, "null"},
		"one null of a list":      {"job_id: item.id\nitems: '[body.a, null]'", `{"a":{"id":"a"}}`, unreadable, "element 1 is null"},
		"item for all of a body":  {"job_id: item.id\nitems: '[item]'", `{"id":"a"}`, unreadable, "item: is there for each event alone"},
		"11,000 items":            {"job_id: item.id\nitems: body.events", many(11_000), 413, "too_many_items"},
		"11,000 by an expression": {"job_id: item.id\nitems: 'body.events.filter(e, true)'", many(11_000), 413, "too_many_items"},
		"no form":                 {"job_id: form.id", `{"id":"a"}`, unreadable, "form: the body is no form"},
		"not UTF-8":               {"job_id: text", "\xff", unreadable, "text: the body is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			var log testenv.Tail
			j := &jobs{}
			opened, err := open(t, j, shop(quoted(c.source)), logTo(&log))
			f := must(t, opened, err)
			status, _ := answer(f, post(c.body))
			if status != c.status || !strings.Contains(log.String(), c.says) {
				t.Errorf("answered %d, want %d; logged %s, want %q", status, c.status, &log, c.says)
			}
			if strings.Contains(log.String(), "secret") {
				t.Errorf("logged %s", &log)
			}
			for _, req := range j.all {
				if req.GetWorkMode() != joboncev1.WorkMode_WORK_MODE_UNTRACKED || !strings.HasPrefix(req.GetJobId(), "shop:unreadable:") ||
					req.GetPayload()+string(req.GetPayloadBytes()) != c.body {
					t.Errorf("recorded %v", req)
				}
			}
			if kept := len(j.all) == 1; kept != (c.status == unreadable) {
				t.Errorf("%d recorded", len(j.all))
			}
		})
	}
}

// quoted has the values of YAML quoted where they are not.
func quoted(source string) string {
	var out strings.Builder
	for line := range strings.Lines(source) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !strings.HasPrefix(value, "'") {
			value = "'" + strings.ReplaceAll(value, "'", "''") + "'"
		}
		fmt.Fprintf(&out, "%s: %s\n", key, value)
	}
	return out.String()
}

// TestWhatIsRecorded: ids, events and statuses by expressions, over each of the variables.
func TestWhatIsRecorded(t *testing.T) {
	type job struct{ ID, Event, Status, Body string }
	sum := sha256.Sum256([]byte(strings.Repeat("x", 300)))
	form := url.Values{"id": {"f1"}, "kind": {"paid", "again"}}.Encode()
	for name, c := range map[string]struct {
		source, body, contentType, query string
		want                             []job
	}{
		"of the body": {"job_id: body.a.id\nevent: body.kind\nstatus: body.ok ? 'OK' : 'BAD'", `{"a":{"id":"1"},"kind":"k","ok":true}`, "", "",
			[]job{{"shop:1", "k", "OK", `{"a":{"id":"1"},"kind":"k","ok":true}`}}},
		"whole numbers are exact": {"job_id: string(item.n) + ':' + item.big", `{"n":9007199254740993,"big":18446744073709551616}`, "", "",
			[]job{{"shop:9007199254740993:18446744073709551616", "", "", `{"n":9007199254740993,"big":18446744073709551616}`}}},
		"of a form":   {"job_id: form.id\nevent: form.kind", form, "application/x-www-form-urlencoded", "", []job{{"shop:f1", "paid", "", form}}},
		"of the text": {"job_id: text.split(',')[0]", "t1,x", "text/csv", "", []job{{"shop:t1", "", "", "t1,x"}}},
		"of a header and the query": {"job_id: header['x-token'].substring(0, 3) + query.n", "x", "", "n=7",
			[]job{{"shop:sec7", "", "", "x"}}},
		"JSON within a form": {"job_id: json(form.payload).id", url.Values{"payload": {`{"id":"p1"}`}}.Encode(), "application/x-www-form-urlencoded", "",
			[]job{{"shop:p1", "", "", "payload=%7B%22id%22%3A%22p1%22%7D"}}},
		"300 bytes": {"job_id: item.id", `{"id":"` + strings.Repeat("x", 300) + `"}`, "", "",
			[]job{{"shop:" + strings.Repeat("x", 178) + ":sha256:" + hex.EncodeToString(sum[:]), "", "",
				`{"id":"` + strings.Repeat("x", 300) + `"}`}}},
		"items, byte for byte": {"job_id: item.id\nitems: body.events\nevent: body.kind", `{"kind":"k","events":[{ "id":"1", "n":1.0 },{"id":"2"}]}`, "", "",
			[]job{{"shop:1", "k", "", `{ "id":"1", "n":1.0 }`}, {"shop:2", "k", "", `{"id":"2"}`}}},
		"members of items, byte for byte": {"job_id: item.id\nitems: 'body.a.list.map( i , i.x.y )'", `{"a":{"list":[{"x":{"y":{ "id":"1", "n":1.0, "big":18446744073709551616 }}}]}}`, "", "",
			[]job{{"shop:1", "", "", `{ "id":"1", "n":1.0, "big":18446744073709551616 }`}}},
		"members of an array": {"job_id: item.id\nitems: 'body.map(i, i.x)'", `[{"x":{"id":"1","n":1.0}},{"x":{"id":"2"}}]`, "", "",
			[]job{{"shop:1", "", "", `{"id":"1","n":1.0}`}, {"shop:2", "", "", `{"id":"2"}`}}},
		"items by an expression": {"job_id: item.id\nitems: 'body.list.filter(i, has(i.x)).map(i, i.x)'", `{"list":[{"x":{ "id":"1","n":9007199254740993 }},{}]}`, "", "",
			[]job{{"shop:1", "", "", `{"id":"1","n":9007199254740993}`}}},
		"items of the body's own": {"job_id: item.id\nitems: 'body.list.map(i, body.x)'", `{"list":[1],"x":{"id":"1"}}`, "", "",
			[]job{{"shop:1", "", "", `{"id":"1"}`}}},
		"an array": {"job_id: item.id\nitems: body", `[{"id":"1"}]`, "", "", []job{{"shop:1", "", "", `{"id":"1"}`}}},
		"the same event twice": {"job_id: item.id\nitems: body.events", `{"events":[{"id":"1"},{"id":"1"}]}`, "", "",
			[]job{{"shop:1", "", "", `{"id":"1"}`}, {"shop:1", "", "", `{"id":"1"}`}}},
		"some are filtered out": {"job_id: item.id\nitems: body.events\nwhen: item.?on.orValue(false)", `{"events":[{"id":"1"},{"id":"2","on":true}]}`, "", "",
			[]job{{"shop:2", "", "", `{"id":"2","on":true}`}}},
		"all are filtered out":       {"job_id: item.id\nwhen: false", `{"id":"1"}`, "", "", nil},
		"no items":                   {"job_id: item.id\nitems: body.events", `{"events":[]}`, "", "", nil},
		"an event that is no text":   {"job_id: item.id\nevent: item.n\nstatus: item.none", `{"id":"1","n":7}`, "", "", []job{{"shop:1", "", "", `{"id":"1","n":7}`}}},
		"another prefix":             {"job_id: item.id\nid_prefix: 'p-'", `{"id":"1"}`, "", "", []job{{"p-1", "", "", `{"id":"1"}`}}},
		"no prefix":                  {"job_id: item.id\nid_prefix: ''", `{"id":"1"}`, "", "", []job{{"1", "", "", `{"id":"1"}`}}},
		"a body with its own job_id": {"job_id: item.id", `{"id":"1","job_id":"2"}`, "", "", []job{{"shop:1", "", "", `{"id":"1","job_id":"2"}`}}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &jobs{}
			opened, err := open(t, j, shop(quoted(c.source)))
			f := must(t, opened, err)
			r := post(c.body)
			if r.URL.RawQuery = c.query; c.contentType != "" {
				r.Header.Set("Content-Type", c.contentType)
			}
			if status, body := answer(f, r); status != http.StatusOK {
				t.Errorf("answered %d %s", status, body)
			}
			var got []job
			for _, req := range j.all {
				if req.GetWorkMode() != joboncev1.WorkMode_WORK_MODE_QUEUED || req.GetSource() != "shop" {
					t.Errorf("recorded %v", req)
				}
				got = append(got, job{req.GetJobId(), req.GetEvent(), req.GetStatus(), req.GetPayload()})
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordOnly: nobody is to work on it, and that is said at the start.
func TestRecordOnly(t *testing.T) {
	var log testenv.Tail
	j := &jobs{}
	opened, err := open(t, j, shop("job_id: item.id\nrecord_only: true\nanswer_status: 202"), logTo(&log))
	f := must(t, opened, err)
	if !strings.Contains(log.String(), "nobody will work on it") {
		t.Errorf("logged %s", &log)
	}
	if status, _ := answer(f, post(`{"id":"1"}`)); status != http.StatusAccepted || j.all[0].GetWorkMode() != joboncev1.WorkMode_WORK_MODE_UNTRACKED {
		t.Errorf("answered %d, recorded %v", status, j.all)
	}
}

// TestVerifyToken: a handshake by GET has to bring the token along.
func TestVerifyToken(t *testing.T) {
	t.Setenv("VERIFY", "hello")
	opened, err := open(t, &jobs{}, "- {name: meta, provider: meta, secrets_env: [SHOP_SECRET], verify_token_env: VERIFY, job_id: 'body.entry[0].id'}")
	f := must(t, opened, err)
	for token, want := range map[string]int{"hello": 200, "other": 403} {
		target := "/meta?hub.mode=subscribe&hub.challenge=42&hub.verify_token=" + token
		status, body := answer(f, httptest.NewRequest(http.MethodGet, target, nil))
		if status != want || (body == "42") != (want == 200) {
			t.Errorf("%s: answered %d %q", token, status, body)
		}
	}
}
