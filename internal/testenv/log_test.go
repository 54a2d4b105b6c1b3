package testenv_test

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// recorder is a test whose output can be read.
type recorder struct {
	testing.TB
	out bytes.Buffer
}

func (r *recorder) Output() io.Writer { return &r.out }

func TestLogger(t *testing.T) {
	r := &recorder{}
	var logger *slog.Logger
	t.Run("running", func(t *testing.T) {
		r.TB = t
		logger = testenv.Logger(r)
		logger.Debug("during the test", "n", 1)
	})
	logger.Info("after the test")

	if got := r.out.String(); !strings.Contains(got, `level=DEBUG msg="during the test" n=1`) {
		t.Errorf("the line of the running test is missing: %q", got)
	}
	if got := r.out.String(); strings.Contains(got, "after") {
		t.Errorf("written after the end of the test: %q", got)
	}
}
