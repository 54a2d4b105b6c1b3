package testenv_test

import (
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestClock(t *testing.T) {
	clock := testenv.NewClock()
	start := clock.Now()
	if !clock.Now().Equal(start) {
		t.Error("the clock moved by itself")
	}
	if start.Equal(start.Truncate(time.Millisecond)) {
		t.Error("the start is a whole millisecond, so a store that keeps finer times would pass")
	}
	clock.Advance(time.Second)
	clock.Advance(-time.Hour)
	if got, want := clock.Now(), start.Add(time.Second-time.Hour); !got.Equal(want) {
		t.Errorf("after Advance: %v, want %v", got, want)
	}
	want := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	clock.Set(want)
	if got := clock.Now(); !got.Equal(want) {
		t.Errorf("after Set: %v, want %v", got, want)
	}
}

func TestClockConcurrentUse(t *testing.T) {
	clock := testenv.NewClock()
	start := clock.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				clock.Advance(time.Millisecond)
				clock.Now()
			}
		})
	}
	wg.Wait()
	if got := clock.Now().Sub(start); got != 800*time.Millisecond {
		t.Errorf("moved by %v, want 800ms", got)
	}
}
