package webhook

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// keyForms has the forms of a key, by kind.
var keyForms = map[Kind][]string{
	HMAC:    {"", "text", "base64", "hex", "standard", "whsec_or_text"},
	Ed25519: {"base64", "hex"},
	ECDSA:   {"spki"},
}

// key is one secret as its kind needs it: one of these is set.
type key struct {
	mac     []byte
	ed25519 ed25519.PublicKey
	ecdsa   *ecdsa.PublicKey
}

// keyring keeps the keys of the secrets that were used last.
type keyring struct{ last atomic.Pointer[keys] }

type keys struct {
	secrets []string
	keys    []key
}

// of returns the keys of secrets. Those that cannot be read are left out: they were complained of when they were set.
func (r *keyring) of(s *scheme, secrets []string) []key {
	if last := r.last.Load(); last != nil && slices.Equal(last.secrets, secrets) {
		return last.keys
	}
	fresh := &keys{secrets: slices.Clone(secrets)}
	for _, secret := range secrets {
		if k, err := s.parseKey(secret); err == nil {
			fresh.keys = append(fresh.keys, k)
		}
	}
	r.last.Store(fresh)
	return fresh.keys
}

// checkSecrets says what is wrong with them, by their place.
func (c *config) checkSecrets(secrets []string) error {
	if len(secrets) == 0 {
		return errors.New("secrets: are required")
	}
	for i, secret := range secrets {
		var first error
		usable := false
		for _, s := range c.signatures {
			_, err := s.parseKey(secret)
			usable = usable || err == nil
			if first == nil {
				first = err
			}
		}
		if !usable {
			return fmt.Errorf("secrets: number %d %w", i+1, first)
		}
	}
	return nil
}

// The shortest key that is taken, in bytes: what is shorter can be guessed, or is a mistake.
const minKeyBytes = 4

// parseKey reads a secret. The error does not repeat it.
func (s *scheme) parseKey(secret string) (key, error) {
	switch {
	case secret == "":
		return key{}, errors.New("is empty")
	case secret != strings.TrimSpace(secret):
		return key{}, errors.New("has blanks or a line's end at its beginning or end")
	}
	k, err := s.readKey(secret)
	if err == nil && k.mac != nil && len(k.mac) < minKeyBytes {
		return key{}, fmt.Errorf("is shorter than %d bytes", minKeyBytes)
	}
	return k, err
}

func (s *scheme) readKey(secret string) (key, error) {
	switch {
	case s.Kind == SNS && !strings.HasPrefix(secret, "arn:"):
		return key{}, errors.New("is no topic's ARN")
	case s.Kind == Token, s.Kind == SNS, s.KeysURL != "":
		return key{mac: []byte(secret)}, nil
	}
	var data []byte
	var err error
	standard, prefixed := strings.CutPrefix(secret, "whsec_")
	switch s.Key {
	case "", "text":
		return key{mac: []byte(secret)}, nil
	case "whsec_or_text":
		if !prefixed {
			return key{mac: []byte(secret)}, nil
		}
		data, err = base64.StdEncoding.DecodeString(standard)
	case "standard":
		if public, ok := strings.CutPrefix(secret, "whpk_"); ok && s.AsymmetricPrefix != "" {
			data, err = base64.StdEncoding.DecodeString(public)
			if err != nil || len(data) != ed25519.PublicKeySize {
				return key{}, errors.New("is no Ed25519 public key in base64 after whpk_")
			}
			return key{ed25519: data}, nil
		}
		if strings.HasPrefix(secret, "whsk_") {
			return key{}, errors.New("is a private key; give the public one, which begins with whpk_")
		}
		data, err = base64.StdEncoding.DecodeString(standard)
	case "hex":
		if data, err = hex.DecodeString(secret); err != nil {
			return key{}, errors.New("is not in hex")
		}
	case "base64", "spki":
		data, err = base64.StdEncoding.DecodeString(secret)
	}
	if err != nil {
		return key{}, errors.New("is not in base64")
	}
	switch s.Kind {
	case Ed25519:
		if len(data) != ed25519.PublicKeySize {
			return key{}, fmt.Errorf("is no Ed25519 public key: it has %d bytes instead of %d", len(data), ed25519.PublicKeySize)
		}
		return key{ed25519: data}, nil
	case ECDSA:
		public, err := x509.ParsePKIXPublicKey(data)
		if k, ok := public.(*ecdsa.PublicKey); err == nil && ok && k.Curve == elliptic.P256() {
			return key{ecdsa: k}, nil
		}
		return key{}, errors.New("is no P-256 public key")
	}
	return key{mac: data}, nil
}
