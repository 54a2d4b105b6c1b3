package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSignatures bounds how many signatures of one request are looked at: senders send one for each of a few keys.
const maxSignatures = 32

// evidence is what a request is verified by.
type evidence struct {
	req     *Request
	urls    []string // The URLs that the sender may have signed; empty where none is.
	secrets []string
	now     time.Time
	fetch   *fetcher
}

// scheme returns the scheme whose header the request has. Where it has none, it returns the first, so that errors name the usual
// header.
func (c *config) scheme(header http.Header) *scheme {
	for _, s := range c.signatures {
		if s.Header == "" || len(header.Values(s.Header)) > 0 {
			return s
		}
	}
	return c.signatures[0]
}

// decodes says whether the body has to be decoded to check the signature.
func (s *scheme) decodes() bool {
	return s.Kind == SNS || s.Field != "" || s.has("field") || s.TimestampField != "" && s.has("timestamp")
}

// verify returns nil when the request is the sender's.
func (c *config) verify(ctx context.Context, e *evidence) *refusal {
	s := c.scheme(e.req.Header)
	switch {
	case s.Kind == SNS:
		return verifySNS(ctx, e)
	case s.Kind == Token:
		return s.verifyToken(e)
	case s.Items != "":
		return s.verifyItems(e)
	}
	sent, r := s.read(e.req)
	if r != nil {
		return r
	}
	if r := s.coversBody(e); r != nil {
		return r
	}
	urls := e.urls
	if len(urls) == 0 || !s.has("url") {
		urls = []string{""}
	}
	ages := []time.Duration{keptFor}
	if s.KeysURL != "" {
		ages = append(ages, refreshAfter) // The sender may have a new key.
	}
	for _, maxAge := range ages {
		keys, r := s.currentKeys(ctx, e, maxAge)
		if r != nil {
			return r
		}
		for _, u := range urls {
			if s.matches(sent, keys, func(w io.Writer) { s.write(w, e.req, sent, u, nil) }) {
				if r := s.readTime(e.req, sent); r != nil {
					return r
				}
				return s.inTime(sent, e.now)
			}
		}
	}
	return refuse(SignatureWrong, "none of the secrets or keys gives this signature")
}

// currentKeys returns the keys that may have signed: the secrets, or those that are fetched, which are kept for maxAge.
func (s *scheme) currentKeys(ctx context.Context, e *evidence, maxAge time.Duration) ([]key, *refusal) {
	if s.KeysURL == "" {
		return s.keys.of(s, e.secrets), nil
	}
	account, r := only(e.req.Header, s.AccountHeader)
	if r != nil {
		return nil, r
	}
	if !slices.Contains(e.secrets, account) {
		return nil, refuse(SignatureWrong, "the account in %s is none of %d that are expected", s.AccountHeader, len(e.secrets))
	}
	keys, err := e.fetch.keySet(ctx, s.KeysURL, maxAge)
	if err != nil {
		return nil, &refusal{reason: KeyUnavailable, err: err}
	}
	return keys, nil
}

// sent is what the headers of a request say of its signature.
type sent struct {
	symmetric, asymmetric [][]byte
	timestamp, id         string
}

// read reads the headers.
func (s *scheme) read(req *Request) (*sent, *refusal) {
	value, r := only(req.Header, s.Header)
	if r != nil {
		return nil, r
	}
	out := &sent{}
	parts := []string{value}
	if s.Split != "" {
		parts = strings.Split(value, s.Split)
	}
	times := 0
	for _, part := range parts {
		part = strings.TrimSpace(part)
		if at, ok := strings.CutPrefix(part, s.TimestampPrefix); ok && s.TimestampPrefix != "" {
			out.timestamp = at
			times++
		} else if text, ok := strings.CutPrefix(part, s.Prefix); ok {
			out.symmetric = s.decode(out.symmetric, text)
		} else if text, ok := strings.CutPrefix(part, s.AsymmetricPrefix); ok && s.AsymmetricPrefix != "" {
			out.asymmetric = s.decode(out.asymmetric, text)
		}
	}
	if len(out.symmetric)+len(out.asymmetric) == 0 {
		return nil, refuse(SignatureMalformed, "the header %s has no signature of the form %s<%s>", s.Header, s.Prefix, s.Encoding)
	}
	if s.TimestampPrefix != "" && times != 1 {
		return nil, refuse(SignatureMalformed, "the header %s has %s %d times instead of once", s.Header, s.TimestampPrefix, times)
	}
	if s.TimestampHeader != "" && (s.Unit != "" || s.has("timestamp")) {
		if out.timestamp, r = only(req.Header, s.TimestampHeader); r != nil {
			return nil, r
		}
	}
	if s.has("timestamp") {
		if r := s.readTime(req, out); r != nil {
			return nil, r
		}
	}
	if s.IDHeader != "" && s.has("id") {
		if out.id, r = only(req.Header, s.IDHeader); r != nil {
			return nil, r
		}
	}
	for _, g := range s.template {
		if g.variable == "header" {
			if _, r := only(req.Header, g.argument); r != nil {
				return nil, r
			}
		}
	}
	return out, nil
}

// readTime reads a time that stands in the body. Where the template does not name the time, this is done after the signature was
// found good, so that strangers' bodies are not decoded.
func (s *scheme) readTime(req *Request, out *sent) *refusal {
	if s.TimestampField == "" {
		return nil
	}
	body, err := req.JSON()
	if err == nil {
		out.timestamp, err = textAt(body, s.TimestampField)
	}
	if err != nil {
		return refuse(SignatureMalformed, "the time of signing cannot be read: %w", err)
	}
	return nil
}

// decode adds a signature to those found, where it can be decoded and there are not too many.
func (s *scheme) decode(found [][]byte, text string) [][]byte {
	if len(found) == maxSignatures {
		return found
	}
	var data []byte
	var err error
	if s.Encoding == "hex" {
		data, err = hex.DecodeString(text)
	} else {
		data, err = base64.StdEncoding.Strict().DecodeString(text)
	}
	if err != nil || len(data) == 0 {
		return found
	}
	return append(found, data)
}

// matches says whether one of the signatures sent is one of these keys' over what write writes.
func (s *scheme) matches(sent *sent, keys []key, write func(io.Writer)) bool {
	var message []byte // Made once, for the kinds that need it whole.
	whole := func() []byte {
		if message == nil {
			var b strings.Builder
			write(&b)
			message = []byte(b.String())
		}
		return message
	}
	for _, k := range keys {
		switch {
		case k.mac != nil:
			mac := hmac.New(s.newHash(), k.mac)
			write(mac)
			if slices.ContainsFunc(sent.symmetric, func(got []byte) bool { return hmac.Equal(mac.Sum(nil), got) }) {
				return true
			}
		case k.ed25519 != nil:
			signatures := sent.asymmetric
			if s.Kind == Ed25519 {
				signatures = sent.symmetric
			}
			if slices.ContainsFunc(signatures, func(got []byte) bool { return ed25519.Verify(k.ed25519, whole(), got) }) {
				return true
			}
		case k.ecdsa != nil:
			digest := s.newHash()()
			write(digest)
			if slices.ContainsFunc(sent.symmetric, func(got []byte) bool { return ecdsa.VerifyASN1(k.ecdsa, digest.Sum(nil), got) }) {
				return true
			}
		}
	}
	return false
}

func (s *scheme) newHash() func() hash.Hash {
	switch s.Hash {
	case "sha1":
		return sha1.New
	case "sha512":
		return sha512.New
	}
	return sha256.New
}

// write writes what is signed, with item for {field}.
func (s *scheme) write(w io.Writer, req *Request, sent *sent, u string, item any) {
	for _, g := range s.template {
		if g.variable == "body" {
			_, _ = w.Write(req.Body)
			continue
		}
		_, _ = io.WriteString(w, s.value(g, req, sent, u, item))
	}
}

func (s *scheme) value(g segment, req *Request, sent *sent, u string, item any) string {
	switch g.variable {
	case "timestamp":
		return sent.timestamp
	case "id":
		return sent.id
	case "url":
		return u
	case "method":
		return req.Method
	case "params":
		return params(req)
	case "sha256":
		sum := sha256.Sum256(req.Body)
		return hex.EncodeToString(sum[:])
	case "header":
		return req.Header.Get(g.argument)
	case "field":
		if item == nil {
			item, _ = req.JSON()
		}
		value, _ := textAt(item, g.argument) // What is absent is empty.
		return value
	}
	return g.text
}

// params are the fields of a form, sorted by name, each name followed by its value. Of several values each different one
// is taken, sorted, as Twilio's libraries do. Without a form there are none.
func params(req *Request) string {
	form, err := req.Form()
	if err != nil {
		return ""
	}
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		values := slices.Clone(form[name])
		slices.Sort(values)
		for _, value := range slices.Compact(values) {
			b.WriteString(name + value)
		}
	}
	return b.String()
}

// coversBody refuses a body that is no form where only a form is signed, unless the signed URL has the body's hash. That URL may
// be the configured one, and not the request's.
func (s *scheme) coversBody(e *evidence) *refusal {
	req := e.req
	if !s.has("params") || s.has("body") || s.has("sha256") {
		return nil
	}
	if _, err := req.Form(); err == nil {
		return nil
	}
	signed := ""
	if len(e.urls) > 0 {
		if u, err := url.Parse(e.urls[0]); err == nil {
			signed = u.Query().Get("bodySHA256")
		}
	}
	sum := sha256.Sum256(req.Body)
	want, err := hex.DecodeString(signed)
	switch {
	case signed == "":
		return refuse(SignatureMissing, "the body is no form, and the URL has no bodySHA256")
	case err != nil || subtle.ConstantTimeCompare(want, sum[:]) != 1:
		return refuse(SignatureWrong, "the body is another than the URL's bodySHA256 says")
	}
	return nil
}

// inTime compares the time that was signed with the clock.
func (s *scheme) inTime(sent *sent, now time.Time) *refusal {
	if s.Unit == "" {
		return nil
	}
	n, err := strconv.ParseInt(sent.timestamp, 10, 64)
	const latest = 1 << 40 // in seconds: far enough, and far from an overflow
	if s.Unit == "s" && err == nil && n > -latest && n < latest {
		n *= 1000
	} else if err != nil || s.Unit == "s" {
		return refuse(SignatureMalformed, "the time of signing is no time in %s", s.Unit)
	}
	off := now.Sub(time.UnixMilli(n))
	switch {
	case off > s.Tolerance:
		return refuse(SignatureStale, "signed %v ago, and at most %v are allowed: is it an old delivery, or is the clock wrong?",
			off.Round(time.Second), s.Tolerance)
	case off < -s.Tolerance:
		return refuse(SignatureAhead, "signed %v in the future, and at most %v are allowed: is the clock wrong?",
			-off.Round(time.Second), s.Tolerance)
	}
	return nil
}

// verifyToken compares what was sent along.
func (s *scheme) verifyToken(e *evidence) *refusal {
	var tokens []string
	if s.Header != "" {
		value, r := only(e.req.Header, s.Header)
		if r != nil {
			return r
		}
		tokens = []string{value}
	} else {
		body, err := e.req.JSON()
		if err != nil {
			return refuse(SignatureMissing, "%w", err)
		}
		found, missing := lookup(body, s.Field)
		if missing || len(found) == 0 {
			return refuse(SignatureMissing, "%s is missing", s.Field)
		}
		for _, v := range found {
			token, ok := v.(string)
			if !ok {
				return refuse(SignatureMalformed, "%s is no text", s.Field)
			}
			tokens = append(tokens, token)
		}
	}
	keys := s.keys.of(s, e.secrets)
	for _, token := range tokens {
		token, ok := strings.CutPrefix(token, s.Prefix)
		if !ok {
			return refuse(SignatureMalformed, "the token does not begin with %q", s.Prefix)
		}
		got, good := sha256.Sum256([]byte(token)), 0
		for _, k := range keys {
			want := sha256.Sum256(k.mac)
			good |= subtle.ConstantTimeCompare(got[:], want[:])
		}
		if good != 1 {
			return refuse(SignatureWrong, "it is none of %d tokens", len(keys))
		}
	}
	return nil
}

// verifyItems checks the signature of each item of the body.
func (s *scheme) verifyItems(e *evidence) *refusal {
	body, err := e.req.JSON()
	if err != nil {
		return refuse(SignatureMissing, "%w", err)
	}
	items, missing := lookup(body, s.Items)
	if missing || len(items) == 0 {
		return refuse(SignatureMissing, "%s is missing", s.Items)
	}
	keys := s.keys.of(s, e.secrets)
	for i, item := range items {
		text, err := textAt(item, s.Field)
		if err != nil {
			return refuse(SignatureMissing, "item %d: %w", i, err)
		}
		sent := &sent{symmetric: s.decode(nil, text)}
		if len(sent.symmetric) == 0 {
			return refuse(SignatureMalformed, "item %d: %s is not in %s", i, s.Field, s.Encoding)
		}
		if !s.matches(sent, keys, func(w io.Writer) { s.write(w, e.req, sent, "", item) }) {
			return refuse(SignatureWrong, "item %d: none of %d secrets gives this signature", i, len(keys))
		}
	}
	return nil
}

// signedURLs are the URLs that the sender may have signed: as configured or as asked for, and with the port that the scheme
// implies written out or left out, since senders differ in that.
func (c *config) signedURLs(req *Request, host string, tls bool) []string {
	u := url.URL{Scheme: "http", Host: host, Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	if tls {
		u.Scheme = "https"
	}
	if c.publicURL != nil {
		u.Scheme, u.Host = c.publicURL.Scheme, c.publicURL.Host
		if c.publicURL.Path != "" {
			u.Path, u.RawPath = c.publicURL.Path, c.publicURL.RawPath
		}
		if c.publicURL.RawQuery != "" {
			u.RawQuery = c.publicURL.RawQuery
		}
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	var urls []string
	if c.publicURL != nil && c.publicURL.Path != "" && (c.publicURL.RawQuery != "" || req.URL.RawQuery == "") {
		exact, _, _ := strings.Cut(c.PublicURL, "#") // Byte for byte as it was configured.
		urls = append(urls, exact)
	}
	urls = append(urls, u.String())
	switch u.Port() {
	case "":
		u.Host += ":" + port
	case port:
		u.Host = u.Hostname()
	default:
		return urls
	}
	return append(urls, u.String())
}

// usesURL says whether the sender signs the URL.
func (c *config) usesURL() bool {
	return slices.ContainsFunc(c.signatures, func(s *scheme) bool { return s.has("url") })
}
