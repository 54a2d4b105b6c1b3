package payload

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// readAll returns the tokens up to and without End.
func readAll(text string) ([]Token, error) {
	s := NewScanner(text)
	var tokens []Token
	for {
		tok, err := s.Next()
		if err != nil || tok.Kind == End {
			return tokens, err
		}
		tokens = append(tokens, tok)
	}
}

func TestScannerTokens(t *testing.T) {
	const text = ` { "a" : [ 1 , -2.5e+3 , "x\ty" , true , false , null , { } , [ ] ] , "\u0062" : "" } `
	want := []struct {
		kind  Kind
		raw   string
		text  string
		depth int
	}{
		{BeginObject, "", "", 1},
		{Key, "a", "a", 1},
		{BeginArray, "", "", 2},
		{Number, "1", "1", 2},
		{Number, "-2.5e+3", "-2.5e+3", 2},
		{String, `x\ty`, "x\ty", 2},
		{True, "", "", 2},
		{False, "", "", 2},
		{Null, "", "", 2},
		{BeginObject, "", "", 3},
		{EndObject, "", "", 2},
		{BeginArray, "", "", 3},
		{EndArray, "", "", 2},
		{EndArray, "", "", 1},
		{Key, `\u0062`, "b", 1},
		{String, "", "", 1},
		{EndObject, "", "", 0},
		{End, "", "", 0},
		{End, "", "", 0}, // and so on
	}
	s := NewScanner(text)
	for i, w := range want {
		tok, err := s.Next()
		if err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
		value, ok := tok.Text()
		if tok.Kind != w.kind || tok.Raw() != w.raw || value != w.text || !ok || s.Depth() != w.depth {
			t.Errorf("token %d: got %v %q %q %v at depth %d, want %+v", i, tok.Kind, tok.Raw(), value, ok, s.Depth(), w)
		}
	}
}

func TestScannerErrors(t *testing.T) {
	for _, c := range []struct {
		text   string
		offset int
	}{
		{"", 0},
		{" \n", 2},
		{"\ufeff{}", 0},
		{"job_id=x", 0},
		{"{} x", 3},
		{"{}\x00", 2},
		{"\x00{}", 0},
		{"{", 1},
		{"[", 1},
		{"[1", 2},
		{"[1,", 3},
		{"[1,]", 3},
		{"[,1]", 1},
		{"[1 2]", 3},
		{"[}", 1},
		{"{]", 1},
		{"[1}", 2},
		{`{"a":1]`, 6},
		{`{"a":1,}`, 7},
		{`{"a"}`, 4},
		{`{"a":}`, 5},
		{`{"a",1}`, 4},
		{`{1:1}`, 1},
		{`{"a":1 "b":2}`, 7},
		{"tru", 0},
		{"truE", 0},
		{"true1", 4},
		{"Null", 0},
		{"NaN", 0},
		{"-Infinity", 1},
		{"'a'", 0},
		{"01", 1},
		{"-", 1},
		{"+1", 0},
		{".5", 0},
		{"1.", 2},
		{"1.e5", 2},
		{"1e", 2},
		{"1e+", 3},
		{"1e+x", 3},
		{"0x10", 1},
		{`"abc`, 4},
		{`"abc\`, 4},
		{`"abc\"`, 6},
		{`"\a"`, 1},
		{`"\u12"`, 1},
		{`"\ug234"`, 1},
		{`"\u1g34"`, 1},
		{`"\u12g4"`, 1},
		{`"\u123g"`, 1},
		{`"\U0041"`, 1},
		{"\"a\nb\"", 2},
		{"\"12345678\x1f\"", 9},
		{"\"\x7f\xff\"", 0},
		{"\"12345678\xc3\"", 0},
		{"\"\xed\xa0\x80\"", 0}, // a surrogate in bytes
		{"\"\xc0\x80\"", 0},     // an overlong NUL
		{"\"\xf4\x90\x80\x80\"", 0},
		{"[1]\u00a0", 3}, // white space in Unicode, not in JSON
		{"/**/1", 0},
	} {
		tokens, err := readAll(c.text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !errors.Is(err, ErrNotJSON) || errors.Is(err, ErrUnfaithful) {
			t.Errorf("%q: got tokens %v and error %v", c.text, tokens, err)
			continue
		}
		if syntax.Offset != c.offset {
			t.Errorf("%q: got %v, want offset %d", c.text, err, c.offset)
		}
		if isJSON(c.text) {
			t.Errorf("%q: encoding/json takes it", c.text)
		}
	}
}

func TestScannerErrorIsFinalAndQuotesNothing(t *testing.T) {
	s := NewScanner(`{"secret":secret}`)
	for {
		_, err := s.Next()
		if err == nil {
			continue
		}
		if _, again := s.Next(); again != err {
			t.Errorf("got %v, then %v", err, again)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error quotes the text: %v", err)
		}
		return
	}
}

func TestTokenText(t *testing.T) {
	const lone = "(lone)"
	for raw, want := range map[string]string{
		``:                            "",
		`plain`:                       "plain",
		`Köln 😀`:                      "Köln 😀",
		"\u007f":                      "\u007f",
		`\"\\\/\b\f\n\r\t`:            "\"\\/\b\f\n\r\t",
		`a\u0000b`:                    "a\x00b",
		`\u00e4\u20AC`:                "ä€",
		`\uFFFD\uffff`:                "\ufffd\uffff",
		`\ud83d\ude00`:                "😀",
		`\uDBFF\uDFFF!`:               "\U0010ffff!",
		`1234567\n12345678\n`:         "1234567\n12345678\n",
		`\ud800`:                      lone,
		`\udc00`:                      lone,
		`\ud800x`:                     lone,
		`\ud800\n`:                    lone,
		`\ud800\\udc00`:               lone,
		`\ud800\ndc00`:                lone,
		`\ud800\u0041`:                lone,
		`\ud800\ud800\udc00`:          lone,
		`\udc00\ud800`:                lone,
		`\ud83d\ude00\ud83d`:          lone,
		`\\ud800`:                     `\ud800`,
		strings.Repeat(`\u0061`, 100): strings.Repeat("a", 100),
	} {
		tokens, err := readAll(`["` + raw + `"]`)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got, ok := tokens[1].Text()
		if ok != (want != lone) || ok && got != want {
			t.Errorf("%s: got %q %v, want %q", raw, got, ok, want)
		}
		if tokens[1].Raw() != raw {
			t.Errorf("%s: Raw is %s", raw, tokens[1].Raw())
		}
	}
}

// Every position in a word of eight bytes, and every byte there.
func TestScannerStringBytes(t *testing.T) {
	for length := range 20 {
		for at := range length {
			for b := range 256 {
				inside := []byte(strings.Repeat("x", length))
				inside[at] = byte(b)
				text := `"` + string(inside) + `"`
				_, err := readAll(text)
				if (err == nil) != isJSON(text) {
					t.Errorf("%q: %v, encoding/json says %v", text, err, isJSON(text))
				}
			}
		}
	}
}

// Every byte where only some white space is allowed.
func TestScannerWhiteSpace(t *testing.T) {
	for b := range 256 {
		c := string([]byte{byte(b)})
		for _, text := range []string{c + "{}", "{}" + c, "[" + c + "]", "[1" + c + "]", `{"a"` + c + ":1}", `{"a":` + c + "1}"} {
			if _, err := readAll(text); (err == nil) != isJSON(text) {
				t.Errorf("%q: %v, encoding/json says %v", text, err, isJSON(text))
			}
		}
	}
}

// Pieces of JSON in random order are JSON just often enough, and faults come in
// places where nobody would write them by hand.
func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	pieces := strings.Split(`{ } { } [ ] [ ] , , , : : : "a" "b" "\n" "\ud800" "é" 1 0 -1 1.5 1e5 - . e true false null nul \ "`, " ")
	pieces = append(pieces, " ", "\n\t\r", "\x00", "\xff", "\xc3", "\u2028", `{"a":1}`, `[1,2]`, `{"a":[{"b":null}]}`)
	random := rand.New(rand.NewPCG(3, 4))
	valid := 0
	for range 200000 {
		var b strings.Builder
		for range random.IntN(9) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		text := b.String()
		_, err := readAll(text)
		if (err == nil) != isJSON(text) {
			t.Fatalf("%q: %v, encoding/json says %v", text, err, isJSON(text))
		}
		if err == nil {
			valid++
		}
	}
	if valid < 1000 {
		t.Errorf("only %d of the texts were JSON: the test shows little", valid)
	}
}

func TestScannerDeep(t *testing.T) {
	for _, depth := range []int{1, 63, 64, 65, 127, 128, 129, 1000, 100000} {
		for _, c := range []struct {
			name, text string
			fault      bool
		}{
			{"arrays", strings.Repeat("[", depth) + strings.Repeat("]", depth), false},
			{"objects", strings.Repeat(`{"":`, depth) + "1" + strings.Repeat("}", depth), false},
			{"alternating", strings.Repeat(`[{"":`, depth) + "1" + strings.Repeat("}]", depth), false},
			{"never closed", strings.Repeat("[", depth), true},
			{"closed too often", strings.Repeat("[", depth) + strings.Repeat("]", depth+1), true},
			{"outermost closed as an object", strings.Repeat("[", depth) + strings.Repeat("]", depth-1) + "}", true},
		} {
			info := Scan(c.text, Limits{})
			if info.JSON == c.fault {
				t.Errorf("%s %d deep: JSON is %v", c.name, depth, info.JSON)
			}
			if depth < stdDepth/2 && info.JSON != json.Valid([]byte(c.text)) {
				t.Errorf("%s %d deep: encoding/json disagrees", c.name, depth)
			}
		}
	}

	const most = 3 << 20 / 2 // as deep as the largest payload can be
	if text := strings.Repeat("[", most) + strings.Repeat("]", most); !Scan(text, Limits{}).JSON {
		t.Errorf("arrays %d deep: not JSON", most)
	}
}

// A deep tower that shrinks and grows across a word of the nesting stack.
func TestScannerSwingingDepth(t *testing.T) {
	text := strings.Repeat("[", 68) +
		strings.Repeat(`]]]]]]]],{"a":{"b":[[[[[{"c":[]}]]]]]}},[[[[[[[[1`, 500) + strings.Repeat("]", 68)
	if !isJSON(text) {
		t.Fatal("the test's own text is not JSON")
	}
	if !Scan(text, Limits{}).JSON {
		t.Error("not taken for JSON")
	}
}
