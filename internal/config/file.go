package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// applyFile sets the flags of keys that are not set yet from the section of the file. Sections of other commands are
// left to those: they may be meant for another version.
func applyFile(path, section string, keys *pflag.FlagSet) error {
	root, err := readFile(path)
	if err != nil || root == nil {
		return err
	}
	return eachEntry(path, "the file", root, func(key, value *yaml.Node) error {
		if !slices.Contains(sections, key.Value) {
			return fmt.Errorf("%s:%d: unknown section %q; there are %s", path, key.Line, key.Value, strings.Join(sections, ", "))
		}
		if key.Value != section {
			return nil
		}
		if value.Tag == "!!null" {
			return nil
		}
		return eachEntry(path, section, value, func(key, value *yaml.Node) error {
			name := section + "." + key.Value
			if structured[name] {
				return nil
			}
			f := keys.Lookup(key.Value)
			if f == nil {
				return fmt.Errorf("%s:%d: unknown key %s", path, key.Line, name)
			}
			values := []*yaml.Node{value}
			_, many := f.Value.(pflag.SliceValue)
			if many && value.Kind == yaml.SequenceNode {
				values = value.Content
			}
			for _, value := range values {
				switch {
				case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
					return fmt.Errorf("%s:%d: %s must have one plain value%s", path, key.Line, name, orAList(many))
				case empty(f, value.Value):
					return fmt.Errorf("%s:%d: %s is empty; give it a value, or leave it out", path, value.Line, name)
				}
			}
			if f.Changed {
				return nil
			}
			if len(values) == 0 { // A list of none takes what stands there by default away.
				_ = f.Value.(pflag.SliceValue).Replace(nil)
				f.Changed = true
			}
			for _, value := range values {
				if err := set(f, value.Value, Origin{FromFile, name + " of " + path}); err != nil {
					return fmt.Errorf("%s:%d: %s: %w", path, value.Line, name, err)
				}
			}
			return nil
		})
	})
}

func orAList(many bool) string {
	if many {
		return ", or a list of them"
	}
	return ""
}

// readFile returns the top node of the file, nil when the file is empty.
func readFile(path string) (*yaml.Node, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration file: %w", err)
	}
	defer f.Close()
	dec := yaml.NewDecoder(f)
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: holds more than one YAML document", path)
	}
	if top := doc.Content[0]; top.Tag != "!!null" {
		return top, nil
	}
	return nil, nil
}

// eachEntry calls visit for each entry of a mapping. The node form of YAML does not look for repeated keys, so it is
// done here: the second one would win in silence.
func eachEntry(path, what string, node *yaml.Node, visit func(key, value *yaml.Node) error) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: %s must be a mapping of keys to values", path, node.Line, what)
	}
	seen := make(map[string]bool)
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if seen[key.Value] {
			return fmt.Errorf("%s:%d: %s stands twice", path, key.Line, key.Value)
		}
		seen[key.Value] = true
		if err := visit(key, value); err != nil {
			return err
		}
	}
	return nil
}
