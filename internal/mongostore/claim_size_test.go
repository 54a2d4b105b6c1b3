package mongostore_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestClaimTakesWhatItGives: whatever form bodies are stored in, a claim takes no more work than its answer has room for, and
// fills that room.
func TestClaimTakesWhatItGives(t *testing.T) {
	zeros := "[0" + strings.Repeat(",0", 5<<10-2) + "]"
	for name, body := range map[string]job.Body{
		"bytes":    {Kind: job.BodyBytes, Data: strings.Repeat("x", 10<<10)},
		"no JSON":  {Kind: job.BodyText, Data: strings.Repeat("x", 10<<10)},
		"document": {Kind: job.BodyText, Data: `{"a":"` + strings.Repeat("x", 10<<10-8) + `"}`},
		"numbers":  {Kind: job.BodyText, Data: `{"a":` + zeros + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			var writes atomic.Int64
			b.proxy.Add(&wireproxy.Rule{Command: "update", Do: wireproxy.CutBefore, If: func(c wireproxy.Command) bool {
				if isWork(c) {
					writes.Add(1)
				}
				return false
			}})
			for i := range 12 {
				b.must(delivery(t, job.Input{JobID: fmt.Sprint("j", i), Mode: job.ModeQueued, Body: body}))
			}
			claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "c", Max: 12, Lease: time.Minute, MaxBytes: 65 << 10})
			if err != nil || len(claimed) < 5 || writes.Load() != 1 {
				t.Errorf("%d claimed with %d writes: %v", len(claimed), writes.Load(), err)
			}
		})
	}
}
