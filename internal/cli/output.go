package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/jobonce/jobonce/internal/config"
)

// The output formats.
const (
	outputText = "text"
	outputJSON = "json"
)

func newOutput() *config.Choice {
	return &config.Choice{Value: outputText, Words: []string{outputText, outputJSON}}
}

// printJSON writes m as one line of protojson, with the fields that have their default.
func printJSON(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// Protojson varies its spaces from build to build, on purpose; scripts and diffs want them to stay.
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// pair writes " key=value". A value that has a space, a quote or something unprintable in it is quoted as in Go, so
// that the pairs stay apart and on one line.
func pair(b *strings.Builder, key string, value any) {
	s := fmt.Sprint(value)
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == '"' || r == ' ' || !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
	}
	fmt.Fprintf(b, " %s=%s", key, s)
}

// printable replaces what could steer a terminal; a value within a "key: value" line stays on its line.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// timestamp is t in RFC 3339, UTC, with milliseconds, as they are stored; empty when there is none.
func timestamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
