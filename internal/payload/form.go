package payload

// Form numbers how a text is written: its white space, a newline at its end,
// and which characters are escaped that need not be. It is stored beside a
// document instead of the text, so a number never changes its meaning. Numbers
// beyond those of this version are of a newer one.
type Form int32

// The parts of a Form. Between members and around colons there is nothing, or
// what one of the first three says.
const (
	spaced    Form = 1 // a space behind commas and colons
	indented2 Form = 2 // a line for each member and element
	indented4 Form = 3
	spacing   Form = 3

	newline Form = 1 << 2 // a newline at the end

	escapedUnicode    Form = 1 << 3  // all beyond ASCII
	escapedHTML       Form = 1 << 4  // < > &
	escapedLines      Form = 1 << 5  // U+2028 and U+2029
	escapedSlash      Form = 1 << 6  // / as \/
	escapedApostrophe Form = 1 << 7  // '
	escapedEquals     Form = 1 << 8  // =
	escapedQuotes     Form = 1 << 9  // " as \u0022, + and `
	upperHex          Form = 1 << 10 // \u00FC, not \u00fc

	// MaxForm is the largest Form of this version; all from zero on are known.
	MaxForm Form = 1<<11 - 1

	// always marks what every text escapes.
	always Form = 1 << 14
)

// escapeClass says for each byte which part of a form has it escaped; zero for
// one that never is. E2 begins U+2028 and U+2029, among others.
var escapeClass = func() (classes [256]Form) {
	for c := range classes {
		switch {
		case c < ' ':
			classes[c] = always
		case c >= 0x80:
			classes[c] = escapedUnicode
		}
	}
	for chars, class := range map[string]Form{
		`<>&`: escapedHTML, `/`: escapedSlash, `'`: escapedApostrophe, `=`: escapedEquals, "+`": escapedQuotes,
		`"\`: always, "\xe2": escapedUnicode | escapedLines,
	} {
		for i := range len(chars) {
			classes[chars[i]] = class
		}
	}
	return classes
}()

// formOf is the white space of a text whose value begins with an object, and
// whose first key, if it has any, ends with the colon before pos.
func formOf(text string, pos int) Form {
	var f Form
	if text[len(text)-1] == '\n' {
		f = newline
	}
	switch {
	case len(text) > 5 && text[1:6] == "\n    ":
		return f | indented4
	case len(text) > 1 && text[1] == '\n':
		return f | indented2
	case pos < len(text) && text[pos] == ' ':
		return f | spaced
	}
	return f
}

// escapeOf is the part of a form that writes an escape \uXXXX of r.
func escapeOf(r rune, hex string) Form {
	f := escapedUnicode
	switch {
	case r == '"':
		f = escapedQuotes
	case r < 0x80:
		f = escapeClass[r] &^ always
	case r == '\u2028' || r == '\u2029':
		f = escapedLines
	}
	for i := range 4 {
		if 'A' <= hex[i] && hex[i] <= 'F' {
			f |= upperHex
		}
	}
	return f
}
