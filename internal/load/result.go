package load

import "time"

// Result is what came of a run.
type Result struct {
	// Ops is how many deliveries were answered, without those that failed.
	Ops int64
	// Firsts and Duplicates are how many of them were their job's first, and how many were not.
	Firsts     int64
	Duplicates int64
	// Keys is how many different keys were sent. When nothing failed, the run was not ended early and nobody else sent
	// its keys, a target that decides rightly answers Firsts = Keys.
	Keys int64
	// Errors is how many deliveries failed, by reason.
	Errors map[string]int64
	// FirstError is the error of the first one that failed.
	FirstError error `json:"-"`
	// Elapsed is from the start to the last answer.
	Elapsed time.Duration
	// P50, P99 and Max are the median, the 99th percentile and the longest of the times to an answer; see the package's
	// comment for what they do not say.
	P50, P99, Max time.Duration
}

// Rate is how many deliveries were answered in a second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Ops) / r.Elapsed.Seconds()
}

// Failed is how many deliveries failed.
func (r Result) Failed() int64 {
	var n int64
	for _, count := range r.Errors {
		n += count
	}
	return n
}
