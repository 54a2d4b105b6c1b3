package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// structured are keys of sections that have no flag, since one plain value would not do. Their commands read them with
// [Structure].
var structured = map[string]bool{"webhook.sources": true, "poll.hosts": true}

// Structure returns what stands in the file under a key that is no flag, such as the sources of webhook; nil when the file
// does not have it.
func Structure(path, section, key string) (found *yaml.Node, err error) {
	root, err := readFile(path)
	if err != nil || root == nil {
		return nil, err
	}
	err = Each(path, "the file", root, func(k, v *yaml.Node) error {
		if k.Value != section || v.Tag == "!!null" {
			return nil
		}
		return Each(path, section, v, func(k, v *yaml.Node) error {
			if k.Value == key {
				found = v
			}
			return nil
		})
	})
	return found, err
}

// Fields sets the fields of a mapping: each key's value goes where into points for that key. An error names the file, the line
// and the key. what names the mapping.
func Fields(path, what string, node *yaml.Node, into map[string]any) error {
	return Each(path, what, node, func(key, value *yaml.Node) error {
		field, ok := into[key.Value]
		if !ok {
			return fmt.Errorf("%s:%d: %s has an unknown key %s", path, key.Line, what, key.Value)
		}
		if value.Tag == "!!null" || value.Kind == yaml.ScalarNode && value.Value == "" && key.Value != "id_prefix" {
			return fmt.Errorf("%s:%d: %s of %s is empty; give it a value, or leave it out", path, key.Line, key.Value, what)
		}
		if parse, ok := field.(func(*yaml.Node) error); ok {
			return parse(value)
		}
		if err := value.Decode(field); err != nil {
			// The library's own text has its name and the line in it, and may run over several lines.
			text := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  ")
			if _, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(text, "line ") {
				text = rest
			}
			return fmt.Errorf("%s:%d: %s of %s: %s", path, value.Line, key.Value, what, text)
		}
		return nil
	})
}

// Each calls visit for each entry of a mapping, which what names.
func Each(path, what string, node *yaml.Node, visit func(key, value *yaml.Node) error) error {
	return eachEntry(path, what, node, visit)
}
