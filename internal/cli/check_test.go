package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestCheckOfAnOlderFile: check says what serve would do with it, and does not do it.
func TestCheckOfAnOlderFile(t *testing.T) {
	data, err := os.ReadFile("../sqlitestore/testdata/v1/closed/jobonce.db")
	testenv.Must(t, err)
	file := filepath.Join(t.TempDir(), "old.db")
	testenv.Must(t, os.WriteFile(file, data, 0o600))
	want := file + ": 28 jobs, all in order; an older version of JobOnce wrote it, and serve upgrades it\n"
	for range 2 {
		var stdout, stderr bytes.Buffer
		if code := Main([]string{"check", file}, nil, &stdout, &stderr); code != exitOK || stdout.String() != want || stderr.Len() > 0 {
			t.Errorf("exit code %d, %q, %q; want %q", code, &stdout, &stderr, want)
		}
	}
}
