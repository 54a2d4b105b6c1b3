package server

import "testing"

// TestBellWakesWhomTheJobIsFor rings for jobs and sees who is woken: one, whose filter lets the job through, the longest
// waiting first; and what somebody did not use goes on to the next.
func TestBellWakesWhomTheJobIsFor(t *testing.T) {
	b := newBell()
	x, x2, any, y := b.enter([]string{"x"}), b.enter([]string{"x"}), b.enter(nil), b.enter([]string{"y", "z"})
	woken := func(want ...*waiter) {
		t.Helper()
		for name, w := range map[string]*waiter{"x": x, "x2": x2, "any": any, "y": y} {
			is, should := false, false
			select {
			case <-w.rung:
				is = true
			default:
			}
			for _, other := range want {
				should = should || other == w
			}
			if is != should {
				t.Errorf("%s is woken: %t, want %t", name, is, should)
			}
		}
	}
	b.ring("x")
	woken(x)
	b.ring("x")
	b.ring("x")
	woken(x, x2)
	b.ring("z")
	woken(any)
	b.ring("z")
	b.ring("z")
	woken(any, y)
	b.ring("nobody's")
	woken(any)
	b.ringAny()
	woken(x, any, y)

	b.ring("x")
	b.leave(x) // without having looked
	woken(x2, any, y)
	b.leave(x2)
	b.leave(any)
	b.leave(y)
	b.ring("x") // nobody waits: whoever comes looks first
	woken()
}
