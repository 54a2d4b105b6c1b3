package webhook

import (
	"fmt"
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
}

// scheme is a signature, checked and taken apart.
type scheme struct {
	Signature
}

func (s Signature) compile() (*scheme, error) {
	switch s.Kind {
	case HMAC, Ed25519, ECDSA, Token, SNS:
	default:
		return nil, fmt.Errorf("kind %q: there is no such kind", s.Kind)
	}
	return &scheme{Signature: s}, nil
}
