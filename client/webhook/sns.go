package webhook

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// snsHost are the hosts that SNS signs and confirms from (aws-php-sns-message-validator, MessageValidator.php).
var snsHost = regexp.MustCompile(`^sns\.[a-z0-9-]{3,}\.amazonaws\.com(\.cn)?$`)

// snsURL says whether an address is one of SNS's own.
func snsURL(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https" && u.User == nil && u.Port() == "" && snsHost.MatchString(u.Host)
}

// The members that are signed, by type, in this order (the same source).
var snsSigned = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// verifySNS checks a message of SNS. SNS signs for everybody who has a topic: the topic must be one of the secrets.
func verifySNS(ctx context.Context, e *evidence) *refusal {
	body, err := e.req.JSON()
	if err != nil {
		return refuse(SignatureMissing, "%w", err)
	}
	get := func(name string) string {
		value, _ := lookup(body, name)
		s, _ := value[0].(string)
		return s
	}
	signed, known := snsSigned[get("Type")]
	if get("Signature") == "" || !known {
		return refuse(SignatureMissing, "the body has no Signature, or its Type is none of SNS's")
	}
	signature, err := base64.StdEncoding.DecodeString(get("Signature"))
	if err != nil {
		return refuse(SignatureMalformed, "the Signature is not in base64")
	}
	address := get("SigningCertURL")
	if u, err := url.Parse(address); err != nil || !snsURL(address) || !strings.HasSuffix(u.Path, ".pem") || u.RawQuery != "" {
		return refuse(SignatureMalformed, "the SigningCertURL is not one of SNS's")
	}
	if !slices.Contains(e.secrets, get("TopicArn")) {
		return refuse(SignatureWrong, "the TopicArn is none of %d that are expected", len(e.secrets))
	}
	var message strings.Builder
	for _, name := range signed {
		if value, missing := lookup(body, name); !missing && value[0] != nil {
			message.WriteString(name + "\n" + get(name) + "\n")
		}
	}
	cert, err := e.fetch.certificate(ctx, address)
	if err != nil {
		return &refusal{reason: KeyUnavailable, err: err}
	}
	if e.now.After(cert.NotAfter) {
		return refuse(SignatureStale, "the certificate of the signature is over")
	}
	var hash crypto.Hash
	var digest []byte
	switch get("SignatureVersion") {
	case "1":
		sum := sha1.Sum([]byte(message.String()))
		hash, digest = crypto.SHA1, sum[:]
	case "2":
		sum := sha256.Sum256([]byte(message.String()))
		hash, digest = crypto.SHA256, sum[:]
	default:
		return refuse(SignatureMalformed, "the SignatureVersion is neither 1 nor 2")
	}
	public, _ := cert.PublicKey.(*rsa.PublicKey) // The fetcher takes no other.
	if rsa.VerifyPKCS1v15(public, hash, digest, signature) != nil {
		return refuse(SignatureWrong, "the certificate's key does not give this signature")
	}
	return nil
}

// snsHandshake confirms a subscription by fetching its SubscribeURL.
func snsHandshake(ctx context.Context, h *Handler, req *Request) (*reply, *refusal) {
	body, err := req.JSON()
	if err != nil {
		return nil, nil
	}
	kind, _ := textAt(body, "Type")
	switch kind {
	case "UnsubscribeConfirmation":
		return &reply{}, nil
	case "SubscriptionConfirmation":
	default:
		return nil, nil
	}
	address, _ := textAt(body, "SubscribeURL")
	if !snsURL(address) {
		return nil, refuse(HandshakeRefused, "the SubscribeURL is not one of SNS's")
	}
	if _, err := h.fetch.download(ctx, address); err != nil {
		return nil, refuse(HandshakeFailed, "the subscription could not be confirmed")
	}
	return &reply{}, nil
}
