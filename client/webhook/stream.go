package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"slices"
)

// streams says whether a body that is too large to be kept can be verified as it comes, and recorded without it: its
// signature is an HMAC over the whole of it, and everything that is read of the request stands in its headers.
func (c *config) streams(header http.Header) bool {
	return c.IDInHeader && c.Items == nil && c.scheme(header).streams()
}

func (s *scheme) streams() bool {
	bodies := 0
	for _, g := range s.template {
		switch g.variable {
		case "body":
			bodies++
		case "params", "sha256", "field":
			return false
		}
	}
	return s.Kind == HMAC && bodies == 1 && s.TimestampField == "" && s.Items == ""
}

// examineLarge is examine for a body that is not kept: begin is what was read of it.
func (h *Handler) examineLarge(ctx context.Context, r *http.Request, begin []byte, rest io.Reader) *outcome {
	req := NewRequest(r.WithContext(ctx), nil)
	s, e := h.source.scheme(r.Header), h.evidence(req, r)
	sent, refusal := s.read(req)
	if refusal != nil {
		return refused(refusal)
	}
	at := slices.IndexFunc(s.template, func(g segment) bool { return g.variable == "body" })
	before, after := &scheme{template: s.template[:at]}, &scheme{template: s.template[at+1:]}
	urls := e.urls
	if len(urls) == 0 {
		urls = []string{""}
	}
	var macs []hash.Hash
	sum := sha256.New()
	all := []io.Writer{sum}
	for _, k := range s.keys.of(s, e.secrets) {
		for _, u := range urls {
			if k.mac != nil {
				mac := hmac.New(s.newHash(), k.mac)
				before.write(mac, req, sent, u, nil)
				macs, all = append(macs, mac), append(all, mac)
			}
		}
	}
	if len(macs) == 0 {
		return refused(refuse(TooLarge, "the body is over %d bytes, and the secrets are public keys, which need all of it", h.maxBody))
	}
	to := io.MultiWriter(all...)
	_, _ = to.Write(begin) // A hash takes everything.
	n, err := io.Copy(to, rest)
	if err != nil {
		return refused(h.broken(err))
	}
	good := false
	for i, mac := range macs {
		after.write(mac, req, sent, urls[i%len(urls)], nil)
		good = good || slices.ContainsFunc(sent.symmetric, func(got []byte) bool { return hmac.Equal(mac.Sum(nil), got) })
	}
	if !good {
		return refused(refuse(SignatureWrong, "none of the secrets gives this signature"))
	}
	if refusal := s.inTime(sent, e.now); refusal != nil {
		return refused(refusal)
	}
	return h.source.find(req, sum.Sum(nil), int64(len(begin))+n)
}
