package ui

import (
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain ä 日本 🙂":         "plain ä 日本 🙂",
		"a\tb\nc":              "a\tb\nc",
		"a\x00b":               "a[␀]b",
		"\x1b[31m\r":           "[␛][31m[␍]",
		"x\x7f":                "x[␡]",
		"\u202eabc\u2066":      "[U+202E]abc[U+2066]",
		"a\u200b\ufeffb":       "a[U+200BU+FEFF]b",
		"\u2028\u00a0\u3164":   "[U+2028U+00A0U+3164]",
		"a\xffb":               "a[\\xFF]b",
		"\U000e0041":           "[U+E0041]",
		"\u0085":               "[U+0085]",
		"9007199254740993":     "9007199254740993",
		"<script>&\"'":         "<script>&\"'",
		"مرحبا":                "مرحبا",
		"\u061c\u200e\u200fab": "[U+061CU+200EU+200F]ab",
	} {
		var got strings.Builder
		for _, s := range visible(in) {
			if s.Hidden {
				fmt.Fprintf(&got, "[%s]", s.Text)
			} else {
				got.WriteString(s.Text)
			}
		}
		if got.String() != want {
			t.Errorf("%q: %q, want %q", in, &got, want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\u202eb\x00\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, span := range visible(s) {
			if len(visible(span.Text)) != 1 || visible(span.Text)[0].Hidden || span.Text == "" {
				t.Errorf("%q has %q", s, span.Text)
			}
		}
	})
}

// TestLongBodies: what is too long is cut between characters.
func TestLongBodies(t *testing.T) {
	for name, tc := range map[string]struct {
		b           *body
		size, shown int
	}{
		"text":          {showText("ab"), 2, 2},
		"as long":       {showText(strings.Repeat("é", maxShown/2)), maxShown, maxShown},
		"too long":      {showText("a" + strings.Repeat("é", maxShown/2)), maxShown + 1, maxShown - 1},
		"bytes":         {showBytes(make([]byte, maxShownBytes+1)), maxShownBytes + 1, maxShownBytes},
		"no characters": {showText(strings.Repeat("\x80", maxShown+9)), maxShown + 9, 0},
	} {
		if tc.b.Size != tc.size || tc.b.Shown != tc.shown {
			t.Errorf("%s: %d of %d", name, tc.b.Shown, tc.b.Size)
		}
	}
}

// TestBodies: a body is shown when it is asked for, exactly, and does nothing.
func TestBodies(t *testing.T) {
	w := start(t, everybody)
	w.record("numbers", `{"id":9007199254740993,"big":123456789012345678901234567890,"f":1.10}`)
	w.record("hostile", "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x00")
	w.record("bytes", "", func(r *joboncev1.RecordDeliveryRequest) {
		r.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("\x00\xffabc")}
	})
	w.record("none", "", func(r *joboncev1.RecordDeliveryRequest) { r.Body = nil })
	const odd = `a"><b>&\u202e` + "\u202e"
	w.record(odd, "{}", func(r *joboncev1.RecordDeliveryRequest) { r.Event, r.Status, r.Source = odd, odd, odd })

	for id, want := range map[string]string{
		"numbers": `{"id":9007199254740993,"big":123456789012345678901234567890,"f":1.10}`,
		"hostile": "</pre><script>alert(1)</script><img src=x onerror=alert(1)>",
		"bytes":   "00 ff 61 62 63",
		"none":    "There is none.",
	} {
		if r := w.ask("bodies", "/job?id="+id, nil); r.has(want) && id != "none" {
			t.Errorf("%s: the body is shown without being asked for", id)
		}
		r := w.ask("bodies", "/job?id="+id+"&body=1", nil)
		if !r.has(want) {
			t.Errorf("%s: lacks %q", id, want)
		}
		if strings.Contains(r.text, "<script") || strings.Contains(r.text, "<img") || strings.ContainsAny(r.text, "\u202e\x00") {
			t.Errorf("%s: the body is part of the page", id)
		}
	}
	for _, path := range []string{"/jobs", "/jobs?find=a", "/job?id=" + url.QueryEscape(odd)} {
		r := w.ask("admin", path, nil)
		if !strings.Contains(r.text, html.EscapeString(`a"><b>&\u202e`)+`<b class="unseen">U&#43;202E</b>`) {
			t.Errorf("%s: the id is not shown as it is: %s", path, r.text)
		}
	}
	// The id comes back from the form as it is.
	handles := w.ask("admin", "/job?id="+url.QueryEscape(odd), nil).handles()
	if len(handles) != 1 || !strings.HasSuffix(handles[0], ","+odd) {
		t.Errorf("the form has %q", handles)
	}
}
