package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCheckOfAnOlderFile: check says what serve would do with it, and does not do it.
func TestCheckOfAnOlderFile(t *testing.T) {
	data, err := os.ReadFile("../sqlitestore/testdata/v1/closed/jobonce.db")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "old.db")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	want := file + ": 28 jobs, all in order; an older version of JobOnce wrote it, and serve upgrades it\n"
	for range 2 {
		var stdout, stderr bytes.Buffer
		if code := Main([]string{"check", file}, nil, &stdout, &stderr); code != exitOK || stdout.String() != want || stderr.Len() > 0 {
			t.Errorf("exit code %d, %q, %q; want %q", code, &stdout, &stderr, want)
		}
	}
}
