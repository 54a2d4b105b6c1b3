package ui

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// span is a piece of text. A hidden one stands for characters that would not be seen, or would change how others are.
type span struct {
	Text   string
	Hidden bool
}

// unseen are characters that show nothing or change the order of others, beside controls.
var unseen = []*unicode.RangeTable{unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Noncharacter_Code_Point, unicode.Other_Default_Ignorable_Code_Point}

// visible splits a text into spans. Line breaks and tabs stay as they are.
func visible(s string) []span {
	spans, _ := split(s, len(s))
	return spans
}

// split makes spans of a text until it would need more hidden ones than most. It also returns how much of the text they are.
func split(s string, most int) (spans []span, n int) {
	var hidden []string
	start := 0 // of what is seen
	flush := func(end int) {
		if start < end {
			spans = append(spans, span{Text: s[start:end]})
		}
		if len(hidden) > 0 {
			spans = append(spans, span{strings.Join(hidden, " "), true})
			hidden = nil
		}
	}
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		name := shown(r, s[i:i+size])
		switch {
		case name != "" && len(hidden) == 0 && most == 0:
			flush(i)
			return spans, i
		case name != "":
			if len(hidden) == 0 {
				most--
				flush(i)
			}
			hidden, start = append(hidden, name), i+size
		case len(hidden) > 0:
			flush(start)
		}
		i += size
	}
	flush(len(s))
	return spans, len(s)
}

// shown is how a character is shown that is not seen by itself; empty for all others.
func shown(r rune, raw string) string {
	switch {
	case r == '\n' || r == '\t':
		return ""
	case r == utf8.RuneError && len(raw) == 1:
		return fmt.Sprintf("\\x%02X", raw[0])
	case r >= ' ' && r < 0x7f:
		return ""
	case unicode.IsControl(r), unicode.In(r, unseen...), unicode.Is(unicode.Zs, r):
		return fmt.Sprintf("U+%04X", r)
	}
	return ""
}

// plain is a text for where there are no spans, such as the title: what is not seen stands in brackets.
func plain(s string) string {
	var b strings.Builder
	for _, part := range visible(s) {
		if part.Hidden {
			part.Text = "[" + part.Text + "]"
		}
		b.WriteString(part.Text)
	}
	return b.String()
}

// What is shown of a body. A browser is slow with many marked places.
const (
	maxShown      = 1 << 20
	maxShownBytes = 64 << 10
	maxMarked     = 10_000
)

// body is a body as it is shown.
type body struct {
	// Spans has at most maxShown bytes of text and maxMarked hidden spans, Dump at most maxShownBytes of bytes.
	Spans []span
	Dump  string
	// Size is that of all, Shown how much of it is shown; both in bytes.
	Size, Shown int
}

// showText shows a body that is text, as it was received.
func showText(s string) *body {
	cut := len(s)
	if cut > maxShown {
		for cut = maxShown; cut > 0 && !utf8.RuneStart(s[cut]); cut-- {
		}
	}
	spans, shown := split(s[:cut], maxMarked)
	return &body{Spans: spans, Size: len(s), Shown: shown}
}

// showBytes shows a body that was recorded as bytes.
func showBytes(b []byte) *body {
	cut := min(len(b), maxShownBytes)
	return &body{Dump: hex.Dump(b[:cut]), Size: len(b), Shown: cut}
}

// clock is the time at which a view is made.
type clock time.Time

// moment is a time, as it is seen from another one.
type moment struct{ at, now time.Time }

// When is a time as the view shows it; nil for none.
func (c clock) When(t *timestamppb.Timestamp) *moment {
	if t == nil {
		return nil
	}
	return &moment{t.AsTime(), time.Time(c)}
}

// Machine is the time for machines, Stamp for people, in UTC.
func (m *moment) Machine() string { return m.at.Format(time.RFC3339Nano) }
func (m *moment) Stamp() string   { return m.at.Format("2006-01-02 15:04:05") }

// Ago says how far off it is, such as "5 min ago" and "in 2 h", without what is left of the unit.
func (m *moment) Ago() string {
	form, off := "%d %s ago", m.now.Sub(m.at)
	if off < 0 {
		form, off = "in %d %s", -off
	}
	switch {
	case off < time.Second:
		return "now"
	case off < time.Minute:
		return fmt.Sprintf(form, off/time.Second, "s")
	case off < time.Hour:
		return fmt.Sprintf(form, off/time.Minute, "min")
	case off < 48*time.Hour:
		return fmt.Sprintf(form, off/time.Hour, "h")
	}
	return fmt.Sprintf(form, off/(24*time.Hour), "days")
}
