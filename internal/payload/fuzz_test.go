package payload

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// seeds begin the fuzzing; testdata/fuzz holds what it found worth keeping.
var seeds = []string{
	``, ` `, `{}`, `[]`, `null`, `"x"`, `-0`, `1e5`, "\ufeff{}", "{}\x00", "\"\xff\"", "\"\xed\xa0\x80\"",
	`{"job_id":"a","event":"b","status":"c"}`,
	`{"job_id":"a","\u006aob_id":1,"event":null,"status":{"status":"x"}}`,
	`{"event":"\ud83d\ude00\n","status":"\ud800","\udc00":1}`,
	`{"a":[1,-2,3.5,1E2,0e999,1e400,12345678901234567890],"b":{"a":1,"a":2}}`,
	`{"a\u0000b":1,"":"\u0000","\/":"\/\b\f\n\r\t\"\\"}`,
	`[[[[[[{"a":[{}]}]]]]]]`, `{"a":[[[[[[1]]]]]],"b":{"c":{"d":{"e":{"f":{"g":1}}}}}}`,
	`{ "a" : [ true , false , null ] }`, `{"a":1,}`, `[1,]`, `{"a" 1}`, `{1:2}`, `[01]`, `[1.]`, `[-]`, `"\x"`, `"\u12g4"`,
	`job_id=a&event=b`,
	"\ufeff" + `{"job_id":"a","event":"b"}`, "\ufeff\ufeff{}", "{\"\ufeffevent\":\"b\"}", "\xef\xbb{}", "\ufeff [1]",
	`{"event":"a","event":"b","status":"","status":1}`, `{"event":{"event":"b"},"event":null,"job_id":[],"job_id":"a"}`,
}

func addSeeds(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
}

func FuzzScan(f *testing.F) {
	addSeeds(f)
	// Small, so that the fuzzer finds both sides of them.
	limits := Limits{JobID: 3, Event: 8, Status: 0}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "[")+strings.Count(text, "{") > stdDepth {
			t.Skip("encoding/json may refuse the depth")
		}
		if got, want := Scan(text, limits), oracleInfo(t, text, limits); got != want {
			t.Errorf("Scan(%q)\n got %+v\nwant %+v", text, got, want)
		}
		if err := Check(text); (err == nil) != Scan(text, limits).JSON || err != nil && !errors.Is(err, ErrNotJSON) {
			t.Errorf("Check(%q) = %v", text, err)
		}
	})
}

func FuzzWalk(f *testing.F) {
	addSeeds(f)
	const maxDepth = 6
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "[")+strings.Count(text, "{") > stdDepth {
			t.Skip("encoding/json may refuse the depth")
		}
		checkWalk(t, text, maxDepth)
	})
}

// FuzzRender: what is rendered means the same as the text, whether or not it is
// spelled alike.
func FuzzRender(f *testing.F) {
	addSeeds(f)
	for _, c := range formCases {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var sink, again bsonSink
		form, err := Walk(text, "", 99, &sink)
		if err != nil {
			return
		}
		if form < 0 || form > MaxForm {
			t.Fatalf("Walk(%q) has the form %b", text, form)
		}
		out, ok := Render(nil, sink.out[2:], form, false, 100*len(text))
		if !ok {
			return
		}
		if _, err := Walk(string(out), "", 99, &again); err != nil || !bytes.Equal(again.out, sink.out) {
			t.Errorf("%q became %q, which is another document (%v)", text, out, err)
		}
	})
}

// checkWalk compares a walk with encoding/json's.
func checkWalk(t *testing.T, text string, maxDepth int) {
	t.Helper()
	var sink recorder
	_, err := Walk(text, "top", maxDepth, &sink)
	if !isJSON(text) {
		// An earlier fault may be found first.
		if err == nil {
			t.Errorf("Walk(%q) took what is not JSON", text)
		}
		return
	}
	if oracleTokens(t, text)[0].kind != BeginObject {
		if !errors.Is(err, ErrNotObject) {
			t.Errorf("Walk(%q) = %v, want ErrNotObject", text, err)
		}
		return
	}

	events, reason := oracleWalk(t, text, "top", maxDepth)
	if !slices.Equal(sink.events, events) {
		t.Errorf("Walk(%q)\n got %q\nwant %q", text, sink.events, events)
	}
	var unfaithful *UnfaithfulError
	switch {
	case reason == "" && err != nil:
		t.Errorf("Walk(%q) = %v, want none", text, err)
	case reason != "" && (!errors.As(err, &unfaithful) || unfaithful.Reason != reason):
		t.Errorf("Walk(%q) = %v, want %s", text, err, reason)
	}
}

func FuzzParseNumber(f *testing.F) {
	for _, c := range numberCases {
		f.Add(c.raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if strings.Trim(raw, "+-.0123456789eE") != "" || !isJSON(raw) || len(raw) > 5000 {
			t.Skip("not a number, or a long one that takes math/big too long")
		}
		checkNumber(t, raw)
	})
}

// checkNumber compares ParseNumber with math/big.
func checkNumber(t *testing.T, raw string) {
	t.Helper()
	kind, i, fl := ParseNumber(raw)
	wantKind, wantI, wantF := oracleNumber(raw)
	if kind != wantKind || numberText(kind, i, fl) != numberText(wantKind, wantI, wantF) {
		t.Errorf("ParseNumber(%s) = %v %d %v, want %v %d %v", raw, kind, i, fl, wantKind, wantI, wantF)
	}
}
