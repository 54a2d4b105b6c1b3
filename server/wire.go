package server

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// errWire is the error of a message whose encoding is broken.
var errWire = errors.New("malformed message")

// textError is the error of a string field that is not valid UTF-8.
type textError struct {
	// name is the field's own name, path the way to it, such as deliveries[3].payload.
	name, path string
}

func (e *textError) Error() string { return e.path + " is not valid UTF-8" }

// checkWire finds out why a message cannot be decoded, which the decoder tells in words only. It reads the encoding as
// proto.Unmarshal does and returns the first fault: a *textError or errWire. It returns nil exactly when proto.Unmarshal
// does, for messages without groups, maps, packed fields, required fields and extensions, which the API has not.
func checkWire(b []byte, md protoreflect.MessageDescriptor) error {
	return checkMessage(b, md, protowire.DefaultRecursionLimit)
}

func checkMessage(b []byte, md protoreflect.MessageDescriptor, depth int) error {
	if depth == 0 {
		return errWire
	}
	var seen map[protowire.Number]int
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || !num.IsValid() {
			return errWire
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return errWire
		}
		value := b[:n]
		b = b[n:]

		// A known field of another wire type counts as an unknown one.
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch fd.Kind() {
		case protoreflect.StringKind:
			if !utf8.Valid(content) {
				return &textError{name: string(fd.Name()), path: element(fd, seen[num])}
			}
		case protoreflect.MessageKind:
			if err := checkMessage(content, fd.Message(), depth-1); err != nil {
				var text *textError
				if errors.As(err, &text) {
					text.path = element(fd, seen[num]) + "." + text.path
				}
				return err
			}
		}
		if fd.IsList() {
			if seen == nil {
				seen = make(map[protowire.Number]int)
			}
			seen[num]++
		}
	}
	return nil
}

// element names a field, and for a list its element.
func element(fd protoreflect.FieldDescriptor, index int) string {
	name := string(fd.Name())
	if fd.IsList() {
		name += "[" + strconv.Itoa(index) + "]"
	}
	return name
}
