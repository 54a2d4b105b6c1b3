package mongostore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// patience is how long claims of this process may pass a job over, and take what was due after it.
	patience = 5 * time.Second
	// maxPassed bounds how many jobs are remembered as passed over.
	maxPassed = 10_000
	// minWidth and maxWidth bound how many times what it takes a claim chooses from. What it reads beyond that costs, so that a
	// lone instance reads little.
	minWidth, maxWidth = 2, 16
	// narrowAfter is after how many claims in a row that lost nothing the next ones choose from half.
	narrowAfter = 8
	// fewest is for how many jobs at least a claim makes room.
	fewest = 8
)

// picker has the claims of several instances try for different jobs. The jobs lie on a ring by their
// hashes, and each instance takes them from a point of its own on: it comes to another's part only where little is due. One
// that loses many takes another point, and chooses from more.
type picker struct {
	mu    sync.Mutex
	point uint64
	// width is how many times what it takes a claim chooses from; easy is how many in a row have lost nothing.
	width, easy int
	// passed is when a job was passed over first and last.
	passed map[string]passing
	// tried counts the leases that claims tried to get, won those that they got.
	tried, won int64
}

type passing struct{ first, last time.Time }

func newPicker() *picker {
	return &picker{point: rand.Uint64(), width: maxWidth / 2, passed: map[string]passing{}}
}

// onRing is where a job lies, the same for all instances.
func onRing(jobID string) uint64 {
	sum := sha256.Sum256([]byte(jobID))
	return binary.BigEndian.Uint64(sum[:])
}

// room is how much of what is due a claim of n jobs chooses from.
func (p *picker) room(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.width * max(n, fewest)
}

// pick chooses of what is due, the oldest first, up to n jobs whose bodies are together no larger than maxBytes, but for the
// first. Those that were passed over for long come first.
func (p *picker) pick(due []candidate, n int, maxBytes int64, now time.Time) (picked []candidate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type option struct {
		*candidate
		long bool
		at   uint64
	}
	options := make([]option, 0, len(due))
	for i := range due {
		c := &due[i]
		seen, known := p.passed[c.JobID]
		options = append(options, option{c, known && now.Sub(seen.first) >= patience, onRing(c.JobID) - p.point})
	}
	slices.SortFunc(options, func(a, b option) int {
		switch {
		case a.long && b.long:
			return cmp.Compare(a.place, b.place)
		case a.long != b.long:
			return map[bool]int{true: -1, false: 1}[a.long]
		}
		return cmp.Compare(a.at, b.at)
	})
	bytes := int64(0)
	for i, o := range options {
		if bytes += o.size; i == n || i > 0 && bytes > maxBytes {
			break
		}
		picked = append(picked, *o.candidate)
		delete(p.passed, o.JobID)
	}
	if len(p.passed) > maxPassed-len(options) {
		p.forget()
	}
	for _, o := range options[len(picked):] {
		seen, known := p.passed[o.JobID]
		if !known {
			seen.first = now
		}
		seen.last = now
		p.passed[o.JobID] = seen
	}
	return picked
}

// forget drops the half of the jobs that was not seen for longest: most of them others have claimed, and one that is due yet
// is among what each claim sees.
func (p *picker) forget() {
	ids := slices.SortedFunc(maps.Keys(p.passed), func(a, b string) int { return p.passed[a].last.Compare(p.passed[b].last) })
	for _, id := range ids[:len(ids)/2] {
		delete(p.passed, id)
	}
}

// widen has the next claims choose from more.
func (p *picker) widen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.double()
}

func (p *picker) double() { p.width, p.easy = min(maxWidth, p.width*2), 0 }

// count takes in how many leases a claim tried to get, and how many it won.
func (p *picker) count(tried, won int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried, p.won = p.tried+int64(tried), p.won+int64(won)
	switch lost := tried - won; {
	case lost*4 > tried:
		p.point = rand.Uint64()
		p.double()
	case lost > 0:
		p.easy = 0
	default:
		if p.easy++; p.easy == narrowAfter {
			p.width, p.easy = max(minWidth, p.width/2), 0
		}
	}
}

// Leases is how many leases claims have tried to get, and how many of these they got: the others went to other instances.
func (s *Store) Leases() (tried, won int64) {
	s.picker.mu.Lock()
	defer s.picker.mu.Unlock()
	return s.picker.tried, s.picker.won
}
