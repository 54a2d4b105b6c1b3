package payload

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// renderBack is a text by way of BSON; ok is false when the text has to be kept.
func renderBack(text string) (back string, form Form, ok bool) {
	var sink bsonSink
	sink.begin(3, "payload") // stands for the record
	form, err := Walk(text, "payload", 99, &sink)
	if err != nil {
		return "", 0, false
	}
	const before = 1 + len("payload") + 1 // of the length
	doc := sink.out[before+4+before:]
	out, ok := Render([]byte("before"), doc, form, false, len(text))
	back, found := strings.CutPrefix(string(out), "before")
	return back, form, ok && found && back == text
}

// formCases are what each part of a form writes, and what none does.
var formCases = []struct {
	name, text string
	form       Form // -1: the text is kept
}{
	{"compact", `{"a":1,"b":[1,{"c":"d"},[]],"e":{},"f":[true,false,null],"":""}`, 0},
	{"empty", `{}`, 0},
	{"spaced", `{"a": 1, "b": [1, {"c": "d"}, []], "e": {}}`, spaced},
	{"indent 2", "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    {\n      \"c\": \"d\"\n    },\n    []\n  ],\n  \"e\": {}\n}", indented2},
	{"indent 4", "{\n    \"a\": [\n        1\n    ]\n}", indented4},
	{"newline", "{\"a\":1}\n", newline},
	{"indent and newline", "{\n  \"a\": 1\n}\n", indented2 | newline},
	{"plain", `{"a":"ä</>='+` + "`\u2028\x7f" + `😀\\\"\b\f\n\r\t\u0000\u001f"}`, 0},
	{"unicode", `{"\u00e4":"\ud83d\ude00\u2028\uffff"}`, escapedUnicode},
	{"html", `{"\u003ca\u003e":"\u0026"}`, escapedHTML},
	{"lines", `{"a":"€ † \u2028\u2029"}`, escapedLines},
	{"slash", `{"a":"https:\/\/example.com\/"}`, escapedSlash},
	{"apostrophe", `{"a":"it\u0027s =+"}`, escapedApostrophe},
	{"equals", `{"a":"'\u003d"}`, escapedEquals},
	{"quotes", `{"a":"\u0022\u002b\u0060"}`, escapedQuotes},
	{"upper case", `{"a":"\u00FC\u003C\u001F"}`, escapedUnicode | escapedHTML | upperHex},
	{"integers", `{"a":[0,-1,9223372036854775807,-9223372036854775808]}`, 0},
	{"doubles", `{"a":[0.0,-0.0,1.0,-12.5,0.1,0.0001,9999999999999998.0,1234567.891,0.30000000000000004]}`, 0},
	{"crlf", "{\r\n  \"a\": 1\r\n}", -1},
	{"tabs", "{\n\t\"a\": 1\n}", -1},
	{"space behind", `{"a":1} `, -1},
	{"two newlines", "{\"a\":1}\n\n", -1},
	{"space before a colon", `{"a" : 1}`, -1},
	{"both spacings", `{"a": 1,"b":2}`, -1},
	{"both spellings", `{"a":"\u00e4ä"}`, -1},
	{"both cases", `{"a":"\u00fc\u00FC"}`, -1},
	{"one case twice", `{"a":"\u00fC"}`, -1},
	{"needless escape", `{"\u0061":1}`, -1},
	{"long control", `{"a":"\u000a"}`, -1},
	{"slash in hex", `{"a":"\u002f"}`, -1},
	{"minus zero", `{"a":-0}`, -1},
	{"trailing zero", `{"a":1.50}`, -1},
	{"exponent", `{"a":1e5}`, -1},
	{"large", `{"a":10000000000000000.0}`, -1},
	{"small", `{"a":0.00001}`, -1},
	{"overflow", `{"a":1e400}`, -1},
	{"beyond int64", `{"a":9223372036854775808}`, -1},
	{"long number", `{"a":0.` + strings.Repeat("1", 4000) + `}`, -1},
	{"duplicate key", `{"a":1,"a":2}`, -1},
	{"NUL in a key", `{"a\u0000":1}`, -1},
	{"lone surrogate", `{"a":"\ud800"}`, -1},
	{"array", `[1]`, -1},
	{"deepest", `{"a":` + strings.Repeat("[", 98) + strings.Repeat("]", 98) + `}`, 0},
	{"too deep", `{"a":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`, -1},
	{"deep, indented", deepIndented(98), indented4},
}

func TestForms(t *testing.T) {
	for _, c := range formCases {
		t.Run(c.name, func(t *testing.T) {
			back, form, ok := renderBack(c.text)
			if ok != (c.form >= 0) || ok && form != c.form {
				t.Errorf("%q\n got %q, form %b, %t\nwant form %b", c.text, back, form, ok, c.form)
			}
		})
	}
}

// deepIndented nests objects, each on lines of its own.
func deepIndented(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString("{\n" + strings.Repeat("    ", i+1) + `"a": `)
	}
	b.WriteString("{}")
	for i := range depth {
		b.WriteString("\n" + strings.Repeat("    ", depth-1-i) + "}")
	}
	return b.String()
}

// TestFormNumbers holds the forms to the numbers that are stored.
func TestFormNumbers(t *testing.T) {
	for text, want := range map[string]Form{
		`{"a": "\u00FC \u003C \u2028 \/ \u0027 \u003D \u0022"}` + "\n": 0b111_1101_1101,
		"{\n  \"a\": \"\\u2028\"\n}":                                   0b10_0010, "{\n    \"a\": 1\n}": 0b11,
	} {
		if _, form, ok := renderBack(text); !ok || form != want {
			t.Errorf("%q: form %b, %t, want %b", text, form, ok, want)
		}
	}
	if MaxForm != 2047 {
		t.Errorf("the largest form is %d", MaxForm)
	}
}

// TestRenderIntegers: what drivers of other languages make of the numbers still gives the text.
func TestRenderIntegers(t *testing.T) {
	var sink bsonSink
	sink.begin(3, "")
	sink.out = append(sink.out, 16, 'a', 0, 5, 0, 0, 0) // int32
	sink.Double("b", 5e9)
	sink.Double("c", -9007199254740991)
	sink.Double("d", 1<<62)
	sink.Double("e", 0.5)
	sink.end()
	const want = `{"a":5,"b":5000000000,"c":-9007199254740991,"d":4611686018427387904,"e":0.5}`
	if out, ok := Render(nil, sink.out[2:], 0, true, len(want)); !ok || string(out) != want {
		t.Errorf("%s, %t", out, ok)
	}
	if out, ok := Render(nil, sink.out[2:], 0, true, len(want)-1); ok {
		t.Errorf("%s, longer than it may be", out)
	}
}

// TestRenderOther: what no body became is refused, and so is what is no document.
func TestRenderOther(t *testing.T) {
	var good bsonSink
	if _, err := Walk(`{"a":{"b":["c",1,2.5,true,null]}}`, "", 99, &good); err != nil {
		t.Fatal(err)
	}
	doc := good.out[2:]
	if _, ok := Render(nil, doc, 0, false, 100); !ok {
		t.Fatal("the document itself is refused")
	}
	for i := range doc {
		for _, c := range []byte{0, 1, 2, 3, 7, 0x7f, 0xff} {
			other := append([]byte(nil), doc...)
			other[i] = c
			Render(nil, other, 0, false, 100) // must not panic
			Render(nil, other[:i], MaxForm, true, 100)
		}
	}
	for name, f := range map[string]float64{"NaN": math.NaN(), "infinity": math.Inf(-1), "small": 1e-300, "large": 1e300} {
		var s bsonSink
		s.begin(3, "")
		s.Double("a", f)
		s.end()
		if out, ok := Render(nil, s.out[2:], 0, true, 1000); ok {
			t.Errorf("%s is %s", name, out)
		}
	}
}

// TestRenderRandom: whatever is written in a form is read back, over many random values and every form.
func TestRenderRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for form := range MaxForm + 1 {
		var sink bsonSink
		if _, err := Walk(randomObject(rnd, 3), "", 99, &sink); err != nil {
			t.Fatal(err)
		}
		out, ok := Render(nil, sink.out[2:], form, false, 1<<20)
		if !ok || !isJSON(string(out)) {
			t.Fatalf("form %b: %q, %t", form, out, ok)
		}
		checkWalk(t, string(out), 99)
		if back, _, ok := renderBack(string(out)); !ok {
			t.Fatalf("form %b: %q\nbecame %q", form, out, back)
		}
	}
}

const randomChars = "abc \"\\/<>&='+`\x00\n\x1f\x7fäßÿ€†\u2028\u2029\ufeff\uffff😀"

func randomObject(rnd *rand.Rand, depth int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 1 + rnd.IntN(4) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(randomString(rnd, strconv.Itoa(i)))
		b.WriteByte(':')
		b.WriteString(randomValue(rnd, depth-1))
	}
	b.WriteByte('}')
	return b.String()
}

func randomValue(rnd *rand.Rand, depth int) string {
	if depth > 0 && rnd.IntN(2) == 0 {
		if rnd.IntN(2) == 0 {
			return "[" + randomValue(rnd, depth-1) + "," + randomValue(rnd, depth-1) + "]"
		}
		return randomObject(rnd, depth)
	}
	switch rnd.IntN(5) {
	case 0:
		return strconv.FormatInt(int64(rnd.Uint64()), 10)
	case 1:
		return strconv.FormatFloat(float64(rnd.IntN(1e6))+(0.1+rnd.Float64())/2, 'f', -1, 64)
	case 2:
		return [...]string{"true", "false", "null", "{}", "[]", "0.0", "-3.0"}[rnd.IntN(7)]
	}
	return randomString(rnd, "")
}

// randomString is a string that begins with a prefix, so that keys differ. No key holds a NUL.
func randomString(rnd *rand.Rand, prefix string) string {
	chars := []rune(randomChars)
	text := prefix
	for range rnd.IntN(20) {
		if c := chars[rnd.IntN(len(chars))]; c != 0 || prefix == "" {
			text += string(c)
		}
	}
	return quote(text)
}

// quote writes a string with all of it escaped.
func quote(s string) string {
	r := renderer{digits: "0123456789abcdef", escaped: always | escapedUnicode}
	r.string([]byte(s))
	return string(r.out)
}
