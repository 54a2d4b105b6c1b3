package ui

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
	var spans []span
	var hidden strings.Builder
	start := 0
	flush := func(end int) {
		if start < end {
			spans = append(spans, span{Text: s[start:end]})
		}
	}
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		name := shown(r, s[i:i+size])
		if name == "" {
			if hidden.Len() > 0 {
				spans = append(spans, span{hidden.String(), true})
				hidden.Reset()
				start = i
			}
		} else {
			if hidden.Len() == 0 {
				flush(i)
			}
			hidden.WriteString(name)
			start = i + size
		}
		i += size
	}
	if hidden.Len() > 0 {
		return append(spans, span{hidden.String(), true})
	}
	flush(len(s))
	return spans
}

// shown is how a character is shown that is not seen by itself; empty for all others.
func shown(r rune, raw string) string {
	switch {
	case r == '\n' || r == '\t':
		return ""
	case r == utf8.RuneError && len(raw) == 1:
		return fmt.Sprintf("\\x%02X", raw[0])
	case r < ' ':
		return string('\u2400' + r) // The pictures of control characters.
	case r == 0x7f:
		return "\u2421"
	case r < 0x7f:
		return ""
	case unicode.IsControl(r), unicode.In(r, unseen...), unicode.Is(unicode.Zs, r):
		return fmt.Sprintf("U+%04X", r)
	}
	return ""
}

// What is shown of a body.
const (
	maxShown      = 1 << 20
	maxShownBytes = 64 << 10
)

// body is a body as it is shown.
type body struct {
	// Spans has at most maxShown bytes of text, Dump at most maxShownBytes of bytes.
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
	return &body{Spans: visible(s[:cut]), Size: len(s), Shown: cut}
}

// showBytes shows a body that was recorded as bytes.
func showBytes(b []byte) *body {
	cut := min(len(b), maxShownBytes)
	return &body{Dump: hex.Dump(b[:cut]), Size: len(b), Shown: cut}
}
