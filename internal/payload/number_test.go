package payload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// numberCases hold the kind beside the value, which is an int64, a float64 or
// nil.
var numberCases = []struct {
	raw  string
	want any
}{
	{"0", int64(0)},
	{"7", int64(7)},
	{"-7", int64(-7)},
	{"9007199254740993", int64(9007199254740993)},
	{"9223372036854775807", int64(math.MaxInt64)},
	{"-9223372036854775808", int64(math.MinInt64)},
	{"9223372036854775808", nil},
	{"-9223372036854775809", nil},
	{"18446744073709551615", nil},
	{"18446744073709551617", nil}, // 1 if a uint64 wrapped
	{"100000000000000000000", nil},

	{"-0", math.Copysign(0, -1)},
	{"0.0", 0.0},
	{"-0.0", math.Copysign(0, -1)},
	{"-0e5", math.Copysign(0, -1)},
	{"0e999", 0.0},
	{"0.000e-99999999999999999999", 0.0},

	{"1.0", 1.0},
	{"1E2", 100.0},
	{"1e+2", 100.0},
	{"100e-2", 1.0},
	{"0.1", 0.1},
	{"-12.345", -12.345},
	{"1e15", 1e15},
	{"1e16", 1e16},
	{"1e22", 1e22},
	{"1e23", 1e23},
	{"123456789012345e-20", 123456789012345e-20},
	{"0.30000000000000004", 0.30000000000000004},
	{"0.3000000000000000", 0.3},
	{"9007199254740992.0", 9007199254740992.0},
	{"9007199254740993.0", nil},
	{"0.10000000000000001", nil}, // a tenth again, as a double
	{"0.1000000000000000055511151231257827", nil},
	{"1.2345678901234567890123456789012345678901", nil},
	{"100000000000000000000000000000000.0", 1e32},
	{"0.00000000000000000000000000000000000000000000000001", 1e-50},

	{"1.7976931348623157e308", math.MaxFloat64},
	{"1.7976931348623158e308", nil}, // the largest double, but not its shortest
	{"1.8e308", nil},
	{"1e308", 1e308},
	{"1e309", nil},
	{"1e400", nil},
	{"2.2250738585072014e-308", 2.2250738585072014e-308},
	{"5e-324", 5e-324},
	{"4.9e-324", nil},
	{"2.2250738585072011e-308", nil}, // once hung PHP and Java
	{"2.225073858507201e-308", 2.225073858507201e-308},
	{"1.2345678901234567e-310", nil},
	{"9.9999999999999e-308", 9.9999999999999e-308},
	{"1e-320", 1e-320},
	{"1e-323", 1e-323},
	{"1.1e-323", nil},
	{"2e-324", nil}, // rounds to zero
	{"1e-400", nil},
	{"1e99999999999999999999", nil},
	{"1e-99999999999999999999", nil},
	{"0.0001e4", 1.0},
	{"1000e-3", 1.0},
}

func TestParseNumber(t *testing.T) {
	for _, c := range numberCases {
		kind, i, f := ParseNumber(c.raw)
		var got any
		switch kind {
		case Int64:
			got = i
		case Double:
			got = f
		}
		// By their text, because -0 == 0.
		if fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", c.want, c.want) {
			t.Errorf("ParseNumber(%s) = %v %v, want %v", c.raw, kind, got, c.want)
		}
		checkNumber(t, c.raw)
	}
}

// Any double's shortest form is faithful, and one digit more or less of it is
// judged as math/big judges it.
func TestParseNumberNearShortest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		f := math.Float64frombits(random.Uint64())
		if random.IntN(4) == 0 {
			f = math.Float64frombits(random.Uint64() >> (8 + random.IntN(56))) // tiny
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			continue
		}
		raw := strconv.FormatFloat(f, 'e', -1, 64)
		if kind, _, got := ParseNumber(raw); kind != Double || got != f {
			t.Fatalf("ParseNumber(%s) = %v %v, want %v", raw, kind, got, f)
		}
		for _, digits := range []int{13, 14, 15, 16, 17} {
			checkNumber(t, strconv.FormatFloat(f, 'e', digits, 64))
		}
		short, _ := strconv.ParseFloat(strconv.FormatFloat(random.Float64()*1e6, 'f', random.IntN(12), 64), 64)
		checkNumber(t, strconv.FormatFloat(short, 'f', 14, 64))
	}
}

// Texts of megabytes whose value is ordinary, or is not, in linear time.
func TestParseNumberLong(t *testing.T) {
	const n = 3 << 20
	zeros := strings.Repeat("0", n)
	nines := strings.Repeat("9", n)
	for _, c := range []struct {
		name, raw string
		want      NumberKind
		value     float64
	}{
		{"trailing zeros", "1." + zeros, Double, 1},
		{"leading zeros", "0." + zeros + "1e" + strconv.Itoa(n), Double, 0.1},
		{"many places", "1" + zeros + "e-" + strconv.Itoa(n), Double, 1},
		{"small", "0." + zeros + "1", Unfaithful, 0},
		{"integer", nines, Unfaithful, 0},
		{"decimal", "0." + nines, Unfaithful, 0},
		{"exponent", "1e" + nines, Unfaithful, 0},
		{"negative exponent", "1e-" + nines, Unfaithful, 0},
		{"zero", "0e" + nines, Double, 0},
		{"exponent with zeros", "1e" + zeros + "2", Double, 100},
	} {
		kind, _, f := ParseNumber(c.raw)
		if kind != c.want || f != c.value {
			t.Errorf("%s: got %v %v, want %v %v", c.name, kind, f, c.want, c.value)
		}
	}
}
