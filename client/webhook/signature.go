package webhook

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// Kind is how a signature proves the sender.
type Kind string

// The kinds.
const (
	// HMAC is a keyed hash over the template.
	HMAC Kind = "hmac"
	// Ed25519 is a signature over the template with an Ed25519 key.
	Ed25519 Kind = "ed25519"
	// ECDSA is an ASN.1 signature over the hash of the template with a P-256 key.
	ECDSA Kind = "ecdsa"
	// Token is a secret that is sent along: it proves the sender, and not the body.
	Token Kind = "token"
	// SNS is Amazon SNS's own: a certificate from its hosts, fields of the body.
	SNS Kind = "sns"
)

// Signature is a signature scheme as data. The secrets belong to the source.
type Signature struct {
	// Kind is how it proves the sender. Required.
	Kind Kind
	// Header holds the signature, or the token.
	Header string
	// Field is where the signature or token lies within the JSON body instead of a header, such as "value[].clientState":
	// names with points between, "[]" for each element of an array. Every element must have it.
	Field string
	// Split is what stands between the parts of the header's value, such as "," or " ". Empty: it is one.
	Split string
	// Prefix stands before a signature, such as "sha256=" or "v1,". Parts without it are skipped.
	Prefix string
	// AsymmetricPrefix stands before a signature by an Ed25519 key where Prefix is for HMAC: "v1a," of Standard Webhooks.
	// Secrets that begin with "whpk_" are public keys for it.
	AsymmetricPrefix string
	// TimestampPrefix stands before the time among the parts of Header, such as "t=".
	TimestampPrefix string
	// TimestampHeader holds the time, where it is a header of its own.
	TimestampHeader string
	// TimestampField is where the time lies within the JSON body.
	TimestampField string
	// Unit is the time's: "s" or "ms". Empty: the time is signed, and not looked at.
	Unit string
	// Tolerance is how far the time may be off in both directions. Required with Unit.
	Tolerance time.Duration
	// IDHeader holds what stands for {id} in the template.
	IDHeader string
	// Template is what is signed: text, and {body}, {timestamp}, {id}, {url}, {method}, {params} (the form's fields, sorted,
	// each name followed by its value), {sha256} (of the body, in hex), {header:Name}, {field:path.in.json}.
	// Required, except for tokens and SNS.
	Template string
	// Items says that each item of the body, at this path (as for Field), is signed by itself, with Field and {field:...}
	// relative to it.
	Items string
	// Hash is "sha256" (also when empty), "sha1" or "sha512".
	Hash string
	// Encoding is the signature's: "hex" or "base64". Required, except for tokens.
	Encoding string
	// Key is how a secret is written: "text" (also when empty: its bytes are the key), "base64", "hex", "standard" (base64
	// after an optional "whsec_"), "whsec_or_text" (the same, but plain text without "whsec_"), or for public keys
	// "base64", "hex" or "spki" (base64 of the DER).
	Key string
	// KeysURL is the address of the sender's public keys, a JWK set, instead of secrets. Kept for at most a day.
	KeysURL string
	// AccountHeader names the account, where the keys are the sender's own for all of its customers: it must be one of the
	// secrets. Required with KeysURL. It has to stand in the template.
	AccountHeader string
}

// scheme is a signature, checked and taken apart.
type scheme struct {
	Signature
	template []segment
	keys     keyring
}

// segment is a piece of a template: text, or a variable with what stands behind its colon.
type segment struct{ text, variable, argument string }

// compile checks the scheme.
func (s Signature) compile() (*scheme, error) {
	c := &scheme{Signature: s}
	if s.Tolerance < 0 {
		return nil, errors.New("tolerance: is negative")
	}
	if (s.Unit != "") != (s.Tolerance > 0) {
		return nil, errors.New("unit and tolerance: set both, or none")
	}
	if err := oneOf("unit", s.Unit, "", "s", "ms"); err != nil {
		return nil, err
	}
	switch s.Kind {
	case SNS:
		return c, nil
	case HMAC, Ed25519, ECDSA, Token:
	default:
		return nil, fmt.Errorf("kind: %q is none of hmac, ed25519, ecdsa, token, sns", s.Kind)
	}
	if (s.Header == "") == (s.Field == "") {
		return nil, errors.New("header and field: set one of them")
	}
	if s.Kind == Token {
		return c, nil
	}
	if err := errors.Join(oneOf("encoding", s.Encoding, "hex", "base64"), oneOf("hash", s.Hash, "", "sha256", "sha1", "sha512"),
		s.checkKey()); err != nil {
		return nil, err
	}
	var err error
	if c.template, err = parseTemplate(s.Template); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	times := 0
	for _, from := range []string{s.TimestampPrefix, s.TimestampHeader, s.TimestampField} {
		if from != "" {
			times++
		}
	}
	switch {
	case !c.covers():
		return nil, errors.New("template: signs nothing of the body")
	case times > 1:
		return nil, errors.New("timestamp_prefix, timestamp_header and timestamp_field: set one of them")
	case times == 0 && (s.Unit != "" || c.has("timestamp")):
		return nil, errors.New("timestamp_header: is required, or timestamp_prefix, or timestamp_field")
	case (s.KeysURL != "") != (s.AccountHeader != ""):
		return nil, errors.New("keys_url and account_header: set both, or none")
	case s.KeysURL != "" && !strings.Contains(s.Template, "{header:"+s.AccountHeader+"}"):
		return nil, errors.New("account_header: is not signed")
	case s.KeysURL != "" && !strings.HasPrefix(s.KeysURL, "https://"):
		return nil, errors.New("keys_url: want https://")
	case s.KeysURL != "" && s.Kind != Ed25519:
		return nil, errors.New("keys_url: is for ed25519 alone")
	case c.has("id") && s.IDHeader == "":
		return nil, errors.New("id_header: is required with {id}")
	case s.TimestampHeader != "" && !c.has("timestamp") && s.Unit != "":
		return nil, errors.New("unit: the time is not signed, and proves nothing")
	}
	return c, nil
}

func (s *Signature) checkKey() error {
	if s.KeysURL != "" && s.Key == "" {
		return nil
	}
	return oneOf("key", s.Key, keyForms[s.Kind]...)
}

func oneOf(field, value string, values ...string) error {
	if !slices.Contains(values, value) {
		return fmt.Errorf("%s: %q is none of %q", field, value, values)
	}
	return nil
}

var variables = []string{"body", "timestamp", "id", "url", "method", "params", "sha256", "header", "field"}

func parseTemplate(s string) (segments []segment, err error) {
	for s != "" {
		before, rest, found := strings.Cut(s, "{")
		if before != "" {
			segments = append(segments, segment{text: before})
		}
		if !found {
			return segments, nil
		}
		inside, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, errors.New("a { is not closed")
		}
		name, argument, _ := strings.Cut(inside, ":")
		if !slices.Contains(variables, name) {
			return nil, fmt.Errorf("{%s} is none of %q", name, variables)
		}
		if takes := name == "header" || name == "field"; takes != (argument != "") {
			return nil, fmt.Errorf("{%s}: only header and field take an argument, and need one", inside)
		}
		segments = append(segments, segment{variable: name, argument: argument})
		s = after
	}
	if len(segments) == 0 {
		return nil, errors.New("is required")
	}
	return segments, nil
}

// has says whether the template has a variable.
func (s *scheme) has(variable string) bool {
	return slices.ContainsFunc(s.template, func(g segment) bool { return g.variable == variable })
}

// covers says whether the body, or something of it, is signed.
func (s *scheme) covers() bool {
	return s.has("body") || s.has("sha256") || s.has("params") || s.has("field")
}

// only returns a header that must be there once.
func only(header map[string][]string, name string) (string, *refusal) {
	switch values := header[textproto.CanonicalMIMEHeaderKey(name)]; len(values) {
	case 0:
		return "", refuse(SignatureMissing, "the header %s is missing", name)
	case 1:
		return values[0], nil
	default:
		return "", refuse(SignatureRepeated, "the header %s is there %d times", name, len(values))
	}
}

// refusal is why a request is not verified.
type refusal struct {
	reason Reason
	err    error
}

func refuse(reason Reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, err: fmt.Errorf(format, args...)}
}
