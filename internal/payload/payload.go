// Package payload reads webhook bodies: what JobOnce must know about a body
// before it records a delivery, and whether BSON can hold the body without
// changing it. It also renders a body back from BSON ([Render]).
//
// Bodies come from strangers, so all that reads them is iterative, linear in the
// length of the text, and unbounded in depth at one bit per level. A body is
// JSON when RFC 8259 and [encoding/json.Valid] say so and it is valid UTF-8.
// Two differences to encoding/json are on purpose: that package takes invalid
// UTF-8, which no gRPC string can carry, and refuses nesting beyond 10,000
// levels, which is legal JSON.
//
// A byte-order mark before JSON is no JSON, but programs write it: [Scan] reads
// what stands behind it, so that it hides nothing, and [Walk] refuses it.
package payload

import "strings"

// Limits says, in bytes after unescaping, how long a field's value may be. A
// longer one counts as absent and is not copied. Zero takes the empty string
// only.
type Limits struct {
	JobID  int
	Event  int
	Status int
}

// Info is what one pass over a body finds out for RecordDelivery. It is zero
// when the text is not JSON, even if fields stood before the fault: what is
// not understood whole must not decide which job is meant.
type Info struct {
	// JSON is true when the text is exactly one JSON value, of any type, or a
	// byte-order mark and one.
	JSON bool
	// Object is true when that value is an object.
	Object bool
	// BOM is true when JSON is, and a byte-order mark stands before the value.
	BOM bool

	// The top-level members job_id, event and status of the object. Members of
	// nested objects never count.
	JobID  Field
	Event  Field
	Status Field
}

// Field is one top-level member of the body: the last one of its name, as JSON
// parsers take it.
type Field struct {
	// Kind is that of the value's last token: EndObject for an object, EndArray
	// for an array. End when there is no such member.
	Kind Kind
	// Value is the unescaped string. It may share memory with the body: a caller
	// that keeps it longer than the body clones it.
	Value string
	// Present is true when the value is a string within its limit and without a
	// lone surrogate. The empty string is present.
	Present bool
	// Repeated is true when the key occurs more than once, whatever the values'
	// types and however the key is spelled: \u006aob_id is job_id.
	Repeated bool
}

// Unread is true when the member may say something that Value does not hold:
// any other value than a string that is Present, and null, which says nothing
// where it is alone. To some parsers a null leaves what the same key said before.
func (f Field) Unread() bool {
	return !f.Present && f.Kind != End && (f.Kind != Null || f.Repeated)
}

// bom is a byte-order mark in UTF-8.
const bom = "\ufeff"

// maxEscape is how many bytes of JSON can stand for one byte of a string:
// \u0041 is A. It bounds a string's unescaped length from below without
// unescaping it.
const maxEscape = 6

// Scan reads a body once and says whether it is JSON and which job it is about.
func Scan(text string, limits Limits) Info {
	text, marked := strings.CutPrefix(text, bom)
	s := Scanner{text: text}
	tok, err := s.Next()
	if err != nil {
		return Info{}
	}

	info := Info{JSON: true, Object: tok.Kind == BeginObject, BOM: marked}
	members := [...]member{
		{name: "job_id", field: &info.JobID, limit: limits.JobID},
		{name: "event", field: &info.Event, limit: limits.Event},
		{name: "status", field: &info.Status, limit: limits.Status},
	}
	var current *member // whose value comes next, nil for one of no interest
	for tok.Kind != End {
		tok, err = s.Next()
		if err != nil {
			return Info{}
		}
		if s.depth != 1 {
			continue
		}
		switch {
		case tok.Kind == Key:
			current = find(members[:], tok)
			if current != nil {
				*current.field = Field{Repeated: current.seen}
				current.seen = true
			}
		case current != nil:
			current.field.Kind = tok.Kind
			if tok.Kind == String {
				current.field.Value, current.field.Present = tok.within(current.limit)
			}
		}
	}
	return info
}

// Check says where a text stops being what [Scan] calls JSON, with a
// [*SyntaxError]; nil when it does not.
func Check(text string) error {
	s := Scanner{text: text}
	if strings.HasPrefix(text, bom) {
		s.pos = len(bom)
	}
	for {
		if tok, err := s.Next(); err != nil || tok.Kind == End {
			return err
		}
	}
}

// member is a top-level member that Scan looks for.
type member struct {
	name  string
	field *Field
	limit int
	seen  bool
}

// find gives the member that a key names, or nil.
func find(members []member, key Token) *member {
	name, ok := key.within(len("job_id"))
	if !ok {
		return nil
	}
	for i := range members {
		if members[i].name == name {
			return &members[i]
		}
	}
	return nil
}

// within is Text for strings of at most limit bytes. It copies no more than a
// small multiple of the limit, however long the string is.
func (t Token) within(limit int) (string, bool) {
	if len(t.raw)/maxEscape > limit {
		return "", false
	}
	s, ok := t.Text()
	if !ok || len(s) > limit {
		return "", false
	}
	return s, true
}
