package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// lookup returns the values at a path within v, as "value[].clientState": names with points between, "[]" for each element
// of an array. missing is true where one of the places does not exist; its value is nil.
func lookup(v any, path string) (found []any, missing bool) {
	if path == "" {
		return []any{v}, false
	}
	name, rest, _ := strings.Cut(path, ".")
	each := strings.HasSuffix(name, "[]")
	name = strings.TrimSuffix(name, "[]")
	if name != "" {
		object, _ := v.(map[string]any)
		member, ok := object[name]
		if !ok {
			return []any{nil}, true
		}
		v = member
	}
	if !each {
		return lookup(v, rest)
	}
	elements, ok := v.([]any)
	if !ok {
		return []any{nil}, true
	}
	for _, element := range elements {
		below, absent := lookup(element, rest)
		found, missing = append(found, below...), missing || absent
	}
	return found, missing
}

// text is a string, a whole number or a truth value as text; ok is false for anything else.
func text(v any) (s string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case int64:
		return strconv.FormatInt(v, 10), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// textAt is the text at a path without "[]".
func textAt(v any, path string) (string, error) {
	found, missing := lookup(v, path)
	if missing || len(found) != 1 {
		return "", fmt.Errorf("%s is missing", path)
	}
	s, ok := text(found[0])
	if !ok {
		return "", fmt.Errorf("%s is neither text nor a whole number", path)
	}
	return s, nil
}

// rawLookup is lookup on text: the values byte for byte.
func rawLookup(data []byte, path string) ([][]byte, error) {
	if path == "" {
		return [][]byte{data}, nil
	}
	name, rest, _ := strings.Cut(path, ".")
	each := strings.HasSuffix(name, "[]")
	if name = strings.TrimSuffix(name, "[]"); name != "" {
		var object map[string]json.RawMessage
		err := json.Unmarshal(data, &object)
		value, ok := object[name]
		if err != nil || !ok {
			return nil, errors.New("is missing")
		}
		data = value
	}
	if !each {
		return rawLookup(data, rest)
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil || elements == nil {
		return nil, errors.New("is no array")
	}
	var found [][]byte
	for _, element := range elements {
		below, err := rawLookup(element, rest)
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}
