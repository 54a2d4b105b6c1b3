package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/jobonce/jobonce/internal/job"
)

// testLine is a line and the calls that have come to it.
type testLine struct {
	*line
	came []*entering
}

// caller is a connection.
type caller struct {
	line *testLine
	ctx  context.Context
}

func (l *testLine) caller() caller {
	return caller{l, peer.NewContext(context.Background(), &peer.Peer{Addr: newPeerConn(context.Background(), new(net.TCPConn), nil).RemoteAddr()})}
}

// entering is a call that has come to the line.
type entering struct {
	turn *turn
	err  error
	done chan struct{}
	left bool
}

// enter has a call enter, and returns when it receives, waits or was refused.
func (c caller) enter() *entering {
	e := &entering{done: make(chan struct{})}
	c.line.came = append(c.line.came, e)
	go func() {
		defer close(e.done)
		e.turn, e.err = c.line.line.enter(c.ctx)
	}()
	synctest.Wait()
	return e
}

func (e *entering) waits() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

func (e *entering) receives() bool { return !e.waits() && e.err == nil }

// leave ends the receiving of a call, whether it was cut or not.
func (l *testLine) leave(e *entering) {
	e.left = true
	l.line.leave(e.turn)
	synctest.Wait()
}

// inLine runs a test over a line with 4 slots, the last of which is for connections that receive nothing else.
func inLine(t *testing.T, places int, f func(t *testing.T, l *testLine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &testLine{line: newLine(30 * time.Second)}
		l.slots, l.places = 4, places
		f(t, l)
		for _, e := range l.came {
			if <-e.done; e.err == nil && !e.left {
				l.leave(e)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if l.receiving != 0 || l.waiting != 0 || l.pending.Len() != 0 || len(l.holds) != 0 || len(l.queues) != 0 || l.order.Len() != 0 || l.armed {
			t.Errorf("something stays: %+v", l)
		}
	})
}

// several has n calls enter.
func (c caller) several(n int) (all []*entering) {
	for range n {
		all = append(all, c.enter())
	}
	return all
}

func count(all []*entering, is func(*entering) bool) (n int) {
	for _, e := range all {
		if is(e) {
			n++
		}
	}
	return n
}

// Connections take turns, however many calls each has in line. One that receives nothing has a slot at once.
func TestLineTakesTurns(t *testing.T) {
	inLine(t, 100, func(t *testing.T, l *testLine) {
		greedy, other := l.caller(), l.caller()
		many, few := greedy.several(10), other.several(2)
		for _, step := range []struct {
			leave     *entering
			many, few int // how many have received or do
		}{
			{nil, 3, 1}, {many[0], 3, 1}, {many[1], 4, 1}, {many[2], 4, 2}, {few[0], 5, 2}, {many[3], 6, 2}, {few[1], 7, 2},
		} {
			if step.leave != nil {
				l.leave(step.leave)
			}
			if m, f := count(many, (*entering).receives), count(few, (*entering).receives); m != step.many || f != step.few {
				t.Fatalf("%d and %d have come to receive, want %+v", m, f, step)
			}
		}
	})
}

// A call that waits is refused after a while, or leaves when its caller does; in a full line the connection with the most
// calls makes room.
func TestLineIsBounded(t *testing.T) {
	inLine(t, 2, func(t *testing.T, l *testLine) {
		greedy, other := l.caller(), l.caller()
		many := greedy.several(6)
		if !errors.Is(many[5].err, job.ErrOverloaded) {
			t.Error("more wait than there are places")
		}
		few := other.several(3)
		if !few[0].receives() || !few[1].waits() || !errors.Is(few[2].err, job.ErrOverloaded) || !many[3].waits() || !errors.Is(many[4].err, job.ErrOverloaded) {
			t.Error("the full line is not shared")
		}
		time.Sleep(l.wait - time.Millisecond)
		if !many[3].waits() {
			t.Errorf("refused too soon: %v", many[3].err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !errors.Is(many[3].err, job.ErrOverloaded) {
			t.Errorf("after its time: %v", many[3].err)
		}
		var cancel context.CancelFunc
		other.ctx, cancel = context.WithCancel(other.ctx)
		waits := other.enter()
		if !waits.waits() {
			t.Error("there is room")
		}
		cancel()
		if <-waits.done; !errors.Is(waits.err, context.Canceled) || l.waiting != 0 {
			t.Errorf("a caller who leaves gets %v, and %d wait", waits.err, l.waiting)
		}
	})
}

// TestLineCuts: what takes long to arrive goes when others need its slot: soon where the connection has more of them, later
// where it has only that one, and never for others of the same connection.
func TestLineCuts(t *testing.T) {
	for name, tc := range map[string]struct {
		holders []int // how many calls each of the connections has
		waiters []int // which of them, or another one, has a call that waits
		after   time.Duration
		cut     int
		code    codes.Code
	}{
		"nobody waits":         {[]int{3}, nil, 30 * time.Second, 3, codes.DeadlineExceeded},
		"its own waits":        {[]int{3}, []int{0}, 30 * time.Second, 3, codes.DeadlineExceeded},
		"another waits":        {[]int{3, 1}, []int{2}, time.Second, 1, codes.ResourceExhausted},
		"two others wait":      {[]int{3, 1}, []int{2, 3}, time.Second, 2, codes.ResourceExhausted},
		"everybody has one":    {[]int{1, 1, 1, 1}, []int{4}, 3 * time.Second, 1, codes.ResourceExhausted},
		"only one has several": {[]int{1, 2, 1}, []int{3}, time.Second, 1, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			inLine(t, 100, func(t *testing.T, l *testLine) {
				conns := make([]caller, 5)
				for i := range conns {
					conns[i] = l.caller()
				}
				var in []*entering
				for i, n := range tc.holders {
					in = append(in, conns[i].several(n)...)
				}
				if n := count(in, (*entering).receives); n != len(in) {
					t.Fatalf("%d of %d receive", n, len(in))
				}
				for _, i := range tc.waiters {
					conns[i].enter()
				}
				cut := func() (n int) {
					synctest.Wait()
					for _, e := range in {
						n += len(e.turn.news)
					}
					return n
				}
				time.Sleep(tc.after - time.Millisecond)
				if n := cut(); n != 0 {
					t.Errorf("%d are cut too soon", n)
				}
				time.Sleep(time.Millisecond)
				if n := cut(); n != tc.cut {
					t.Errorf("%d are cut, want %d", n, tc.cut)
				}
				for _, e := range in {
					if len(e.turn.news) > 0 {
						if p := (*problem)(nil); !errors.As(<-e.turn.news, &p) || p.code != tc.code {
							t.Errorf("it is told %v", p)
						}
					}
					l.leave(e)
				}
			})
		})
	}
}

// However many connections stall, and come again when they are cut, a call of another one has its turn in time.
func TestLineOfStallers(t *testing.T) {
	inLine(t, 2000, func(t *testing.T, l *testLine) {
		ctx, stop := context.WithCancel(t.Context())
		var stallers sync.WaitGroup
		for range 200 {
			stallers.Go(func() {
				mine := peer.NewContext(ctx, &peer.Peer{Addr: newPeerConn(context.Background(), new(net.TCPConn), nil).RemoteAddr()})
				for ctx.Err() == nil {
					turn, err := l.line.enter(mine)
					if err != nil {
						continue
					}
					select {
					case <-turn.news:
					case <-ctx.Done():
					}
					l.line.leave(turn)
				}
			})
		}
		time.Sleep(10 * time.Second)
		for range 10 {
			e := l.caller().enter()
			if <-e.done; e.err != nil {
				t.Errorf("got %v", e.err)
				continue
			}
			l.leave(e)
		}
		stop()
		stallers.Wait()
	})
}
