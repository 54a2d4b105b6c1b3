package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"strings"
	"time"
)

// A token is the prefix and the base64url of 256 random bits and their CRC-32. No secret that somebody thought of has this
// form, and a scanner of source code finds it.
const (
	tokenPrefix = "jobonce_"
	randomBytes = 32
)

var tokenEncoding = base64.RawURLEncoding.Strict()

// NewToken makes a token, and the SHA-256 of it in hex that stands in the auth file.
func NewToken() (token, sum string) {
	b := make([]byte, randomBytes, randomBytes+4)
	_, _ = rand.Read(b) // It never fails.
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	token = tokenPrefix + tokenEncoding.EncodeToString(b)
	return token, hexOf(sumOf(token))
}

// Entry is a caller as somebody wants to have it in the auth file.
type Entry struct {
	Name        string
	Allow       []string
	JobIDPrefix string
	// Expires and Rate may be zero: never, and any.
	Expires time.Time
	Rate    float64
}

// NewEntry makes a token, and the item of the auth file's callers that lets its owner in.
func NewEntry(e Entry) (token, item string, err error) {
	token, sum := NewToken()
	fields := []struct {
		key   string
		value any
		given bool
	}{
		{"name", e.Name, true}, {"token_sha256", sum, true}, {"allow", e.Allow, true}, {"job_id_prefix", e.JobIDPrefix, e.JobIDPrefix != ""},
		{"expires", e.Expires, !e.Expires.IsZero()}, {"rate", e.Rate, e.Rate != 0},
	}
	lead := "- "
	for _, f := range fields {
		if !f.given {
			continue
		}
		value, err := json.Marshal(f.value) // It is YAML as well.
		if err != nil {
			return "", "", err
		}
		text := string(value)
		if f.key == "token_sha256" || f.key == "expires" {
			text = strings.Trim(text, `"`)
		}
		item += lead + f.key + ": " + text + "\n"
		lead = "  "
	}
	if _, err := parse([]byte("callers:\n"+item+"...\n"), nil); err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // It has no place in a file yet.
		}
		return "", "", err
	}
	return token, item, nil
}

// isToken tells whether a secret begins as our tokens do.
func isToken(secret string) bool { return strings.HasPrefix(secret, tokenPrefix) }

// checkToken checks a token's form. The error does not repeat it.
func checkToken(token string) error {
	b, err := tokenEncoding.DecodeString(strings.TrimPrefix(token, tokenPrefix))
	if err != nil || !isToken(token) || len(b) != randomBytes+4 ||
		crc32.ChecksumIEEE(b[:randomBytes]) != binary.BigEndian.Uint32(b[randomBytes:]) {
		return errors.New("the token is not one that `jobonce token new` made, or not all of it")
	}
	return nil
}

func sumOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
