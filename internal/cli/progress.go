package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressEvery is how often a line of progress is drawn anew.
const progressEvery = 200 * time.Millisecond

// newBar returns a line of progress on out; nil when that is no terminal.
func newBar(out io.Writer, steps int64) *progressbar.ProgressBar {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return progressbar.NewOptions64(steps,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
	)
}

// newProgress shows on out how much is done of a whole, counted in unit, until done is called.
func newProgress(out io.Writer, unit string) (progress func(finished, total int64), done func()) {
	bar := newBar(out, 1)
	if bar == nil {
		return func(int64, int64) {}, func() {}
	}
	var drawn time.Time
	progress = func(finished, total int64) {
		if total <= 0 || time.Since(drawn) < progressEvery {
			return
		}
		drawn = time.Now()
		bar.ChangeMax64(total)
		bar.Describe(fmt.Sprintf("%d of %d %s", finished, total, unit))
		_ = bar.Set64(min(finished, total-1)) // the last step would end the bar
	}
	return progress, func() { _ = bar.Clear() }
}
