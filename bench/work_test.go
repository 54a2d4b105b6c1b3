package main

import (
	"strings"
	"testing"
)

// TestTally: a job that is worked on twice, or not at all, is no result.
func TestTally(t *testing.T) {
	for keys, want := range map[string]string{
		"a b": "", "a b a": "3 times, for 2 of 2", "a": "1 times, for 1 of 2", "a a": "2 times, for 1 of 2",
	} {
		tally := newTally(2)
		for _, key := range strings.Fields(keys) {
			tally.start(key)
		}
		select {
		case <-tally.all:
			if !strings.Contains(keys, "b") {
				t.Errorf("%q are all", keys)
			}
		default:
			if strings.Contains(keys, "b") {
				t.Errorf("%q are not all", keys)
			}
		}
		switch err := tally.check(); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v", keys, err)
		}
	}
}

func TestReadClaimed(t *testing.T) {
	got, err := readClaimed(strings.NewReader(`# HELP jobonce_claim_leases_won_total Leases.
# TYPE jobonce_claim_leases_won_total counter
jobonce_claim_leases_won_total 80
jobonce_claim_leases_tried_total{store="mongodb"} 1e+02
jobonce_claim_leases_tried_totals 7
`))
	if want := (claimed{won: 80, tried: 100}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := readClaimed(strings.NewReader("jobonce_claim_leases_won_total many\n")); err == nil {
		t.Error("a value that is none")
	}
}
