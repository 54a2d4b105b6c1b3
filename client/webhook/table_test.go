package webhook_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestTable holds the table of presets in docs/webhooks.md to the presets. JOBONCE_TEST_GOLDEN=1 writes it.
func TestTable(t *testing.T) {
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
	testenv.PartOfPage(t, "../../docs/webhooks.md", "client/webhook", b.String())
}
