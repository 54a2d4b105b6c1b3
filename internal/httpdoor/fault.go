package httpdoor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// fault is why a request could not be decoded.
type fault struct {
	// field is the path of the one at fault, such as deliveries[3].wait, and problem what it must be. A field that the request
	// has not is unknown, and its name the caller's own.
	field, problem string
	unknown        bool
}

// findFault looks for the field at fault in a request that cannot be decoded as a whole. nil: none is by itself.
func findFault(data []byte, into protoreflect.Message) *fault {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return nil
	}
	fields := into.Descriptor().Fields()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		f := fields.ByTextName(name)
		if f == nil {
			f = fields.ByJSONName(name)
		}
		if f == nil {
			return &fault{field: clip(name), unknown: true}
		}
		if bad := faultOf(members[name], f, into); bad != nil {
			bad.field = string(f.Name()) + bad.field
			return bad
		}
	}
	return nil
}

// faultOf looks at the value of one field, at which the path of a fault begins.
func faultOf(value json.RawMessage, f protoreflect.FieldDescriptor, of protoreflect.Message) *fault {
	if takes(value, f, of) {
		return nil
	}
	if !f.IsList() {
		return faultWithin(value, f, of.NewField(f))
	}
	var elements []json.RawMessage
	if json.Unmarshal(value, &elements) == nil {
		for i, element := range elements {
			if !takes(fmt.Appendf(nil, "[%s]", element), f, of) {
				bad := faultWithin(element, f, of.NewField(f).List().NewElement())
				bad.field = fmt.Sprintf("[%d]%s", i, bad.field)
				return bad
			}
		}
	}
	return &fault{problem: "must be a list"}
}

// faultWithin looks at a value that is wrong, and for the field of it that is, where it has fields.
func faultWithin(value json.RawMessage, f protoreflect.FieldDescriptor, into protoreflect.Value) *fault {
	if problem := wanted(f); problem != "" {
		return &fault{problem: problem}
	}
	if bad := findFault(value, into.Message()); bad != nil {
		bad.field = "." + bad.field
		return bad
	}
	return &fault{problem: "must be an object, with fields that go together"}
}

// takes tells whether the field can have the value.
func takes(value json.RawMessage, f protoreflect.FieldDescriptor, of protoreflect.Message) bool {
	text := fmt.Appendf(nil, "{%q:%s}", f.Name(), value)
	return protojson.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(text, of.New().Interface()) == nil
}

// wanted says what a value of the field must be; empty for a message of the API's own.
func wanted(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return "must be a string of valid UTF-8"
	case protoreflect.BytesKind:
		return "must be a string in base64"
	case protoreflect.BoolKind:
		return "must be true or false"
	case protoreflect.EnumKind:
		var names []string
		for values, i := f.Enum().Values(), 1; i < values.Len(); i++ { // Without that of 0, which is the same as none.
			names = append(names, string(values.Get(i).Name()))
		}
		return "must be one of " + strings.Join(names, ", ")
	case protoreflect.MessageKind:
		switch f.Message().FullName() {
		case new(durationpb.Duration).ProtoReflect().Descriptor().FullName():
			return `must be seconds with an s, such as "60s" or "0.5s"`
		case new(timestamppb.Timestamp).ProtoReflect().Descriptor().FullName():
			return `must be a time as RFC 3339 has it, such as "2026-01-02T15:04:05Z"`
		}
		return ""
	}
	return "must be a whole number"
}
