package payload

import (
	"errors"
	"fmt"
)

// Kind says what a [Token] is.
type Kind uint8

// The kinds of token. End follows the last token of the text's one value, and
// then every further call of [Scanner.Next].
const (
	End Kind = iota
	BeginObject
	EndObject
	BeginArray
	EndArray
	Key
	String
	Number
	True
	False
	Null
)

// String names the kind, for test failures.
func (k Kind) String() string {
	names := [...]string{
		"End", "BeginObject", "EndObject", "BeginArray", "EndArray",
		"Key", "String", "Number", "True", "False", "Null",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Token is one piece of a JSON text. Colons and commas are checked and left
// out.
type Token struct {
	Kind Kind

	escaped bool
	raw     string
}

// Raw is the token as it stands in the text: a number's digits, or what stands
// between the quotes of a key or string, escapes untouched. Empty for other
// kinds.
func (t Token) Raw() string { return t.raw }

// Text is the value of a key or string. It shares memory with the text unless
// something had to be unescaped. ok is false when the string holds a lone
// surrogate escape such as \ud800: that is JSON, but no UTF-8 string can hold
// it.
func (t Token) Text() (s string, ok bool) {
	s, _, ok = t.text()
	return s, ok
}

// text is Text, with the parts of a form that would write its escapes.
func (t Token) text() (s string, form Form, ok bool) {
	if !t.escaped {
		return t.raw, 0, true
	}
	return unescape(t.raw)
}

// ErrNotJSON is what every error of a [Scanner] matches with [errors.Is].
var ErrNotJSON = errors.New("not JSON")

// SyntaxError says where a text stops being JSON. It never quotes the text: a
// body may hold what must not reach a log.
type SyntaxError struct {
	// Offset counts bytes from the start of the text to the fault, or to the
	// start of the string or number that holds it.
	Offset int
	reason string
}

// Error describes the fault without quoting the text.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("not JSON: %s at byte %d", e.reason, e.Offset)
}

// Is makes errors.Is(err, ErrNotJSON) true.
func (e *SyntaxError) Is(target error) bool { return target == ErrNotJSON }

// state is what the scanner takes next.
type state uint8

const (
	wantValue        state = iota // a value and nothing else
	wantFirstElement              // just after [: a value or ]
	wantFirstKey                  // just after {: a key or }
	afterValue                    // a comma, the container's end, or the text's
)

// Scanner reads a JSON text token by token. It allocates nothing for texts
// nested at most 64 deep; beyond that, one bit a level.
type Scanner struct {
	text  string
	pos   int
	start int // of the latest token
	err   error
	state state
	depth int
	// The open containers, one bit each, set for an object. The innermost is the
	// lowest bit of open; whole words of outer ones wait in outer.
	open  uint64
	outer []uint64
}

// NewScanner starts reading a text. The text is not copied: tokens are
// substrings of it.
func NewScanner(text string) *Scanner { return &Scanner{text: text} }

// Depth is how many objects and arrays are open after the latest token.
func (s *Scanner) Depth() int { return s.depth }

// Next reads one token. Every error is a [*SyntaxError] and final: later calls
// repeat it.
func (s *Scanner) Next() (Token, error) {
	if s.err != nil {
		return Token{}, s.err
	}
	c := s.skipSpace()
	switch s.state {
	case afterValue:
		if s.depth == 0 {
			if s.pos < len(s.text) {
				return s.fail("something after the value")
			}
			return Token{Kind: End}, nil
		}
		inObject := s.open&1 != 0
		switch {
		case c == ',' && inObject:
			s.pos++
			return s.key(s.skipSpace())
		case c == ',':
			s.pos++
			c = s.skipSpace()
		case c == '}' && inObject:
			return s.close(EndObject)
		case c == ']' && !inObject:
			return s.close(EndArray)
		default:
			return s.fail("no comma or end after a value")
		}
	case wantFirstKey:
		if c == '}' {
			return s.close(EndObject)
		}
		return s.key(c)
	case wantFirstElement:
		if c == ']' {
			return s.close(EndArray)
		}
	}
	return s.value(c)
}

func (s *Scanner) value(c byte) (Token, error) {
	s.start = s.pos
	switch c {
	case '"':
		s.state = afterValue
		return s.string(String)
	case '{':
		s.push(1)
		s.state = wantFirstKey
		return Token{Kind: BeginObject}, nil
	case '[':
		s.push(0)
		s.state = wantFirstElement
		return Token{Kind: BeginArray}, nil
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		s.state = afterValue
		return s.number()
	case 't':
		return s.word("true", True)
	case 'f':
		return s.word("false", False)
	case 'n':
		return s.word("null", Null)
	}
	return s.fail("no value")
}

// key reads a member's name and the colon behind it.
func (s *Scanner) key(c byte) (Token, error) {
	s.start = s.pos
	if c != '"' {
		return s.fail("no key")
	}
	tok, err := s.string(Key)
	if err != nil {
		return tok, err
	}
	if s.skipSpace() != ':' {
		return s.fail("no colon after a key")
	}
	s.pos++
	s.state = wantValue
	return tok, nil
}

func (s *Scanner) word(word string, kind Kind) (Token, error) {
	end := s.pos + len(word)
	if end > len(s.text) || s.text[s.pos:end] != word {
		return s.fail("no value")
	}
	s.pos = end
	s.state = afterValue
	return Token{Kind: kind}, nil
}

func (s *Scanner) push(object uint64) {
	if s.depth > 0 && s.depth%64 == 0 {
		s.outer = append(s.outer, s.open)
	}
	s.open = s.open<<1 | object
	s.depth++
	s.pos++
}

func (s *Scanner) close(kind Kind) (Token, error) {
	s.start = s.pos
	s.pos++
	s.depth--
	s.open >>= 1
	if s.depth > 0 && s.depth%64 == 0 {
		last := len(s.outer) - 1
		s.open = s.outer[last]
		s.outer = s.outer[:last]
	}
	s.state = afterValue
	return Token{Kind: kind}, nil
}

// skipSpace moves to the next byte that is not white space and returns it, or
// zero at the end of the text. A zero byte in the text needs no care: no token
// starts with one.
func (s *Scanner) skipSpace() byte {
	for i := s.pos; i < len(s.text); i++ {
		c := s.text[i]
		if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			s.pos = i
			return c
		}
	}
	s.pos = len(s.text)
	return 0
}

func (s *Scanner) fail(reason string) (Token, error) {
	return s.failAt(s.pos, reason)
}

func (s *Scanner) failAt(offset int, reason string) (Token, error) {
	if offset >= len(s.text) {
		reason = "unexpected end"
	}
	s.err = &SyntaxError{Offset: offset, reason: reason}
	return Token{}, s.err
}
