package testenv

import (
	"os"
	"strings"
	"testing"
)

// PartOfPage holds the part of a page that maker makes to the text. JOBONCE_TEST_GOLDEN=1 writes it.
func PartOfPage(t testing.TB, page, maker, text string) {
	t.Helper()
	begin, end := "<!-- begin: made by "+maker+" -->\n", "<!-- end -->\n"
	old, err := os.ReadFile(page)
	Must(t, err)
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for what %s makes", page, maker)
	}
	made := before + begin + text + end + after
	if made == string(old) {
		return
	}
	if os.Getenv("JOBONCE_TEST_GOLDEN") == "" {
		t.Fatalf("what %s makes is old in %s: JOBONCE_TEST_GOLDEN=1 go test ./%s -run '^%s$'", maker, page, maker, t.Name())
	}
	Must(t, os.WriteFile(page, []byte(made), 0o644))
}
