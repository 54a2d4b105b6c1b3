package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Field returns a function for [Source] that takes the text, whole number or truth value at a path within the item, such as
// "data.object.id". It fails where there is none.
func Field(path string) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		v, err := i.JSON()
		if err != nil {
			return "", err
		}
		return textAt(v, path)
	}
}

// Header returns a function for [Source] that takes the value of a header. It fails where that is missing or there twice.
func Header(name string) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		value, r := only(i.Request.Header, name)
		if r != nil {
			return "", r.err
		}
		return value, nil
	}
}

// FormField returns a function for [Source] that takes a field of a form.
func FormField(name string) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		form, err := i.Request.Form()
		if err != nil {
			return "", err
		}
		if values := form[name]; len(values) == 1 {
			return values[0], nil
		}
		return "", fmt.Errorf("%s is there %d times", name, len(form[name]))
	}
}

// Join returns a function for [Source] that puts ":" between the values of others. It fails where one of them fails or is
// empty: what is left would be the id of many jobs.
func Join(parts ...func(*Item) (string, error)) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		values := make([]string, len(parts))
		for n, part := range parts {
			value, err := part(i)
			if err != nil {
				return "", err
			}
			if value == "" {
				return "", fmt.Errorf("part %d is empty", n+1)
			}
			values[n] = value
		}
		return strings.Join(values, ":"), nil
	}
}

// First returns a function for [Source] that takes the first value that is there.
func First(parts ...func(*Item) (string, error)) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		var all error
		for _, part := range parts {
			value, err := part(i)
			if err == nil && value != "" {
				return value, nil
			}
			all = errors.Join(all, err)
		}
		if all == nil {
			all = errors.New("is empty")
		}
		return "", all
	}
}

// Array returns a function for the Items of a [Source] that takes the elements at a path, such as "events[]", or "[]" where the
// body is an array. Each is stored byte for byte.
func Array(path string) func(*Request) ([]*Item, error) {
	return func(r *Request) ([]*Item, error) {
		if _, err := r.JSON(); err != nil {
			return nil, err
		}
		found, err := rawLookup(bytes.TrimPrefix(r.Body, []byte(byteOrderMark)), path)
		if err != nil {
			return nil, fmt.Errorf("%s %w", path, err)
		}
		items := make([]*Item, len(found))
		for n, body := range found {
			items[n] = &Item{Body: body}
			if len(found) > MaxItems {
				continue // They are refused.
			}
			if items[n].Value, err = DecodeJSON(body); err != nil || items[n].Value == nil {
				return nil, fmt.Errorf("element %d of %s is null", n, path)
			}
		}
		return items, nil
	}
}

// OneOf returns a function for the When of a [Source]: is the value one of these?
func OneOf(value func(*Item) (string, error), values ...string) func(*Item) (bool, error) {
	return func(i *Item) (bool, error) {
		got, err := value(i)
		return slices.Contains(values, got), err
	}
}

// with puts ":" and another value, which need not be there, behind an id.
func with(id, more func(*Item) (string, error)) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		value, err := id(i)
		if err != nil {
			return "", err
		}
		behind, _ := more(i)
		return value + ":" + behind, nil
	}
}

// signedID takes the id from the header that the request's scheme signs, or from otherwise where the scheme signs none. Whoever
// replays a delivery could change a header that is not signed, and make another job of it.
func signedID(otherwise func(*Item) (string, error)) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		if s := i.Request.scheme; s != nil && s.has("id") {
			return Header(s.IDHeader)(i)
		}
		return otherwise(i)
	}
}

// optional is the value, or nothing where it is not there.
func optional(value func(*Item) (string, error)) func(*Item) (string, error) {
	return func(i *Item) (string, error) {
		got, err := value(i)
		if err != nil {
			return "", nil
		}
		return got, nil
	}
}
