package payload

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// maxRenderDepth is how many objects and arrays may be open in what is
// rendered: a body that is embedded nests no deeper.
const maxRenderDepth = 100

// The BSON types of what a JSON text becomes, and of what drivers rewrite it to.
const (
	bsonDouble  = 0x01
	bsonString  = 0x02
	bsonObject  = 0x03
	bsonArray   = 0x04
	bsonBoolean = 0x08
	bsonNull    = 0x0a
	bsonInt32   = 0x10
	bsonInt64   = 0x12
)

// Render appends the text of a BSON document in a form. ok is false when the
// document holds what no body has become, or the text is longer than max
// bytes; what was appended then is of no use. The text need not be the one that the
// document came from: compare it.
//
// Whole numbers in int32 and int64 are written as digits, whole doubles below
// 1e16 with ".0", other doubles from 1e-4 to 1e16 as the shortest decimal that
// means them. With integers set whole doubles are written as digits too, as
// drivers of other languages make doubles of int64.
func Render(dst, doc []byte, form Form, integers bool, max int) (_ []byte, ok bool) {
	r := renderer{
		out: dst, max: len(dst) + max, integers: integers,
		space: form & spacing, escaped: form&^(spacing|newline|upperHex) | always, digits: "0123456789abcdef",
	}
	if form&upperHex != 0 {
		r.digits = "0123456789ABCDEF"
	}
	ok = r.container(doc, false, 1)
	if form&newline != 0 {
		r.out = append(r.out, '\n')
	}
	return r.out, ok && len(r.out) <= r.max
}

// renderer is the state of one Render.
type renderer struct {
	out      []byte
	max      int
	integers bool
	space    Form   // how members are apart
	escaped  Form   // what is escaped
	digits   string // of escapes
}

// container appends an object or an array. It tells whether that could be done.
func (r *renderer) container(doc []byte, array bool, depth int) bool {
	if len(doc) < 5 || depth > maxRenderDepth {
		return false
	}
	begin, end := byte('{'), byte('}')
	if array {
		begin, end = '[', ']'
	}
	r.out = append(r.out, begin)
	rest, first := doc[4:len(doc)-1], true
	for ; len(rest) > 0; first = false {
		if len(r.out) > r.max {
			return false
		}
		kind := rest[0]
		n := bytes.IndexByte(rest[1:], 0)
		if n < 0 {
			return false
		}
		key := rest[1 : 1+n]
		rest = rest[2+n:]
		if !first {
			r.out = append(r.out, ',')
		}
		r.apart(first, depth)
		if !array {
			r.string(key)
			r.out = append(r.out, ':')
			if r.space != 0 {
				r.out = append(r.out, ' ')
			}
		}
		if n = r.value(kind, rest, depth); n < 0 {
			return false
		}
		rest = rest[n:]
	}
	if !first && r.space >= indented2 {
		r.apart(true, depth-1)
	}
	r.out = append(r.out, end)
	return true
}

// spaces are those of the deepest indent.
var spaces = bytes.Repeat([]byte(" "), 4*maxRenderDepth)

// apart appends what stands before a member, behind the comma if there is one.
func (r *renderer) apart(first bool, depth int) {
	switch {
	case r.space >= indented2:
		r.out = append(r.out, '\n')
		r.out = append(r.out, spaces[:depth*(2*int(r.space)-2)]...)
	case r.space == spaced && !first:
		r.out = append(r.out, ' ')
	}
}

// value appends the value that b begins with, and returns its length in b;
// -1 when it cannot be rendered.
func (r *renderer) value(kind byte, b []byte, depth int) (n int) {
	switch kind {
	case bsonString, bsonObject, bsonArray, bsonInt32:
		if len(b) < 4 {
			return -1
		}
		n = int(int32(binary.LittleEndian.Uint32(b)))
	case bsonDouble, bsonInt64:
		if len(b) < 8 {
			return -1
		}
	}
	switch kind {
	case bsonString:
		if n < 1 || n > len(b)-4 {
			return -1
		}
		r.string(b[4 : 3+n])
		return 4 + n
	case bsonObject, bsonArray:
		if n < 5 || n > len(b) || !r.container(b[:n], kind == bsonArray, depth+1) {
			return -1
		}
		return n
	case bsonInt32:
		r.out = strconv.AppendInt(r.out, int64(n), 10)
		return 4
	case bsonInt64:
		r.out = strconv.AppendInt(r.out, int64(binary.LittleEndian.Uint64(b)), 10)
		return 8
	case bsonDouble:
		if !r.double(math.Float64frombits(binary.LittleEndian.Uint64(b))) {
			return -1
		}
		return 8
	case bsonBoolean:
		if len(b) < 1 {
			return -1
		}
		r.out = strconv.AppendBool(r.out, b[0] != 0)
		return 1
	case bsonNull:
		r.out = append(r.out, "null"...)
		return 0
	}
	return -1
}

func (r *renderer) double(f float64) bool {
	switch size := math.Abs(f); {
	case f == math.Trunc(f) && size < 1e16:
		if r.integers {
			r.out = strconv.AppendInt(r.out, int64(f), 10)
			return true
		}
		r.out = strconv.AppendFloat(r.out, f, 'f', 1, 64)
	case f == math.Trunc(f) && size < 1<<63 && r.integers:
		r.out = strconv.AppendInt(r.out, int64(f), 10)
	case 1e-4 <= size && size < 1e16:
		r.out = strconv.AppendFloat(r.out, f, 'f', -1, 64)
	default:
		return false
	}
	return true
}

// string appends a string in quotes. Most have nothing to escape.
func (r *renderer) string(s []byte) {
	out := append(r.out, '"')
	start := 0 // of what is not appended yet
	for i := 0; ; {
		if r.escaped == always { // eight bytes at a time
			for i+8 <= len(s) {
				if stop := special(binary.LittleEndian.Uint64(s[i:])); stop != 0 {
					i += bits.TrailingZeros64(stop) / 8
					break
				}
				i += 8
			}
		}
		for i < len(s) && escapeClass[s[i]]&r.escaped == 0 {
			i++
		}
		if i == len(s) {
			break
		}
		var n int
		if n = r.plainRune(s[i:]); n == 0 {
			out = append(out, s[start:i]...)
			out, n = r.escape(out, s[i:])
			start = i + n
		}
		i += n
	}
	r.out = append(append(out, s[start:]...), '"')
}

// plainRune is the length of the rune that s begins with, when it stands as it
// is although its first byte may begin one that is escaped; zero otherwise.
func (r *renderer) plainRune(s []byte) int {
	if s[0] < 0x80 || r.escaped&escapedUnicode != 0 {
		return 0
	}
	if len(s) >= 3 && s[1] == 0x80 && s[2]|1 == 0xa9 {
		return 0
	}
	return 1
}

// escape appends the escape of the character that s begins with, and returns
// its length in s.
func (r *renderer) escape(out, s []byte) ([]byte, int) {
	switch c := s[0]; c {
	case '\\':
		return append(out, `\\`...), 1
	case '/':
		return append(out, `\/`...), 1
	case '\n':
		return append(out, `\n`...), 1
	case '\r':
		return append(out, `\r`...), 1
	case '\t':
		return append(out, `\t`...), 1
	case '\b':
		return append(out, `\b`...), 1
	case '\f':
		return append(out, `\f`...), 1
	case '"':
		if r.escaped&escapedQuotes == 0 {
			return append(out, `\"`...), 1
		}
		fallthrough
	default:
		if c < 0x80 {
			return r.hex(out, uint16(c)), 1
		}
	}
	char, n := utf8.DecodeRune(s)
	if char >= 0x10000 {
		char -= 0x10000
		out = r.hex(out, uint16(0xd800+char>>10))
		return r.hex(out, uint16(0xdc00+char&0x3ff)), n
	}
	return r.hex(out, uint16(char)), n
}

func (r *renderer) hex(out []byte, c uint16) []byte {
	return append(out, '\\', 'u', r.digits[c>>12], r.digits[c>>8&15], r.digits[c>>4&15], r.digits[c&15])
}
