package payload

import (
	"errors"
	"fmt"
	"strings"
)

// Sink takes what [Walk] finds, in the order of the text. The key of an
// array's element is its decimal index, as BSON writes arrays. Keys and
// strings are valid UTF-8, keys hold no NUL, and both may share memory with
// the text. A sink cannot stop the walk: one that has had enough ignores the
// rest, which is bounded by the text's length.
type Sink interface {
	BeginObject(key string)
	EndObject()
	BeginArray(key string)
	EndArray()
	String(key, value string)
	Int64(key string, value int64)
	Double(key string, value float64)
	Bool(key string, value bool)
	Null(key string)
}

// ErrNotObject is returned by [Walk] for a text that does not begin with an
// object; the rest of such a text is not read.
var ErrNotObject = errors.New("not a JSON object")

// ErrUnfaithful is what every [*UnfaithfulError] matches with [errors.Is].
var ErrUnfaithful = errors.New("BSON cannot hold it faithfully")

// UnfaithfulError says why BSON would change a JSON text, lose part of it, or
// refuse it. It never quotes the text: a body may hold what must not reach a
// log.
type UnfaithfulError struct {
	// Reason is one of a few fixed phrases, fit for a log or a metric's label.
	Reason string
	// Offset counts bytes from the start of the text to the token at fault.
	Offset int
}

// The reasons of an [UnfaithfulError].
const (
	ReasonTooDeep       = "nested too deeply"
	ReasonDuplicateKey  = "duplicate key"
	ReasonNULInKey      = "NUL in a key"
	ReasonLoneSurrogate = "lone surrogate"
	ReasonNumber        = "number that neither int64 nor double holds"
)

// Error describes the fault without quoting the text.
func (e *UnfaithfulError) Error() string {
	return fmt.Sprintf("BSON cannot hold it faithfully: %s at byte %d", e.Reason, e.Offset)
}

// Is makes errors.Is(err, ErrUnfaithful) true.
func (e *UnfaithfulError) Is(target error) bool { return target == ErrUnfaithful }

// Walk reads a text that is to be one JSON object, gives its content to sink,
// and checks on the way that BSON can hold it: no duplicate key in any object,
// no NUL in a key, no lone surrogate, no number that ParseNumber finds
// unfaithful, and at most maxDepth objects and arrays open at a time, the
// outermost object included.
//
// The outermost object is given to sink like any other, under the given key,
// so that a sink can append it as an element to a document it is writing.
//
// The form is the only one that [Render] can give the text back in. Whether it does
// is to be tried.
//
// The error is nil, [ErrNotObject], a [*SyntaxError] or an [*UnfaithfulError]:
// the first fault in the text, so that an unfaithful text need not be JSON to
// its end. After an error, sink has got a part of the text and must throw it
// away.
func Walk(text, key string, maxDepth int, sink Sink) (Form, error) {
	w := walker{Scanner: Scanner{text: text}, maxDepth: maxDepth}
	w.levels = w.fewLevels[:0]
	w.keys.keys = w.fewKeys[:0]

	tok, err := w.Next()
	if err != nil {
		return 0, err
	}
	if tok.Kind != BeginObject {
		return 0, ErrNotObject
	}
	firstKey := len(text)
	for tok.Kind != End {
		switch tok.Kind {
		case Key:
			firstKey = min(firstKey, w.pos)
			key, err = w.memberKey(tok)
		case EndObject:
			w.closeObject()
			sink.EndObject()
		case EndArray:
			w.levels = w.levels[:len(w.levels)-1]
			sink.EndArray()
		default:
			err = w.giveValue(tok, w.elementKey(key), sink)
		}
		if err != nil {
			return 0, err
		}
		if tok, err = w.Next(); err != nil {
			return 0, err
		}
	}
	if w.escapes&escapedUnicode != 0 {
		w.escapes &^= escapedLines // they are among it
	}
	return w.escapes | formOf(text, firstKey), nil
}

// level is one open object or array.
type level struct {
	object object
	array  bool
	length int // of the array so far
}

// walker is the state of one Walk: one allocation, unless the text nests or
// has more keys than the two arrays hold.
type walker struct {
	Scanner
	maxDepth  int
	levels    []level
	keys      keySet
	indexes   indexNames
	escapes   Form // the parts of a form that would write those met so far
	fewLevels [8]level
	fewKeys   [linearKeys]string
}

// memberKey checks the key of an object's member.
func (w *walker) memberKey(tok Token) (string, error) {
	key, escapes, ok := tok.text()
	w.escapes |= escapes
	if !ok {
		return "", w.unfaithful(ReasonLoneSurrogate)
	}
	// A raw NUL is not JSON, so only an escape can bring one in.
	if tok.escaped && strings.IndexByte(key, 0) >= 0 {
		return "", w.unfaithful(ReasonNULInKey)
	}
	if !w.keys.add(&w.levels[len(w.levels)-1].object, key) {
		return "", w.unfaithful(ReasonDuplicateKey)
	}
	return key, nil
}

// elementKey is the next value's key: its index inside an array, and key
// elsewhere.
func (w *walker) elementKey(key string) string {
	if len(w.levels) == 0 {
		return key
	}
	l := &w.levels[len(w.levels)-1]
	if !l.array {
		return key
	}
	index := l.length
	l.length++
	return w.indexes.name(index)
}

func (w *walker) giveValue(tok Token, key string, sink Sink) error {
	switch tok.Kind {
	case BeginObject, BeginArray:
		if w.depth > w.maxDepth {
			return w.unfaithful(ReasonTooDeep)
		}
		if tok.Kind == BeginArray {
			w.levels = append(w.levels, level{array: true})
			sink.BeginArray(key)
			return nil
		}
		w.levels = append(w.levels, level{object: w.keys.open()})
		sink.BeginObject(key)
	case String:
		value, escapes, ok := tok.text()
		w.escapes |= escapes
		if !ok {
			return w.unfaithful(ReasonLoneSurrogate)
		}
		sink.String(key, value)
	case Number:
		kind, i, f := ParseNumber(tok.raw)
		switch kind {
		case Int64:
			sink.Int64(key, i)
		case Double:
			sink.Double(key, f)
		default:
			return w.unfaithful(ReasonNumber)
		}
	case True, False:
		sink.Bool(key, tok.Kind == True)
	case Null:
		sink.Null(key)
	}
	return nil
}

func (w *walker) closeObject() {
	last := len(w.levels) - 1
	w.keys.close(&w.levels[last].object)
	w.levels = w.levels[:last]
}

func (w *walker) unfaithful(reason string) error {
	return &UnfaithfulError{Reason: reason, Offset: w.start}
}
