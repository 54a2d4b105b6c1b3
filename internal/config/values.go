package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Choice is a flag value out of a few words. Upper and lower case are the same.
type Choice struct {
	// Value is the chosen word, in the spelling of Words.
	Value string
	// Words are the values there are.
	Words []string
}

// Set chooses a word. An error says which there are.
func (c *Choice) Set(s string) error {
	i := slices.IndexFunc(c.Words, func(w string) bool { return strings.EqualFold(w, s) })
	if i < 0 {
		return errors.New("must be one of " + strings.Join(c.Words, ", "))
	}
	c.Value = c.Words[i]
	return nil
}

// String is the chosen word.
func (c *Choice) String() string { return c.Value }

// Type is what a help text shows in place of the value.
func (c *Choice) Type() string { return strings.Join(c.Words, "|") }

// IntRange is a flag value that is a whole number from Min to Max.
type IntRange struct {
	Value    int
	Min, Max int
}

// Set takes a decimal number.
func (r *IntRange) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < r.Min || n > r.Max {
		return fmt.Errorf("must be a whole number from %d to %d", r.Min, r.Max)
	}
	r.Value = n
	return nil
}

// String is the number in decimal.
func (r *IntRange) String() string { return strconv.Itoa(r.Value) }

// Type is what a help text shows in place of the value.
func (r *IntRange) Type() string { return "int" }
