package mongostore

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/payload"
	"github.com/jobonce/jobonce/internal/testenv"
)

// jsonEncoder writes JSON as a language's usual encoder does by default.
type jsonEncoder struct {
	name         string
	comma, colon string
	indent       string
	escapes      string // the characters that are escaped, ASCII or U+2028 and U+2029
	ascii        bool   // all beyond ASCII is escaped
	slash        bool   // / is \/
	hex          string // how an escape is written
	point        bool   // 1.0 keeps its fraction
	low, high    float64
	exponent     byte // the format of numbers below low, or from high on
}

const lineSeparators = "\u2028\u2029"

// jsonEncoders are by the documentation of each; TestEncoders compares two with the real ones.
var jsonEncoders = []jsonEncoder{
	{name: "Go, `json.Marshal`", escapes: "<>&" + lineSeparators, low: 1e-6, high: 1e21, exponent: 'e'},
	{name: "JavaScript, `JSON.stringify`", low: 1e-6, high: 1e21, exponent: 'e'},
	{name: "JavaScript, indented by 2", comma: ",", colon: ": ", indent: "  ", low: 1e-6, high: 1e21, exponent: 'e'},
	{name: "Python, `json.dumps`", comma: ", ", colon: ": ", escapes: "\x7f", ascii: true, point: true, low: 1e-4, high: 1e16, exponent: 'e'},
	{name: "Java, Jackson", hex: `\u%04X`, point: true, low: 1e-3, high: 1e7, exponent: 'E'},
	{name: "Java, Gson", escapes: "<>&='" + lineSeparators, point: true, low: 1e-3, high: 1e7, exponent: 'E'},
	{name: "Ruby, `JSON.generate`", point: true, low: 1e-4, high: 1e16, exponent: 'e'},
	{name: "Ruby on Rails, `to_json`", escapes: "<>&" + lineSeparators, point: true, low: 1e-4, high: 1e16, exponent: 'e'},
	{name: "PHP, `json_encode`", ascii: true, slash: true, low: 1e-4, high: 1e15, exponent: 'e'},
	{name: ".NET, System.Text.Json", escapes: "<>&'+`\"\x7f", ascii: true, hex: `\u%04X`, low: 1e-5, high: 1e15, exponent: 'E'},
	{name: ".NET, Newtonsoft.Json", escapes: "\u0085" + lineSeparators, point: true, low: 1e-5, high: 1e15, exponent: 'E'},
}

// encode writes the object in text anew.
func (e *jsonEncoder) encode(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	s := payload.NewScanner(text)
	first, afterKey := true, false
	line := func(depth int) {
		if e.indent != "" {
			b.WriteString("\n" + strings.Repeat(e.indent, depth))
		}
	}
	for {
		tok, err := s.Next()
		testenv.Must(t, err)
		end := tok.Kind == payload.EndObject || tok.Kind == payload.EndArray
		begin := tok.Kind == payload.BeginObject || tok.Kind == payload.BeginArray
		depth := s.Depth()
		if begin {
			depth--
		}
		switch {
		case tok.Kind == payload.End:
			return b.String()
		case end && !first:
			line(depth)
		case end, afterKey, b.Len() == 0:
		case first:
			line(depth)
		default:
			b.WriteString(cmp.Or(e.comma, ","))
			line(depth)
		}
		first, afterKey = begin, tok.Kind == payload.Key
		switch tok.Kind {
		case payload.BeginObject:
			b.WriteByte('{')
		case payload.EndObject:
			b.WriteByte('}')
		case payload.BeginArray:
			b.WriteByte('[')
		case payload.EndArray:
			b.WriteByte(']')
		case payload.Key, payload.String:
			value, _ := tok.Text()
			b.WriteString(e.quote(value))
			if afterKey {
				b.WriteString(cmp.Or(e.colon, ":"))
			}
		case payload.Number:
			b.WriteString(e.number(tok.Raw()))
		default:
			b.WriteString(map[payload.Kind]string{payload.True: "true", payload.False: "false", payload.Null: "null"}[tok.Kind])
		}
	}
}

func (e *jsonEncoder) quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		short := strings.IndexRune("\"\\\b\f\n\r\t", r)
		switch {
		case strings.ContainsRune(e.escapes, r), e.ascii && r > 0x7f, short < 0 && r < ' ':
			for _, unit := range utf16Of(r) {
				fmt.Fprintf(&b, cmp.Or(e.hex, `\u%04x`), unit)
			}
		case short >= 0:
			b.WriteString(`\` + string(`"\bfnrt`[short]))
		case r == '/' && e.slash:
			b.WriteString(`\/`)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func utf16Of(r rune) []uint16 {
	if r < 0x10000 {
		return []uint16{uint16(r)}
	}
	r -= 0x10000
	return []uint16{uint16(0xd800 + r>>10), uint16(0xdc00 + r&0x3ff)}
}

func (e *jsonEncoder) number(raw string) string {
	kind, _, f := payload.ParseNumber(raw)
	size := math.Abs(f)
	switch {
	case kind != payload.Double:
		return raw
	case f == math.Trunc(f) && size < e.high:
		if e.point {
			return strconv.FormatFloat(f, 'f', 1, 64)
		}
		return strconv.FormatFloat(f, 'f', 0, 64)
	case size < e.low || size >= e.high:
		return strconv.FormatFloat(f, e.exponent, -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// webhookBodies are bodies as webhook providers document them, with other values.
func webhookBodies(t *testing.T) (bodies []string) {
	t.Helper()
	lines, err := os.ReadFile("../payload/testdata/webhooks.jsonl")
	testenv.Must(t, err)
	for line := range bytes.Lines(lines) {
		var b struct{ From, Body string }
		testenv.Must(t, json.Unmarshal(line, &b))
		bodies = append(bodies, b.Body)
	}
	return bodies
}

// TestEncoders compares two of the encoders with what they stand for.
func TestEncoders(t *testing.T) {
	testenv.Need(t, "node", "python3")
	large := regexp.MustCompile(`[:\[,]\s*-?\d{16,}`) // numbers that JavaScript rounds
	var bodies []string
	for _, body := range webhookBodies(t) {
		if d := keptOnce(t, body); d.Lookup(fieldPayload).Type != 0 && !large.MatchString(body) {
			bodies = append(bodies, body)
		}
	}
	input, err := json.Marshal(bodies)
	testenv.Must(t, err)
	for name, command := range map[string][]string{
		"JavaScript, `JSON.stringify`": {"node", "-e", `console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map(b => JSON.stringify(JSON.parse(b)))))`},
		"JavaScript, indented by 2":    {"node", "-e", `console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map(b => JSON.stringify(JSON.parse(b), null, 2))))`},
		"Python, `json.dumps`":         {"python3", "-c", `import json,sys; print(json.dumps([json.dumps(json.loads(b)) for b in json.load(sys.stdin)]))`},
	} {
		e := jsonEncoders[slices.IndexFunc(jsonEncoders, func(e jsonEncoder) bool { return e.name == name })]
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin = bytes.NewReader(input)
		output, err := cmd.Output()
		var written []string
		if err = errors.Join(err, json.Unmarshal(output, &written)); err != nil || len(written) != len(bodies) {
			t.Fatalf("%s: %d bodies of %d, %v", name, len(written), len(bodies), err)
		}
		for i, want := range written {
			if got := e.encode(t, bodies[i]); got != want {
				t.Errorf("%s writes %s\nwe think %s", name, want, got)
			}
		}
	}
}

// share counts bodies by how they are stored.
type share struct{ document, both, text int }

func (s *share) add(t *testing.T, body string) {
	t.Helper()
	doc := keptOnce(t, body)
	wantBody(t, doc, body)
	_, embedded := doc.Lookup(fieldPayload).DocumentOK()
	switch _, kept := doc.Lookup(fieldPayloadText).StringValueOK(); {
	case !embedded:
		s.text++
	case kept:
		s.both++
	default:
		s.document++
	}
}

func (s *share) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %.1f %% |", name, s.document, s.both, s.text, 100*float64(s.document)/float64(s.document+s.both))
}

// TestShareStoredOnce holds docs/mongodb.md to how many webhook bodies are stored once.
func TestShareStoredOnce(t *testing.T) {
	page, err := os.ReadFile("../../docs/mongodb.md")
	testenv.Must(t, err)
	var sent share
	var objects []string
	bodies := webhookBodies(t)
	for _, body := range bodies {
		before := sent.text
		if sent.add(t, body); sent.text == before {
			objects = append(objects, body)
		}
	}
	if len(bodies) < 200 {
		t.Errorf("%d bodies, want 200 at least", len(bodies))
	}
	rows := []string{sent.row("as the providers send them")}
	for _, e := range jsonEncoders {
		var s share
		for _, body := range objects {
			s.add(t, e.encode(t, body))
		}
		rows = append(rows, s.row(e.name))
	}
	if table := strings.Join(rows, "\n"); !strings.Contains(string(page), table) {
		t.Errorf("docs/mongodb.md does not have the rows\n%s", table)
	}
}
