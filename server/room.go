package server

import "sync"

// reserved is what a call counts for until its message is there: what a peer may send before anybody reads it.
const reserved = streamWindow

// room bounds the calls in the server and the bytes of their requests. What is over the bound is refused with OVERLOADED.
type room struct {
	maxCalls, maxBytes int64

	mu           sync.Mutex
	calls, bytes int64
	// most is the largest that bytes has been.
	most int64
}

// place is one call's share of the room.
type place struct {
	room  *room
	bytes int64
	left  bool
}

// enter gives a call a place, or nil when the room is full. The last sixteenth of the bytes is left to calls that are inside:
// how long a message is shows only later. leave must follow.
func (r *room) enter() *place {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls >= r.maxCalls || r.bytes > r.maxBytes-r.maxBytes/16 {
		return nil
	}
	r.calls++
	return &place{room: r}
}

// count makes the call count for n bytes instead of what it counted for before. It returns false when there is no room for them.
func (p *place) count(n int64) bool {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.left || r.bytes-p.bytes+n > r.maxBytes {
		return false
	}
	r.bytes += n - p.bytes
	r.most = max(r.most, r.bytes)
	p.bytes = n
	return true
}

// leave gives the place back.
func (p *place) leave() {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
	r.bytes -= p.bytes
	p.left = true
}

// held is how many calls and bytes count now.
func (r *room) held() (calls, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls, r.bytes
}
