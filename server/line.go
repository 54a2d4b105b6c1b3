package server

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// line bounds the calls that receive their messages at a time: grpc-go tells how long a message is only once all of it has
// arrived. The other calls stand in line, each connection in a queue of its own, and the connections take turns, so that
// one that sends a lot, or stalls, keeps no other one out. A quarter of the slots is for connections that receive nothing
// else.
type line struct {
	// slots is how many receive at a time, places how many may wait.
	slots, places int
	// wait is how long a call may wait, and limit how long its message may take to arrive. When calls of other connections
	// wait it is patience, or three times as long for the only one of its connection, and less when many connections wait.
	wait, limit, patience time.Duration
	// waited is told how long a call was in line.
	waited func(time.Duration)

	mu sync.Mutex
	// receiving counts the calls that receive, holds those of each connection. pending are those that were not cut, the
	// oldest first.
	receiving int
	holds     map[*peerConn]int
	pending   list.List
	waiting   int
	queues    map[*peerConn]*queue
	// order has the queues, the next one first.
	order list.List
	// timer calls look while there is something to look at.
	timer *time.Timer
	armed bool
}

func newLine(limit time.Duration) *line {
	return &line{
		slots: 32, places: 2048, wait: 5 * time.Second, patience: time.Second, limit: limit,
		waited: func(time.Duration) {},
		holds:  make(map[*peerConn]int), queues: make(map[*peerConn]*queue),
	}
}

// queue has the calls of a connection that wait, the first one first.
type queue struct {
	list.List
	place *list.Element // in the order
}

// turn is a call in line, or one that receives. Its fields are guarded by the line's mutex.
type turn struct {
	conn  *peerConn
	began time.Time
	// place is where it stands in its queue, or in pending.
	place *list.Element
	// news tells a call that waits that its turn has come (nil), or why it never will. It tells a call that receives how that
	// ended: the line sends the error when it cuts the call, the receiving goroutine sends the result.
	news chan error
}

// enter waits for the call's turn. leave must follow when the error is nil.
func (l *line) enter(ctx context.Context) (*turn, error) {
	t := &turn{conn: connection(ctx), news: make(chan error, 2)}
	l.mu.Lock()
	if l.free(t.conn) && l.queues[t.conn] == nil {
		l.start(t)
		l.mu.Unlock()
		return t, nil
	}
	if l.waiting >= l.places && !l.displace(t.conn) {
		l.mu.Unlock()
		return nil, job.ErrOverloaded
	}
	l.join(t)
	l.lookLocked()
	l.mu.Unlock()

	joined := time.Now()
	defer func() { l.waited(time.Since(joined)) }()
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	var err error
	select {
	case err = <-t.news:
		return t, err
	case <-timer.C:
		err = job.ErrOverloaded
	case <-ctx.Done():
		err = gone(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case told := <-t.news: // in the last moment
		return t, told
	default:
	}
	l.drop(t)
	return nil, err
}

// leave ends the receiving. The next one in line begins.
func (l *line) leave(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.receiving--
	if l.holds[t.conn]--; l.holds[t.conn] == 0 {
		delete(l.holds, t.conn)
	}
	if t.place != nil {
		l.pending.Remove(t.place)
		t.place = nil
	}
	if l.waiting == 0 {
		return
	}
	for e := l.order.Front(); e != nil; e = e.Next() {
		next := e.Value.(*queue).Front().Value.(*turn)
		if l.free(next.conn) {
			l.order.MoveToBack(e)
			l.drop(next)
			l.start(next)
			next.news <- nil
			break // A slot became free, and no more than one.
		}
	}
	l.lookLocked()
}

// free tells whether a call of the connection may receive.
func (l *line) free(conn *peerConn) bool {
	return l.receiving < l.slots-l.slots/4 || l.receiving < l.slots && l.holds[conn] == 0
}

// start lets a call receive.
func (l *line) start(t *turn) {
	l.receiving++
	l.holds[t.conn]++
	t.began = time.Now()
	t.place = l.pending.PushBack(t)
	if !l.armed {
		l.arm(l.limit)
	}
}

// join puts a call in line.
func (l *line) join(t *turn) {
	q := l.queues[t.conn]
	if q == nil {
		q = &queue{}
		q.place = l.order.PushBack(q)
		l.queues[t.conn] = q
	}
	t.place = q.PushBack(t)
	l.waiting++
}

// drop takes a call out of the line.
func (l *line) drop(t *turn) {
	q := l.queues[t.conn]
	q.Remove(t.place)
	t.place = nil
	l.waiting--
	if q.Len() == 0 {
		l.order.Remove(q.place)
		delete(l.queues, t.conn)
	}
}

// displace makes room in a full line for a call of a connection that has fewer calls there than another one: it refuses the
// last one of the longest queue.
func (l *line) displace(conn *peerConn) bool {
	mine, longest := 0, &queue{}
	for c, q := range l.queues {
		if c == conn {
			mine = q.Len()
		}
		if q.Len() > longest.Len() {
			longest = q
		}
	}
	if longest.Len() <= mine+1 {
		return false
	}
	last := longest.Back().Value.(*turn)
	l.drop(last)
	last.news <- job.ErrOverloaded
	return true
}

func (l *line) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	l.lookLocked()
}

// lookLocked cuts the calls that have been receiving for too long, and sees to it that the next one is cut in time.
func (l *line) lookLocked() {
	now, next := time.Now(), time.Duration(0)
	for e := l.pending.Front(); e != nil; {
		t := e.Value.(*turn)
		e = e.Next()
		age := now.Sub(t.began)
		if left := l.allowed(t.conn) - age; left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		l.pending.Remove(t.place)
		t.place = nil
		t.news <- tooSlow(age >= l.limit)
	}
	if next > 0 {
		l.arm(next)
	}
}

// allowed is how long a message on the connection may take to arrive.
func (l *line) allowed(conn *peerConn) time.Duration {
	others := len(l.queues) > 1 || len(l.queues) == 1 && l.queues[conn] == nil
	// Each connection in line is to have a turn within patience: many that stall would keep all others out.
	share := l.patience * time.Duration(l.slots) / time.Duration(max(len(l.queues), 1))
	switch {
	case !others || l.waiting <= l.receiving-l.pending.Len(): // Those that were cut before make room, too.
		return l.limit
	case l.holds[conn] > 1:
		return min(l.patience, share, l.limit)
	}
	return min(3*l.patience, share, l.limit)
}

// arm has look called after d.
func (l *line) arm(d time.Duration) {
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.look)
		return
	}
	l.timer.Reset(d)
}

// inLine is how many calls wait.
func (l *line) inLine() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// tooSlow is the error of a call whose message takes long to arrive: longer than any may, or as long as others wait.
func tooSlow(expired bool) *problem {
	if !expired {
		return newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "the request took long to arrive, and others wait")
	}
	p := newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "the request did not arrive in time")
	p.code, p.retry = codes.DeadlineExceeded, 0
	return p
}

// gone is the error of a call whose context ended in line. Nothing of it was read, so nothing was written.
func gone(ctx context.Context) *problem {
	p := newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, "the deadline passed while the call was in line")
	// grpc-go cancels calls at their deadline, so the context's error tells the two apart by chance.
	if deadline, ok := ctx.Deadline(); !ok || time.Now().Before(deadline) {
		p.message, p.code, p.retry = "the call was cancelled while it was in line", codes.Canceled, 0
	}
	p.cause = ctx.Err()
	return p
}
