package server

import (
	"container/list"
	"sync"
	"time"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// firstPart is what a call counts for before a byte of its message is there. It must be small: a peer that sends no
	// more than a message's length takes as much.
	firstPart = 16 << 10
	// largestPart is what is asked for at once of a long message: a peer sends that much without waiting for us.
	largestPart = 256 << 10
	// largestClaim is what a message counts for at most when its length is announced. Peers can announce what they like.
	largestClaim = 1 << 20
	// patience is how long a message may have been on its way and still stay when there is no room for others.
	patience = time.Second
)

// admission bounds the calls in the server and the bytes of their requests. What is over the bound is
// refused with OVERLOADED. Bytes count before they are read from the connection, in parts, so that a peer takes no more
// room than about twice of what it has sent.
type admission struct {
	maxCalls, maxBytes int64
	patience           time.Duration

	mu           sync.Mutex
	calls, bytes int64
	// claims is what the messages of the calls have announced, short ones left out.
	claims int64
	// most is the largest that bytes has been.
	most int64
	// receiving are the calls whose messages are on their way, the oldest first.
	receiving list.List
}

func newAdmission(calls int, bytes int64) *admission {
	return &admission{maxCalls: int64(calls), maxBytes: bytes, patience: patience}
}

// admitted is a call that was let in. Its fields are guarded by the admission's mutex.
type admitted struct {
	*admission
	bytes int64
	claim int64
	began time.Time
	// place is where the call stands in receiving, nil when it does not.
	place *list.Element
	// cut ends the receiving from outside, with the error that the caller is to get.
	cut func(*problem)
	// fate is that error.
	fate *problem
}

// enter lets a call in that is about to receive its message, or returns nil. Where the room is all but taken it does not
// wait to hear how long the message is. cut is called without locks, once at most, and only before received is. leave
// must follow.
func (a *admission) enter(now time.Time, cut func(*problem)) *admitted {
	a.mu.Lock()
	if a.calls >= a.maxCalls || a.bytes > a.maxBytes-a.maxBytes/16 {
		stale := a.stale(nil)
		a.mu.Unlock()
		cutAll(stale)
		return nil
	}
	defer a.mu.Unlock()
	a.calls++
	c := &admitted{admission: a, began: now, cut: cut}
	c.place = a.receiving.PushBack(c)
	return c
}

// announce counts a message's length, or says that there is no room for it: what cannot be taken to its end is better
// refused at its beginning. Short messages have no need to: claims of peers that send nothing are not to keep them out.
func (c *admitted) announce(length int64) bool {
	if length <= firstPart {
		return true
	}
	claim := min(length, largestClaim)
	return c.count(func() bool {
		if c.claims+claim > c.maxBytes {
			return false
		}
		c.claims += claim
		c.claim = claim
		return true
	})
}

// grow counts n more bytes, or says that there is no room for them.
func (c *admitted) grow(n int64) bool {
	return c.count(func() bool {
		if c.admission.bytes+n > c.maxBytes {
			return false
		}
		c.admission.bytes += n
		c.most = max(c.most, c.admission.bytes)
		c.bytes += n
		return true
	})
}

// count does so with the lock held, and cuts those that keep others out when there is no room.
func (c *admitted) count(ok func() bool) bool {
	c.mu.Lock()
	if ok() {
		c.mu.Unlock()
		return true
	}
	stale := c.stale(c)
	c.mu.Unlock()
	cutAll(stale)
	return false
}

// stale takes the calls off the list that have been receiving for long, to be cut, because others find no room: a peer
// that stalls is not to keep them out. It spares one, which goes anyway.
func (a *admission) stale(spared *admitted) (stale []*admitted) {
	for e := a.receiving.Front(); e != nil; e = a.receiving.Front() {
		c := e.Value.(*admitted)
		if time.Since(c.began) < a.patience {
			break
		}
		c.unlist()
		if c != spared {
			c.fate = newProblem(joboncev1.ErrorReason_ERROR_REASON_OVERLOADED,
				"the request took long to arrive, and others wait")
			stale = append(stale, c)
		}
	}
	return stale
}

func cutAll(calls []*admitted) {
	for _, c := range calls {
		c.cut(c.fate)
	}
}

// expire cuts the call if it is still receiving.
func (c *admitted) expire() {
	c.mu.Lock()
	if c.place == nil {
		c.mu.Unlock()
		return
	}
	c.unlist()
	c.fate = tooSlow()
	c.mu.Unlock()
	c.cut(c.fate)
}

// received says that the message is there, or will not be read on. It returns the error with which the call was cut, if
// it was.
func (c *admitted) received() *problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist()
	return c.fate
}

func (c *admitted) unlist() {
	if c.place != nil {
		c.receiving.Remove(c.place)
		c.place = nil
	}
}

// leave counts the call and its bytes out.
func (c *admitted) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist()
	c.calls--
	c.admission.bytes -= c.bytes
	c.claims -= c.claim
}

// held is how many calls and bytes count now.
func (a *admission) held() (calls, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls, a.bytes
}
