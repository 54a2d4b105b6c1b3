package payload

import (
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// string reads a quoted string, from its opening quote to behind its closing
// one. Eight bytes at a time: bodies consist of strings more than of anything
// else.
func (s *Scanner) string(kind Kind) (Token, error) {
	text := s.text
	start := s.pos + 1
	i := start
	escaped := false
	var seen uint64 // all bytes or-ed: shows whether any is beyond ASCII
	for {
		// Find the next quote, backslash or control character.
		for i+8 <= len(text) {
			word := load(text[i : i+8])
			stop := special(word)
			if stop != 0 {
				first := stop & -stop
				seen |= word & (first - 1)
				i += bits.TrailingZeros64(first) / 8
				break
			}
			seen |= word
			i += 8
		}
		for i < len(text) && text[i] != '"' && text[i] != '\\' && text[i] >= ' ' {
			seen |= uint64(text[i])
			i++
		}
		if i == len(text) {
			return s.failAt(i, "")
		}

		switch text[i] {
		case '"':
			raw := text[start:i]
			if seen&highBits != 0 && !utf8.ValidString(raw) {
				return s.failAt(start-1, "invalid UTF-8 in a string")
			}
			s.pos = i + 1
			return Token{Kind: kind, escaped: escaped, raw: raw}, nil
		case '\\':
			size := escapeSize(text[i:])
			if size == 0 {
				return s.failAt(i, "malformed escape in a string")
			}
			escaped = true
			i += size
		default:
			return s.failAt(i, "control character in a string")
		}
	}
}

// load reads eight bytes, the first one lowest. The compiler makes one load of
// it.
func load(b string) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// special has the high bit of a byte set where word holds a quote, a backslash
// or a control character. Only the lowest bit set is to be trusted: the borrow
// of a subtraction may set bits above it, never below.
func special(word uint64) uint64 {
	quote := word ^ '"'*lowBits
	slash := word ^ '\\'*lowBits
	found := (quote-lowBits)&^quote | (slash-lowBits)&^slash | (word-' '*lowBits)&^word
	return found & highBits
}

// escapeSize is the length of the escape that text begins with, zero when it
// is malformed.
func escapeSize(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(text) >= 6 && isHex(text[2]) && isHex(text[3]) && isHex(text[4]) && isHex(text[5]) {
			return 6
		}
	}
	return 0
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// unescape resolves the escapes of a string that the scanner has accepted, and
// gives the parts of a form that would write them. ok is false when it meets a
// surrogate without its other half.
func unescape(raw string) (s string, form Form, ok bool) {
	var out strings.Builder
	out.Grow(len(raw))
	for {
		i := strings.IndexByte(raw, '\\')
		if i < 0 {
			out.WriteString(raw)
			return out.String(), form, true
		}
		out.WriteString(raw[:i])
		c := raw[i+1]
		if c != 'u' {
			if c == '/' {
				form |= escapedSlash
			}
			out.WriteByte(plain(c))
			raw = raw[i+2:]
			continue
		}
		r := hex4(raw[i+2:])
		form |= escapeOf(r, raw[i+2:])
		raw = raw[i+6:]
		if utf16.IsSurrogate(r) {
			if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
				return "", 0, false
			}
			r = utf16.DecodeRune(r, hex4(raw[2:]))
			if r == utf8.RuneError {
				return "", 0, false
			}
			raw = raw[6:]
		}
		out.WriteRune(r)
	}
}

// plain is the character that a one-letter escape stands for.
func plain(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// hex4 reads four hexadecimal digits that the scanner has accepted.
func hex4(s string) rune {
	var r rune
	for i := range 4 {
		c := s[i]
		if c <= '9' {
			r = r<<4 | rune(c-'0')
		} else {
			r = r<<4 | rune(c|0x20-'a'+10)
		}
	}
	return r
}
