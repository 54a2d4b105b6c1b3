package webhook_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
)

// TestTable holds the table of presets in docs/webhooks.md to the presets. JOBONCE_TEST_GOLDEN=1 writes it.
func TestTable(t *testing.T) {
	const name, begin, end = "../../docs/webhooks.md", "<!-- begin: made by client/webhook -->\n", "<!-- end -->\n"
	var b, sources strings.Builder
	b.WriteString("| `Provider` | sender | tier | secrets | id | not recorded | note |\n|---|---|---|---|---|---|---|\n")
	for _, p := range webhook.Presets() {
		id := p.ID
		if !p.HasID {
			id = "**to be said.** " + id
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", p.Name, p.Title, p.Tier, p.Secret, id, cmp.Or(p.Left, "–"), cmp.Or(p.Notes, "–"))
		fmt.Fprintf(&sources, "- `%s`: %s\n", p.Name, strings.Join(p.Sources, "; "))
	}
	b.WriteString("\nWhere this is from:\n\n" + sources.String())
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", name)
	}
	want := before + begin + b.String() + end + after
	if want == string(text) {
		return
	}
	if os.Getenv("JOBONCE_TEST_GOLDEN") == "" {
		t.Fatal("the table of presets in docs/webhooks.md is old: JOBONCE_TEST_GOLDEN=1 go test ./client/webhook -run TestTable")
	}
	if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
