package payload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestWalkEvents(t *testing.T) {
	const text = `{"s":"a\u0000b","i":-3,"d":2.50,"t":true,"f":false,"n":null,"":{},` +
		`"$set":{"a.b":{"c":1}},"l":[7,[],[8],{"x":[9]},"z"],"\u00e4":-0}`
	want := []string{
		`BeginObject "payload" ""`,
		`String "s" "a\x00b"`,
		`Number "i" "int64 -3"`,
		`Number "d" "double 4004000000000000"`,
		`True "t" ""`,
		`False "f" ""`,
		`Null "n" ""`,
		`BeginObject "" ""`, `EndObject`,
		`BeginObject "$set" ""`,
		`BeginObject "a.b" ""`, `Number "c" "int64 1"`, `EndObject`,
		`EndObject`,
		`BeginArray "l" ""`,
		`Number "0" "int64 7"`,
		`BeginArray "1" ""`, `EndArray`,
		`BeginArray "2" ""`, `Number "0" "int64 8"`, `EndArray`,
		`BeginObject "3" ""`, `BeginArray "x" ""`, `Number "0" "int64 9"`, `EndArray`, `EndObject`,
		`String "4" "z"`,
		`EndArray`,
		`Number "ä" "double 8000000000000000"`,
		`EndObject`,
	}
	var sink recorder
	if _, err := Walk(text, "payload", 4, &sink); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sink.events, want) {
		t.Errorf("got %q\nwant %q", sink.events, want)
	}
}

func TestWalkErrors(t *testing.T) {
	tooMany := `"` + strings.Join(numbers(0, linearKeys+5), `":1,"`) + `":1`
	for _, c := range []struct {
		name   string
		text   string
		reason string // of an UnfaithfulError; else one of the two below
		offset int
	}{
		{"empty", ``, "not JSON", 0},
		{"form", `job_id=p18&event=done`, "not JSON", 0},
		{"trailing garbage", `{"a":1} trailing`, "not JSON", 8},
		{"byte order mark", "\ufeff{}", "not JSON", 0},
		{"cut off", `{"a":[1`, "not JSON", 7},

		{"array", `[{"a":1}]`, "no object", 0},
		{"string", `"{}"`, "no object", 0},
		{"array that is cut off", `[`, "no object", 0},

		{"duplicate key", `{"a":1,"b":2,"a":3}`, ReasonDuplicateKey, 13},
		{"duplicate in another spelling", `{"a":1,"\u0061":3}`, ReasonDuplicateKey, 7},
		{"duplicate inside", `{"a":{"a":{"b":1,"b":1}}}`, ReasonDuplicateKey, 17},
		{"duplicate around an object", `{"a":{"b":1,"c":{"a":1}},"a":3}`, ReasonDuplicateKey, 25},
		{"duplicate empty key", `{"":1,"":2}`, ReasonDuplicateKey, 6},
		{"duplicate of one of many", "{" + tooMany + `,"0":1}`, ReasonDuplicateKey, len(tooMany) + 2},
		{"NUL in a key", `{"a\u0000b":1}`, ReasonNULInKey, 1},
		{"NUL alone as a key", `{"x":[{"\u0000":1}]}`, ReasonNULInKey, 7},
		{"lone surrogate in a key", `{"\udfff":1}`, ReasonLoneSurrogate, 1},
		{"lone surrogate in a value", `{"a":["\ud800"]}`, ReasonLoneSurrogate, 6},
		{"integer above int64", `{"n":18446744073709551615}`, ReasonNumber, 5},
		{"infinite as a double", `{"n":[1, -1e400]}`, ReasonNumber, 9},
		{"too deep", `{"a":[[[]]]}`, ReasonTooDeep, 7},
		{"too deep by an object", `{"a":{"b":{"c":{}}}}`, ReasonTooDeep, 15},
		{"unfaithful before it is no JSON", `{"n":1e400,]`, ReasonNumber, 5},
		{"no JSON before it is unfaithful", `{"a":1,]"n":1e400}`, "not JSON", 7},
	} {
		var sink recorder
		_, err := Walk(c.text, "top", 3, &sink)
		var unfaithful *UnfaithfulError
		var syntax *SyntaxError
		var got string
		var offset int
		switch {
		case errors.Is(err, ErrNotObject):
			got = "no object"
		case errors.As(err, &syntax) && errors.Is(err, ErrNotJSON):
			got, offset = "not JSON", syntax.Offset
		case errors.As(err, &unfaithful) && errors.Is(err, ErrUnfaithful):
			got, offset = unfaithful.Reason, unfaithful.Offset
			if !strings.Contains(err.Error(), unfaithful.Reason) {
				t.Errorf("%s: the error hides its reason: %v", c.name, err)
			}
		}
		if got != c.reason || offset != c.offset {
			t.Errorf("%s: got %v, want %s at byte %d", c.name, err, c.reason, c.offset)
		}
		checkWalk(t, c.text, 3)
	}
}

// Wherever the first of two equal keys stands, and the second.
func TestWalkDuplicateAmongMany(t *testing.T) {
	for n := range linearKeys + 5 {
		for i := range n {
			text := `{"` + strings.Join(numbers(0, n), `":{},"`) + `":1,"` + strconv.Itoa(i) + `":2}`
			var unfaithful *UnfaithfulError
			_, err := Walk(text, "", 5, &recorder{})
			if !errors.As(err, &unfaithful) || unfaithful.Reason != ReasonDuplicateKey {
				t.Errorf("key %d of %d again: %v", i, n, err)
			}
		}
	}
}

// Sibling and nested objects may share keys; an object may have many.
func TestWalkKeysThatAreNoDuplicates(t *testing.T) {
	many := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":%s`, i, value)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	for _, n := range []int{1, 2, linearKeys - 1, linearKeys, linearKeys + 1, 100, reusedKeys, reusedKeys + 1} {
		checkWalk(t, many(n, "1"), 5)
		checkWalk(t, many(3, many(n, "1")), 5)
		checkWalk(t, many(min(n, 10), many(linearKeys+1, `{"k1":{}}`)), 5)
		checkWalk(t, many(3, "["+many(n, "1")+","+many(n, "2")+"]"), 5)
	}
}

func TestWalkDepth(t *testing.T) {
	for _, depth := range []int{1, 2, 8, 9, 10, 100, 1000} {
		text := strings.Repeat(`{"a":[`, depth/2) + strings.Repeat("{}", depth%2) + strings.Repeat("]}", depth/2)
		checkWalk(t, text, depth)
		checkWalk(t, text, depth-1)
		if _, err := Walk(text, "", depth, &recorder{}); err != nil {
			t.Errorf("%d deep: %v", depth, err)
		}
		if _, err := Walk(text, "", depth-1, &recorder{}); !errors.Is(err, ErrUnfaithful) {
			t.Errorf("%d deep, one more than allowed: %v", depth, err)
		}
	}
}

// Long arrays, inside each other, around where a new block of names is written.
func TestWalkIndexes(t *testing.T) {
	inner := "[" + strings.Join(numbers(0, indexBlock+3), ",") + "]"
	outer := `{"a":[` + strings.Repeat("0,", 3*indexBlock-2) + strings.Join([]string{inner, "1", inner, "2", inner}, ",") + `]}`
	checkWalk(t, outer, 3)

	const n = 100001
	var sink recorder
	if _, err := Walk(`{"a":[`+strings.Repeat("1,", n-1)+`1]}`, "", 2, &sink); err != nil {
		t.Fatal(err)
	}
	if got, want := sink.events[len(sink.events)-3], `Number "100000" "int64 1"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Large bodies made to be slow. The test's own time limit would show one that
// is quadratic.
func TestWalkLarge(t *testing.T) {
	const size = 1 << 20
	smallAfterLarge := `{"a":` + manyKeys(size/2) + `,"b":[` + strings.TrimSuffix(strings.Repeat(manyKeys(linearKeys*8)+",", size/2/(linearKeys*8)), ",") + `]}`
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"keys", manyKeys(size), nil},
		{"objects of some keys after one of many", smallAfterLarge, nil},
		{"duplicate at the end", strings.TrimSuffix(manyKeys(size), "}") + `,"0":1}`, ErrUnfaithful},
		{"elements", `{"a":[` + strings.Repeat("1,", size/2) + `1]}`, nil},
		{"numbers near zero", `{"a":[` + strings.Repeat("1e-320,", size/7) + `1]}`, nil},
		{"empty objects", `{"a":[` + strings.Repeat("{},", size/3) + `1]}`, nil},
		{"one long string", `{"a":"` + strings.Repeat("x", size) + `"}`, nil},
		{"one long escaped string", `{"a":"` + strings.Repeat(`\u0061`, size/6) + `"}`, nil},
		{"one long key", `{"` + strings.Repeat("x", size) + `":1}`, nil},
		{"white space", `{` + strings.Repeat(" ", size) + `}`, nil},
		{"one long number", `{"a":` + strings.Repeat("9", size) + `}`, ErrUnfaithful},
		{"deep", `{"a":` + strings.Repeat("[", size/2) + strings.Repeat("]", size/2) + `}`, ErrUnfaithful},
	} {
		var sink bsonSink
		if _, err := Walk(c.text, "payload", 100, &sink); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !Scan(c.text, limits).Object {
			t.Errorf("%s: not an object", c.name)
		}
	}
}

// Objects with all that can go wrong in them, most of them right.
func TestWalkAgreesWithEncodingJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	var value func(depth int) string
	object := func(depth int) string {
		var members []string
		for range random.IntN(5) {
			key := pick("a", "b", "c", "d", "e", "f", "g", "h", "", "$a", "a.b", `\u0061`, `\/`, "ä", `\u00e4`, `\ud83d\ude00`)
			if random.IntN(60) == 0 {
				key = pick(`\u0000`, `\ud800`, `\ud800\ud800`)
			}
			members = append(members, `"`+key+`"`+pick(":", " :\n")+value(depth))
		}
		return "{" + strings.Join(members, pick(",", "\t, ")) + "}"
	}
	value = func(depth int) string {
		n := random.IntN(10)
		switch {
		case n < 2 && depth < 6:
			return object(depth + 1)
		case n < 4 && depth < 6:
			var elements []string
			for range random.IntN(4) {
				elements = append(elements, value(depth+1))
			}
			return "[" + strings.Join(elements, ",") + "]"
		case n < 6:
			return pick("0", "-0", "1", "-12", "1.5", "1e3", "0.1", "9223372036854775807")
		case n < 8:
			return `"` + pick("", "x", "text of some length", "ä", `\n`, `\u0000`, `\ud83d\ude00`) + `"`
		case random.IntN(40) == 0:
			return pick("9223372036854775808", "1e400", "0.10000000000000001", `"\ud800"`, `"\udc00\ud800"`)
		}
		return pick("true", "false", "null")
	}
	right := 0
	const rounds = 2000
	for range rounds {
		text := object(1)
		checkWalk(t, text, 5)
		if _, err := Walk(text, "", 5, &recorder{}); err == nil {
			right++
		}
	}
	if right < rounds/3 || right > rounds*9/10 {
		t.Errorf("%d of %d objects were faithful: the test shows little", right, rounds)
	}
}

// The sink gets pieces of the body itself, not copies.
func TestWalkAllocatesOnce(t *testing.T) {
	const text = `{"job_id":"j1","a":{"b":[1,2.5,"x",true,null,{"c":{}}]},"d":"` + "text beyond ASCII: ä" + `"}`
	var sink bsonSink
	n := testing.AllocsPerRun(100, func() {
		sink.reset()
		if _, err := Walk(text, "payload", 100, &sink); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// numbers writes from, from+1, … below to.
func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}
