package payload

import (
	"slices"
	"strconv"
)

// linearKeys is how many keys of one object are compared one by one. Beyond
// it, a map: Go seeds its hashes, so nobody can choose keys that collide.
const linearKeys = 32

// reusedKeys bounds the maps that are cleared for another object: clearing
// costs what the largest object before needed, so an object of 300,000 keys
// followed by many of 33 would be quadratic.
const reusedKeys = 512

// object is the keys of one open object.
type object struct {
	first int    // where its keys begin in keySet.keys
	marks uint64 // one bit for each key's mark: a clear one proves a key new
	large map[string]struct{}
}

// keySet finds duplicate keys in nested objects. The first keys of all open
// objects lie in one slice, the innermost object's last, so that small objects
// need no memory of their own.
type keySet struct {
	keys  []string
	spare map[string]struct{} // empty, or nil
}

func (s *keySet) open() object { return object{first: len(s.keys)} }

// add takes a key into the innermost object and says whether it is new there.
func (s *keySet) add(o *object, key string) bool {
	if o.large != nil {
		before := len(o.large)
		o.large[key] = struct{}{}
		return len(o.large) > before
	}

	mark := uint64(1) << markOf(key)
	keys := s.keys[o.first:]
	if o.marks&mark != 0 && slices.Contains(keys, key) {
		return false
	}
	if len(keys) == linearKeys {
		s.enlarge(o)
		o.large[key] = struct{}{}
		return true
	}
	o.marks |= mark
	s.keys = append(s.keys, key)
	return true
}

// enlarge moves the innermost object's keys to a map.
func (s *keySet) enlarge(o *object) {
	o.large, s.spare = s.spare, nil
	if o.large == nil {
		o.large = make(map[string]struct{}, 2*linearKeys)
	}
	for _, key := range s.keys[o.first:] {
		o.large[key] = struct{}{}
	}
}

// close forgets the innermost object.
func (s *keySet) close(o *object) {
	s.keys = s.keys[:o.first]
	if o.large != nil && len(o.large) <= reusedKeys {
		clear(o.large)
		s.spare = o.large
	}
}

// markOf spreads the keys of ordinary bodies over 64 bits, cheaply. Keys that
// collide cost a comparison, no more.
func markOf(key string) uint {
	if key == "" {
		return 0
	}
	return (uint(len(key))*7 + uint(key[0])*3 + uint(key[len(key)/2])*5 + uint(key[len(key)-1])) % 64
}

// indexBlock is how many array indexes are written out at once.
const indexBlock = 1000

// firstIndexes are the names of the first elements of every array.
var firstIndexes = writeIndexes(0)

// indexNames names the elements of arrays as BSON wants them: "0", "1", and so
// on. Only arrays longer than indexBlock allocate, once for each further
// block.
type indexNames struct {
	base  int
	block []string
}

func (n *indexNames) name(index int) string {
	if index < indexBlock {
		return firstIndexes[index]
	}
	base := index - index%indexBlock
	if n.base != base {
		n.base, n.block = base, writeIndexes(base)
	}
	return n.block[index-base]
}

// writeIndexes writes the names of one block into one piece of memory.
func writeIndexes(base int) []string {
	text := make([]byte, 0, indexBlock*len(strconv.Itoa(base+indexBlock)))
	var ends [indexBlock]int
	for i := range ends {
		text = strconv.AppendInt(text, int64(base+i), 10)
		ends[i] = len(text)
	}
	all := string(text)
	names := make([]string, indexBlock)
	start := 0
	for i, end := range ends {
		names[i] = all[start:end]
		start = end
	}
	return names
}
