package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jobonce/jobonce/internal/load"
)

// progressSteps is how finely the bar is divided.
const progressSteps = 1000

// showProgress keeps a line about the run on w until stop is called, which removes it. It does nothing when w is no
// terminal.
func showProgress(l *load.Load, w load.Workload, out io.Writer) (stop func()) {
	bar := newBar(out, progressSteps)
	if bar == nil {
		return func() {}
	}
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				_ = bar.Clear()
				return
			case <-tick.C:
				r := l.Snapshot()
				bar.Describe(progressText(r))
				// The last step would end the bar while the last answers are waited for.
				_ = bar.Set(min(progressSteps-1, int(progressSteps*progress(w, r))))
			}
		}
	})
	return func() {
		close(done)
		showing.Wait()
	}
}

func progressText(r load.Result) string {
	return fmt.Sprintf("%.0f a second, p50 %.1f ms, p99 %.1f ms, %d errors", r.Rate(), millis(r.P50), millis(r.P99), r.Failed())
}

// progress is how far the run is, 0 to about 1, by whichever bound is nearer.
func progress(w load.Workload, r load.Result) float64 {
	var share float64
	if w.Duration > 0 {
		share = r.Elapsed.Seconds() / w.Duration.Seconds()
	}
	if w.Count > 0 {
		share = max(share, float64(r.Ops+r.Failed())/float64(w.Count))
	}
	return share
}
