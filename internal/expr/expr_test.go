package expr_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/expr"
	"github.com/jobonce/jobonce/internal/testenv"
)

var language = expr.New(expr.Language{Values: []string{"body"}, Texts: []string{"text"}, Maps: []string{"header"}, JSON: decode})

func decode(s string) (v any, err error) {
	if json.Unmarshal([]byte(s), &v) != nil {
		return nil, errors.New("is no JSON")
	}
	return v, nil
}

var body = map[string]any{
	"id": "a", "n": int64(9007199254740993), "big": "18446744073709551616", "f": 1.5, "zero": int64(0), "null": nil, "empty": "",
	"secret": "s3cret", "list": []any{map[string]any{"id": "x"}, map[string]any{"id": "y", "ok": true}},
}

func vars(name string) (any, error) {
	switch name {
	case "body":
		return body, nil
	case "text":
		return strings.Repeat("a", 1<<20), nil
	case "header":
		return map[string]string{"x-id": "h"}, nil
	}
	return nil, errors.New("is not there")
}

func TestText(t *testing.T) {
	for source, want := range map[string]string{
		`body.id`:                                   "a",
		`body["id"] + ":" + header["x-id"]`:         "a:h",
		`string(body.n)`:                            "9007199254740993",
		`body.big`:                                  "18446744073709551616",
		`body.empty`:                                "",
		`body.?nothing.orValue("none")`:             "none",
		`has(body.nothing) ? "yes" : "no"`:          "no",
		`body.n > 9007199254740992 ? "more" : ""`:   "more",
		`body.id.upperAscii()`:                      "A",
		`json("{\"a\":{\"b\":\"c\"}}").a.b`:         "c",
		`body.list.filter(i, has(i.ok))[0].id`:      "y",
		`body.list.map(i, i.id)[1].substring(0, 1)`: "y",
		`body.f < 2 && body.zero == 0 ? "yes" : ""`: "yes",
	} {
		p, err := language.Compile(source, expr.Text)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := p.Text(t.Context(), vars); err != nil || got != want {
			t.Errorf("%s gives %q, %v; want %q", source, got, err, want)
		}
	}
}

// TestCompileRefuses: what can be known to be wrong is known at the start.
func TestCompileRefuses(t *testing.T) {
	for source, c := range map[string]struct {
		want expr.Result
		says string
	}{
		``:                            {expr.Text, "empty"},
		` `:                           {expr.Text, "empty"},
		`body.`:                       {expr.Text, "Syntax error"},
		`boddy.id`:                    {expr.Text, "boddy"},
		`1`:                           {expr.Text, "gives int, and must give a string"},
		`"x"`:                         {expr.Truth, "gives string, and must give true or false"},
		`body.id == "a"`:              {expr.List, "gives bool, and must give a list"},
		`text.replace("", text)`:      {expr.Text, "calls replace()"},
		`["a"].map(x, [x].join())[0]`: {expr.Text, "calls join()"},
		`"%s".format([text])`:         {expr.Text, "calls format()"},
		`open("/etc/passwd")`:         {expr.Text, "open"},
		strings.Repeat("a", 4<<10+1):  {expr.Text, "4096 bytes"},
	} {
		if _, err := language.Compile(source, c.want); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.40s: %v, want %q", source, err, c.says)
		}
	}
}

// TestFailures: what goes wrong is said, and nothing of what was read.
func TestFailures(t *testing.T) {
	nested := `body.list`
	for range 6 {
		nested = fmt.Sprintf("[1,2,3,4,5,6,7,8,9,0].map(x, %s)", nested)
	}
	for source, says := range map[string]string{
		`body.nothing`:                 "there is no nothing",
		`body[body.secret]`:            "there is no such key",
		`string(1 / body.zero)`:        "division by zero",
		`string(1 % body.zero)`:        "modulus by zero",
		`body.n`:                       "gives int, and must give a string",
		`body["null"]`:                 "gives null_type, and must give a string",
		`body.list`:                    "gives list, and must give a string",
		`body.list[7].id`:              "index out of bounds",
		`body.id + body.n`:             "no such overload",
		`string(int(body.secret))`:     "cannot be evaluated",
		`json(body.secret)`:            "json(): is no JSON",
		`string(size(` + nested + `))`: "costs more than",
		`json(text + text)`:            "costs more than",
		`text.split("").exists(c, c == "b") ? "" : ""`: "costs more than",
	} {
		p, err := language.Compile(source, expr.Text)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		got, err := p.Text(t.Context(), vars)
		own := (*expr.Error)(nil)
		if !errors.As(err, &own) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.60s gives %.20q, %v; want %q", source, got, err, says)
		}
	}
}

func TestReadsOnly(t *testing.T) {
	for source, want := range map[string]bool{
		`header["a"]`: true, `header["a"] + text`: false, `body.id`: false, `"x"`: true,
		`has(body.id) ? "a" : "b"`: false,
	} {
		p, err := language.Compile(source, expr.Text)
		testenv.Must(t, err)
		if got := p.ReadsOnly("header"); got != want {
			t.Errorf("%s reads only headers: %t", source, got)
		}
	}
}

func TestAbsentVariable(t *testing.T) {
	absent := func(name string) (any, error) { return nil, errors.New("is no JSON") }
	p, err := language.Compile(`body.id`, expr.Text)
	testenv.Must(t, err)
	if _, err := p.Text(t.Context(), absent); err == nil || err.Error() != "body: is no JSON" {
		t.Errorf("%v", err)
	}
	p, err = language.Compile(`true || body.ok`, expr.Truth)
	testenv.Must(t, err)
	if got, err := p.Truth(t.Context(), absent); err != nil || !got {
		t.Errorf("what is not needed: %t, %v", got, err)
	}
}

func TestEndedContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := language.Compile(`[1,2,3,4,5,6,7,8,9,0].all(a, [1,2,3,4,5,6,7,8,9,0].all(b, [1,2,3,4,5].all(c, a + b + c > 0)))`, expr.Truth)
	testenv.Must(t, err)
	if _, err := p.Truth(ended, vars); err == nil || err.Error() != "took too long" {
		t.Errorf("%v", err)
	}
}

func TestList(t *testing.T) {
	for source, want := range map[string][]any{
		`body.list`:                        body["list"].([]any),
		`[]`:                               nil,
		`body.list.filter(i, i.id == "y")`: {map[string]any{"id": "y", "ok": true}},
		`body.list.map(i, {"a": i.id, "n": [body.n, 1.5, null, 7u]})`: {
			map[string]any{"a": "x", "n": []any{int64(9007199254740993), 1.5, nil, int64(7)}},
			map[string]any{"a": "y", "n": []any{int64(9007199254740993), 1.5, nil, int64(7)}},
		},
		`[18446744073709551615u]`: {"18446744073709551615"},
		`[1, 2, 3, 4]`:            {int64(1), int64(2), int64(3)},
	} {
		p, err := language.Compile(source, expr.List)
		testenv.Must(t, err)
		got, err := p.List(t.Context(), vars, 3)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", source, err, diff)
		}
	}
	for source, says := range map[string]string{
		`body.id`:                "gives string, and must give a list",
		`[b"x"]`:                 "bytes, which JSON has not",
		`[{1: "x"}]`:             "a key that is no text",
		`[duration("1s")]`:       "which JSON has not",
		`body.list.map(i, i.ok)`: "there is no ok",
	} {
		p, err := language.Compile(source, expr.List)
		testenv.Must(t, err)
		if got, err := p.List(t.Context(), vars, 3); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v; want %q", source, got, err, says)
		}
	}
}
