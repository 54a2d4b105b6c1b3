package payload

import (
	"math"
	"strconv"
)

// number reads a number, from its sign or first digit to its last digit.
func (s *Scanner) number() (Token, error) {
	text := s.text
	i := s.pos
	if text[i] == '-' {
		i++
	}
	if i < len(text) && text[i] == '0' {
		i++
	} else {
		end := skipDigits(text, i)
		if end == i {
			return s.failAt(i, "no digit in a number")
		}
		i = end
	}
	if i < len(text) && text[i] == '.' {
		end := skipDigits(text, i+1)
		if end == i+1 {
			return s.failAt(end, "no digit after a point")
		}
		i = end
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		end := skipDigits(text, i)
		if end == i {
			return s.failAt(i, "no digit in an exponent")
		}
		i = end
	}
	raw := text[s.pos:i]
	s.pos = i
	return Token{Kind: Number, raw: raw}, nil
}

func skipDigits(text string, i int) int {
	for i < len(text) && '0' <= text[i] && text[i] <= '9' {
		i++
	}
	return i
}

// NumberKind says which BSON type holds a JSON number without changing it.
type NumberKind uint8

const (
	// Unfaithful is a number that an int64 and a double would both change. (BSON
	// has a Decimal128 too; clients that read doubles would not expect it.)
	Unfaithful NumberKind = iota
	// Int64 is a number written without point and exponent that fits an int64.
	Int64
	// Double is a number with a point or an exponent, or minus zero, that a
	// double gives back as written, but for the notation: 1E2 may come back as
	// 100.
	Double
)

// String names the kind, for test failures.
func (k NumberKind) String() string {
	switch k {
	case Int64:
		return "Int64"
	case Double:
		return "Double"
	}
	return "Unfaithful"
}

// maxDigits is the length of the longest shortest decimal of any double: a
// number with more significant digits is not the shortest of any.
const maxDigits = 17

// safeDigits is how many significant digits survive the way into any normal
// double and back.
const safeDigits = 15

// powers are the powers of ten that a double and a uint64 both hold exactly,
// as far as a significand of maxDigits needs them.
var powers = [...]uint64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17,
}

// ParseNumber says how BSON can hold a number and gives the value: i for
// Int64, f for Double. A double is taken if, and only if, its shortest decimal
// denotes exactly the value written: 0.1 is Double although no double is
// exactly a tenth, and 1e400, 1e-400 and 0.1000000000000000055511151231257827
// are Unfaithful. raw is the Raw of a Number token; for other text the result
// means nothing. Linear in the length of raw, exponents included.
func ParseNumber(raw string) (kind NumberKind, i int64, f float64) {
	digits := raw
	negative := raw != "" && raw[0] == '-'
	if negative {
		digits = raw[1:]
	}

	var n uint64 // wraps when there are too many digits; not used then
	pos := 0
	for pos < len(digits) && '0' <= digits[pos] && digits[pos] <= '9' {
		n = n*10 + uint64(digits[pos]-'0')
		pos++
	}
	if pos == len(digits) {
		return integer(negative, n, pos)
	}

	f, ok := double(digits)
	if !ok {
		return Unfaithful, 0, 0
	}
	if negative {
		f = -f
	}
	return Double, 0, f
}

// integer finishes a number that consists of count digits and has no leading
// zeros; up to 19 of them cannot have wrapped n.
func integer(negative bool, n uint64, count int) (NumberKind, int64, float64) {
	switch {
	case negative && n == 0 && count == 1:
		return Double, 0, math.Copysign(0, -1)
	case count > 19:
		return Unfaithful, 0, 0
	case negative && n <= 1<<63:
		return Int64, int64(-n), 0
	case !negative && n < 1<<63:
		return Int64, int64(n), 0
	}
	return Unfaithful, 0, 0
}

// double parses a number without sign. ok is false when no double's shortest
// decimal equals it.
func double(text string) (f float64, ok bool) {
	d, ok := readDecimal(text)
	if !ok {
		return 0, false
	}
	if d.significand == 0 {
		return 0, true
	}
	// Both operands are exact, so the one rounding is the right one.
	if d.digits <= safeDigits && -15 <= d.exponent && d.exponent <= 15 {
		if d.exponent < 0 {
			return float64(d.significand) / float64(powers[-d.exponent]), true
		}
		return float64(d.significand) * float64(powers[d.exponent]), true
	}

	magnitude := d.exponent + int64(d.digits) // 1 for 1 to 9.9, 0 for 0.1 to 0.99
	switch {
	case magnitude < -330 || magnitude > 310:
		return 0, false
	case magnitude < -306:
		return tiny(d)
	}
	f, err := d.float()
	if err != nil {
		return 0, false
	}
	if d.digits <= safeDigits && magnitude <= 300 {
		return f, true
	}
	return f, shortest(f) == d
}

// tiny is double for what may be subnormal. strconv.ParseFloat takes 20 to 40
// microseconds for each of those, so 3 MiB of them would take it ten seconds.
// So only guess, by way of a larger number that it parses fast: a double whose
// shortest decimal is d is the right one however it was found. The three
// roundings on the way add up to less than three steps.
func tiny(d decimal) (f float64, ok bool) {
	d.exponent += 200
	guess, err := d.float()
	if err != nil {
		return 0, false
	}
	guess *= 1e-200
	d.exponent -= 200
	for _, step := range [...]int64{0, 1, -1, 2, -2, 3, -3} {
		bits := int64(math.Float64bits(guess)) + step
		if bits <= 0 {
			continue
		}
		if f = math.Float64frombits(uint64(bits)); shortest(f) == d {
			return f, true
		}
	}
	return 0, false
}

// decimal is significand × 10^exponent. The significand has no trailing zeros,
// so equal values are equal structs.
type decimal struct {
	significand uint64
	digits      int
	exponent    int64
}

// float is the double next to d. d is written anew for it, because the text
// may be long and its exponent absurd while the value is ordinary.
func (d decimal) float() (float64, error) {
	var buf [32]byte
	text := strconv.AppendUint(buf[:0], d.significand, 10)
	text = append(text, 'e')
	text = strconv.AppendInt(text, d.exponent, 10)
	return strconv.ParseFloat(string(text), 64)
}

// shortest is the decimal with the fewest digits that means f and no other
// double. f is positive and finite.
func shortest(f float64) decimal {
	var buf [32]byte
	d, _ := readDecimal(string(strconv.AppendFloat(buf[:0], f, 'e', -1, 64)))
	return d
}

// hugeExponent stands for every larger one. It exceeds any text's length by
// far, so that no run of digits brings the value back into a double's range.
const hugeExponent = 1 << 48

// readDecimal reads a number without sign. ok is false when it has more than
// maxDigits significant digits.
func readDecimal(text string) (d decimal, ok bool) {
	var zeros, fraction int64 // zeros since the last other digit; digits behind the point
	afterPoint := false
	i := 0
	for ; i < len(text) && text[i]|0x20 != 'e'; i++ {
		c := text[i]
		if c == '.' {
			afterPoint = true
			continue
		}
		if afterPoint {
			fraction++
		}
		if c == '0' {
			if d.significand != 0 {
				zeros++
			}
			continue
		}
		if int64(d.digits)+zeros+1 > maxDigits {
			return decimal{}, false
		}
		d.significand = d.significand*powers[zeros+1] + uint64(c-'0')
		d.digits += int(zeros) + 1
		zeros = 0
	}
	if d.significand == 0 {
		return decimal{}, true
	}
	d.exponent = readExponent(text[i:]) - fraction + zeros
	return d, true
}

// readExponent reads what follows the significand: nothing, or e, a sign if
// any, and digits.
func readExponent(text string) int64 {
	var n int64
	negative := false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '-':
			negative = true
		case '0' <= c && c <= '9' && n < hugeExponent:
			n = n*10 + int64(c-'0')
		}
	}
	if negative {
		return -n
	}
	return n
}
