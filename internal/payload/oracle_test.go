package payload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// The same answers by other means, slowly: encoding/json and math/big.

// stdDepth is the nesting that encoding/json refuses to go beyond.
const stdDepth = 10000

// isJSON is what Scanner must agree with, for texts nested at most stdDepth
// deep.
func isJSON(text string) bool {
	return json.Valid([]byte(text)) && utf8.ValidString(text)
}

// oracleToken is a Token with its text read by encoding/json.
type oracleToken struct {
	kind  Kind
	text  string
	lone  bool // a lone surrogate, which encoding/json replaces silently
	depth int  // after the token
}

// surrogates matches a pair, one half, or any other escape, in this order of
// preference.
var surrogates = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.`)

// oracleTokens splits a text that isJSON.
func oracleTokens(t testing.TB, text string) []oracleToken {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var (
		tokens []oracleToken
		open   []bool // whether the container, were it an object, takes a key next
		object []bool
		from   int64
	)
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return append(tokens, oracleToken{kind: End})
		}
		if err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		last := len(open) - 1
		isKey := last >= 0 && object[last] && open[last]
		var out oracleToken
		switch tok := tok.(type) {
		case json.Delim:
			switch tok {
			case '{', '[':
				open, object = append(open, true), append(object, tok == '{')
				out.kind = map[json.Delim]Kind{'{': BeginObject, '[': BeginArray}[tok]
			default:
				open, object = open[:last], object[:last]
				out.kind = map[json.Delim]Kind{'}': EndObject, ']': EndArray}[tok]
			}
		case string:
			out.kind, out.text = String, tok
			if isKey {
				out.kind = Key
			}
			raw := text[from:dec.InputOffset()]
			raw = raw[strings.IndexByte(raw, '"'):]
			for _, escape := range surrogates.FindAllString(raw, -1) {
				out.lone = out.lone || len(escape) == 6
			}
		case json.Number:
			out.kind, out.text = Number, string(tok)
		case bool:
			out.kind = False
			if tok {
				out.kind = True
			}
		case nil:
			out.kind = Null
		}
		// A key follows everything but a key, a value follows a key.
		if last := len(open) - 1; last >= 0 && out.kind != BeginObject && out.kind != BeginArray {
			open[last] = out.kind != Key
		}
		out.depth = len(open)
		from = dec.InputOffset()
		tokens = append(tokens, out)
	}
}

// oracleInfo is Scan.
func oracleInfo(t testing.TB, text string, limits Limits) Info {
	text, marked := strings.CutPrefix(text, "\xef\xbb\xbf")
	if !isJSON(text) {
		return Info{}
	}
	tokens := oracleTokens(t, text)
	info := Info{JSON: true, Object: tokens[0].kind == BeginObject, BOM: marked}
	if !info.Object {
		return info
	}
	for name, to := range map[string]struct {
		field *Field
		limit int
	}{
		"job_id": {&info.JobID, limits.JobID},
		"event":  {&info.Event, limits.Event},
		"status": {&info.Status, limits.Status},
	} {
		count := 0
		for i, tok := range tokens {
			if tok.kind != Key || tok.depth != 1 || tok.text != name || tok.lone {
				continue
			}
			count++
			value := tokens[i+1]
			*to.field = Field{Kind: ends(value.kind), Repeated: count > 1}
			if value.kind == String && !value.lone && len(value.text) <= to.limit {
				to.field.Value, to.field.Present = value.text, true
			}
		}
	}
	return info
}

// ends is the kind of the last token of a value that begins with kind.
func ends(kind Kind) Kind {
	switch kind {
	case BeginObject:
		return EndObject
	case BeginArray:
		return EndArray
	}
	return kind
}

// oracleWalk is Walk for a text that isJSON: the events that the sink must
// get, and the reason for which the walk ends early, if it does.
func oracleWalk(t testing.TB, text, key string, maxDepth int) (events []string, reason string) {
	type container struct {
		keys  map[string]bool
		array bool
		next  int
	}
	var stack []*container
	for _, tok := range oracleTokens(t, text) {
		var inner *container
		if len(stack) > 0 {
			inner = stack[len(stack)-1]
		}
		switch tok.kind {
		case Key:
			switch {
			case tok.lone:
				return events, ReasonLoneSurrogate
			case strings.Contains(tok.text, "\x00"):
				return events, ReasonNULInKey
			case inner.keys[tok.text]:
				return events, ReasonDuplicateKey
			}
			inner.keys[tok.text] = true
			key = tok.text
			continue
		case EndObject, EndArray:
			stack = stack[:len(stack)-1]
			events = append(events, tok.kind.String())
			continue
		case End:
			return events, ""
		}
		if inner != nil && inner.array {
			key = strconv.Itoa(inner.next)
			inner.next++
		}
		value := ""
		switch tok.kind {
		case BeginObject, BeginArray:
			stack = append(stack, &container{keys: map[string]bool{}, array: tok.kind == BeginArray})
			if len(stack) > maxDepth {
				return events, ReasonTooDeep
			}
		case String:
			if tok.lone {
				return events, ReasonLoneSurrogate
			}
			value = tok.text
		case Number:
			kind, i, f := oracleNumber(tok.text)
			if kind == Unfaithful {
				return events, ReasonNumber
			}
			value = numberText(kind, i, f)
		}
		events = append(events, event(tok.kind, key, value))
	}
	return events, ""
}

// oracleNumber is ParseNumber.
func oracleNumber(raw string) (NumberKind, int64, float64) {
	significand, exponent, found := strings.Cut(strings.ToLower(raw), "e")
	if !found && !strings.Contains(raw, ".") {
		n, _ := new(big.Int).SetString(raw, 10)
		switch {
		case raw == "-0":
			return Double, 0, math.Copysign(0, -1)
		case n.IsInt64():
			return Int64, n.Int64(), 0
		}
		return Unfaithful, 0, 0
	}
	if strings.Trim(significand, "-0.") == "" {
		f, _ := strconv.ParseFloat(significand, 64)
		return Double, 0, f
	}
	if found {
		// math/big would write such numbers out.
		e, _ := new(big.Int).SetString(exponent, 10)
		if e.CmpAbs(big.NewInt(int64(len(raw)+1000))) > 0 {
			return Unfaithful, 0, 0
		}
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		return Unfaithful, 0, 0
	}
	written, _ := new(big.Rat).SetString(raw)
	shortest, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'e', -1, 64))
	if written.Cmp(shortest) != 0 {
		return Unfaithful, 0, 0
	}
	return Double, 0, f
}

// numberText tells all numbers of all kinds apart, minus zero included.
func numberText(kind NumberKind, i int64, f float64) string {
	if kind == Int64 {
		return fmt.Sprintf("int64 %d", i)
	}
	return fmt.Sprintf("double %x", math.Float64bits(f))
}

func event(kind Kind, key, value string) string {
	return fmt.Sprintf("%v %q %q", kind, key, value)
}

// recorder is a Sink that writes down what it gets.
type recorder struct{ events []string }

func (r *recorder) add(kind Kind, key, value string) {
	r.events = append(r.events, event(kind, key, value))
}

func (r *recorder) BeginObject(key string)   { r.add(BeginObject, key, "") }
func (r *recorder) EndObject()               { r.events = append(r.events, EndObject.String()) }
func (r *recorder) BeginArray(key string)    { r.add(BeginArray, key, "") }
func (r *recorder) EndArray()                { r.events = append(r.events, EndArray.String()) }
func (r *recorder) String(key, value string) { r.add(String, key, value) }
func (r *recorder) Null(key string)          { r.add(Null, key, "") }

func (r *recorder) Int64(key string, value int64) {
	r.add(Number, key, numberText(Int64, value, 0))
}

func (r *recorder) Double(key string, value float64) {
	r.add(Number, key, numberText(Double, 0, value))
}

func (r *recorder) Bool(key string, value bool) {
	kind := False
	if value {
		kind = True
	}
	r.add(kind, key, "")
}
