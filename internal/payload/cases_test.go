package payload

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// payloadCase is a line of testdata/payloads.jsonl, the bodies that the whole
// service must get right. "want" says what becomes of the body:
//   - document: stored as an embedded document and as text
//   - text_only: BSON cannot hold it, text alone
//   - either: a document only if every value is exact
//   - invalid: refused
type payloadCase struct {
	Name         string   `json:"name"`
	Want         string   `json:"want"`
	Why          string   `json:"why"`
	Payload      string   `json:"payload"`
	Base64       []byte   `json:"payload_base64"`
	Parts        [][2]any `json:"payload_parts"`
	RequestJobID string   `json:"request_job_id"`
}

func (c payloadCase) text() string {
	if c.Base64 != nil {
		return string(c.Base64)
	}
	var b strings.Builder
	b.WriteString(c.Payload)
	for _, part := range c.Parts {
		b.WriteString(strings.Repeat(part[0].(string), int(part[1].(float64))))
	}
	return b.String()
}

func loadCases(t *testing.T) []payloadCase {
	file, err := os.Open("testdata/payloads.jsonl")
	testenv.Must(t, err)
	defer file.Close()
	var cases []payloadCase
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var c payloadCase
		testenv.Must(t, json.Unmarshal(lines.Bytes(), &c))
		cases = append(cases, c)
	}
	testenv.Must(t, lines.Err())
	if len(cases) < 32 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

func TestCases(t *testing.T) {
	for _, c := range loadCases(t) {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			text := c.text()

			// Where the request gives no id, the body must. Where it does, the body
			// gives none, or the same behind a byte-order mark.
			id := Scan(text, limits).JobID
			if c.RequestJobID == "" && (!id.Present || id.Repeated || !strings.HasPrefix(id.Value, "p")) {
				t.Errorf("job_id is %+v", id)
			}
			wantID := ""
			if strings.HasPrefix(text, "\ufeff{") {
				wantID = c.RequestJobID
			}
			if c.RequestJobID != "" && id.Value != wantID {
				t.Errorf("job_id is %+v, want %q", id, wantID)
			}

			// 100 levels in all, of which the record itself takes one.
			var sink bsonSink
			_, err := Walk(text, "payload", 99, &sink)
			switch c.Want {
			case "document":
				if err != nil {
					t.Errorf("no document: %v (%s)", err, c.Why)
				}
			case "text_only":
				if err == nil {
					t.Errorf("a document (%s)", c.Why)
				}
			case "either":
				// Exact means the same as encoding/json and math/big find.
				if err != nil && !errors.Is(err, ErrUnfaithful) {
					t.Errorf("%v (%s)", err, c.Why)
				}
			case "invalid":
				if !errors.Is(err, ErrNotJSON) {
					t.Errorf("%v, want not JSON (%s)", err, c.Why)
				}
			default:
				t.Errorf("unknown want %q", c.Want)
			}
			if strings.Count(text, "[") < stdDepth {
				checkWalk(t, text, 99)
			}
		})
	}
}
