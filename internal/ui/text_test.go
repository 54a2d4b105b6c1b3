package ui

import (
	"html"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain ä 日本 🙂":         "plain ä 日本 🙂",
		"a\tb\nc":              "a\tb\nc",
		"a\x00b":               "a[U+0000]b",
		"\x1b[31m\r":           "[U+001B][31m[U+000D]",
		"x\x7f":                "x[U+007F]",
		"\u202eabc\u2066":      "[U+202E]abc[U+2066]",
		"a\u200b\ufeffb":       "a[U+200B U+FEFF]b",
		"\u2028\u00a0\u3164":   "[U+2028 U+00A0 U+3164]",
		"a\xffb":               "a[\\xFF]b",
		"\U000e0041":           "[U+E0041]",
		"\u0085":               "[U+0085]",
		"9007199254740993":     "9007199254740993",
		"<script>&\"'":         "<script>&\"'",
		"مرحبا":                "مرحبا",
		"\u061c\u200e\u200fab": "[U+061C U+200E U+200F]ab",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
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
		"text":              {showText("ab"), 2, 2},
		"as long":           {showText(strings.Repeat("é", maxShown/2)), maxShown, maxShown},
		"too long":          {showText("a" + strings.Repeat("é", maxShown/2)), maxShown + 1, maxShown - 1},
		"bytes":             {showBytes(make([]byte, maxShownBytes+1)), maxShownBytes + 1, maxShownBytes},
		"many marked":       {showText(strings.Repeat("a\x00", maxMarked) + "ab\x00c"), 2*maxMarked + 4, 2*maxMarked + 2},
		"marked to the end": {showText(strings.Repeat("a\x00", maxMarked) + "ab"), 2*maxMarked + 2, 2*maxMarked + 2},
		"no characters":     {showText(strings.Repeat("\x80", maxShown+9)), maxShown + 9, 0},
	} {
		if tc.b.Size != tc.size || tc.b.Shown != tc.shown {
			t.Errorf("%s: %d of %d", name, tc.b.Shown, tc.b.Size)
		}
		if len(tc.b.Spans) > 2*maxMarked+1 {
			t.Errorf("%s: %d spans", name, len(tc.b.Spans))
		}
	}
}

func TestAgo(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for off, want := range map[time.Duration]string{
		0: "now", 999 * time.Millisecond: "now", -time.Millisecond: "now", time.Second: "1 s ago", -59 * time.Second: "in 59 s", time.Minute: "1 min ago",
		time.Hour - 1: "59 min ago", 47*time.Hour + 59*time.Minute: "47 h ago", -48 * time.Hour: "in 2 days", 400 * 24 * time.Hour: "400 days ago",
	} {
		if got := clock(now).When(timestamppb.New(now.Add(-off))).Ago(); got != want {
			t.Errorf("%v: %q, want %q", off, got, want)
		}
	}
	if m := clock(now).When(timestamppb.New(now)); m.Stamp() != "2026-11-30 12:00:00" || m.Machine() != "2026-11-30T12:00:00Z" || clock(now).When(nil) != nil {
		t.Errorf("%s, %s", m.Stamp(), m.Machine())
	}
}

// TestBodies: a body is shown when it is asked for, which is logged, exactly, and does nothing.
func TestBodies(t *testing.T) { eachStore(t, testBodies) }

func testBodies(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	const numbers = `{"id":9007199254740993,"big":123456789012345678901234567890,"f":1.10}`
	w.record("numbers", numbers)
	w.record("document", numbers, func(r *joboncev1.RecordDeliveryRequest) { r.OpaquePayload = false })
	w.record("hostile", "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x00")
	w.record("bytes", "", func(r *joboncev1.RecordDeliveryRequest) {
		r.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: []byte("\x00\xffabc")}
	})
	w.record("none", "", func(r *joboncev1.RecordDeliveryRequest) { r.Body = nil })
	for id, want := range map[string]string{
		"numbers": numbers, "document": numbers,
		"hostile": "</pre><script>alert(1)</script><img src=x onerror=alert(1)>",
		"bytes":   "00 ff 61 62 63",
		"none":    "There is none.",
	} {
		if r := w.ask("bodies", "/job?id="+id, nil); r.has(want) && id != "none" {
			t.Errorf("%s: the body is shown without being asked for", id)
		}
		line := "msg=audit caller=bodies method=GetJob job_id=" + id + " "
		if strings.Contains(w.log.String(), line) {
			t.Errorf("%s: that it was shown is logged before it was", id)
		}
		r := w.ask("bodies", "/job?id="+id+"&body=1", nil)
		if !r.has(want) {
			t.Errorf("%s: lacks %q", id, want)
		}
		if log := w.log.String(); strings.Count(log, line) != 1 || strings.Contains(log, "9007199254740993") {
			t.Errorf("%s: the log has %s", id, log)
		}
		if strings.Contains(r.text, "<script") || strings.Contains(r.text, "<img src=x") || strings.ContainsAny(r.text, "\u202e\x00") {
			t.Errorf("%s: the body is part of the page", id)
		}
	}
}

// hostile are ids, and other texts, that are something else where they are not taken for text.
var hostile = []string{
	`a"><b>&\u202e` + "\u202e", `<script>alert(1)</script>`, `javascript:alert(1)`, `//evil.example/`, `/jobs`, `..`, `../job?id=x`, `?id=x`, `#body`, `a&body=1`,
	`a;b`, `a,b`, `a+b c`, ` a `, `%2e%2e%2f`, `%`, `%zz`, `100%`, `{{.}}`, `'`, `\`, `a` + strings.Repeat("\u0301", 100), "\u2066x", "é", "null", "{\"a\":1}",
}

// TestHostileTexts: ids that are part of addresses lead to their job and to no other, and no text becomes part of the page.
func TestHostileTexts(t *testing.T) { eachStore(t, testHostileTexts) }

func testHostileTexts(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	for _, text := range hostile {
		w.record(text, "{}", func(r *joboncev1.RecordDeliveryRequest) {
			r.Event, r.Status, r.Source = cut(text, 128), cut(text, 64), cut(text, 64)
		})
		w.work(true, text)
		shown := ""
		for _, part := range visible(text) {
			escaped := strings.ReplaceAll(html.EscapeString(part.Text), "+", "&#43;")
			if part.Hidden {
				escaped = `<b class="unseen">` + escaped + "</b>"
			}
			shown += escaped
		}
		found := w.ask("admin", "/jobs?"+url.Values{"find": {text}}.Encode(), nil)
		_, rest, _ := strings.Cut(found.text, `<th scope="row"><a href="`)
		link, rest, _ := strings.Cut(rest, `"`)
		if !strings.HasPrefix(link, "/job?id=") || !strings.HasPrefix(rest, "><bdi>"+shown+"</bdi></a>") {
			t.Errorf("%q is found as %q%.200s", text, link, rest)
		}
		one := w.ask("admin", html.UnescapeString(link), nil)
		if !strings.Contains(one.text, `<h1 class="id"><bdi>`+shown+`</bdi></h1>`) {
			t.Errorf("%q: its job is not shown: %s\n%.3000s", text, one.Status, one.text)
		}
		for _, r := range []*reply{found, one} {
			if strings.Contains(r.text, "<script") || strings.Contains(r.text, "<b>") || strings.Contains(r.text, `href="javascript`) || strings.Contains(r.text, `href="//`) {
				t.Errorf("%q is part of the page: %s", text, r.text)
			}
		}
		// It comes back from the form as it is, and the way back from there leads to it.
		form := url.Values{"do": {"requeue"}, "job": one.handles(), "back": {html.UnescapeString(link)}}
		confirmed := w.ask("admin", "/confirm", form)
		if h := confirmed.handles(); len(h) != 1 || !strings.HasSuffix(h[0], ","+text) {
			t.Errorf("%q: to be confirmed is %q", text, h)
		}
		_, back, _ := strings.Cut(confirmed.text, `name="back" value="`)
		back, _, _ = strings.Cut(back, `"`)
		if r := w.ask("admin", html.UnescapeString(back), nil); !strings.Contains(r.text, shown) {
			t.Errorf("%q: the way back is %q", text, back)
		}
		if r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": confirmed.handles()}); !r.has("Deleted") {
			t.Errorf("%q: %s", text, r.text)
		}
	}
}

// cut is as much of a text as has at most n bytes.
func cut(s string, n int) string {
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:min(n, len(s))]
}
