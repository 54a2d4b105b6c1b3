package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jobonce/jobonce/internal/load"
)

// sample is one measurement of a cell. In groups of work, its result is that of the work, not of the record.
type sample struct {
	load.Result
	// CPU is what all processes of the cell used meanwhile; negative when it is not known.
	CPU time.Duration
	// Bytes and Disk are what a job's document takes, by itself and of the store; 0 when they are not known.
	Bytes, Disk float64
	// Recorded is how many jobs a second were recorded before the work began; 0 where nothing was.
	Recorded float64
	// Won and Tried are the leases that the instances were granted and those that they tried for; 0 when they do not say.
	Won, Tried float64
}

// What is asked of a sample. NaN is what is not known.
func rate(s sample) float64 { return s.Rate() }
func p50(s sample) float64  { return milliseconds(s.P50) }
func p99(s sample) float64  { return milliseconds(s.P99) }

func docBytes(s sample) float64  { return known(s.Bytes) }
func diskBytes(s sample) float64 { return known(s.Disk) }
func recorded(s sample) float64  { return known(s.Recorded) }
func won(s sample) float64       { return known(s.Won) }
func tried(s sample) float64     { return known(s.Tried) }

func known(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// cpu is microseconds for each delivery.
func cpu(s sample) float64 {
	if s.CPU < 0 || s.Ops == 0 {
		return math.NaN()
	}
	return float64(s.CPU.Microseconds()) / float64(s.Ops)
}

// milliseconds is NaN for no time at all: the bulk writers' answers are not those of single deliveries.
func milliseconds(d time.Duration) float64 {
	return known(float64(d) / float64(time.Millisecond))
}

// results is what was measured so far.
type results struct {
	order   []string // cells, as they were measured first
	samples map[string][]sample
	printed map[string]bool
}

func newResults() *results {
	return &results{samples: map[string][]sample{}, printed: map[string]bool{}}
}

func (r *results) add(cell string, s sample) {
	if _, known := r.samples[cell]; !known {
		r.order = append(r.order, cell)
	}
	r.samples[cell] = append(r.samples[cell], s)
}

// spread returns the least, the median and the largest of what get finds; NaN when there is nothing.
func (r *results) spread(cell string, get func(sample) float64) (least, median, most float64) {
	var values []float64
	for _, s := range r.samples[cell] {
		values = append(values, get(s))
	}
	if len(values) == 0 || slices.ContainsFunc(values, math.IsNaN) {
		return math.NaN(), math.NaN(), math.NaN()
	}
	slices.Sort(values)
	n := len(values)
	return values[0], (values[(n-1)/2] + values[n/2]) / 2, values[n-1]
}

func (r *results) median(cell string, get func(sample) float64) float64 {
	_, median, _ := r.spread(cell, get)
	return median
}

// print writes the figures that are complete and not printed yet, one line each: its name and its value.
func (r *results) print(w io.Writer, figures []figure) error {
	for _, f := range figures {
		missing := func(cell string) bool { return len(r.samples[cell]) == 0 }
		if r.printed[f.name] || slices.ContainsFunc(f.cells, missing) {
			continue
		}
		r.printed[f.name] = true
		value := f.value(r)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s %s\n", f.name, number(value)); err != nil {
			return err
		}
	}
	return nil
}

// number writes three significant digits at least, and no exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// table writes all cells for people.
func (r *results) table(w io.Writer) {
	if len(r.order) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\ncell\tmin/s\tmedian/s\tmax/s\tp50 ms\tp99 ms\tCPU µs\terrors\t")
	for _, cell := range r.order {
		least, median, most := r.spread(cell, rate)
		var failed int64
		for _, s := range r.samples[cell] {
			failed += s.Failed()
		}
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t%d\t\n", cell, least, median, most,
			number(r.median(cell, p50)), number(r.median(cell, p99)), number(r.median(cell, cpu)), failed)
	}
	_ = tw.Flush()
}
