package webhook

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The service's limits.
const (
	maxEventBytes  = 128
	maxStatusBytes = 64

	maxContentTypeBytes = 128
	traceparentBytes    = 55
)

// found is one event of a request, and what is known of it.
type found struct {
	jobID, event, status string
	body                 []byte
	contentType          string
	omitted              int64 // The size of a body that was too large to be kept.
	filtered             bool
	err                  error // Why it is unreadable.
}

// find takes a verified request apart. Its reason is Unreadable when an item has no id: then the whole body is among what is
// to be recorded. sum is the body's SHA-256, and omitted the size of one that was not kept.
func (c *config) find(req *Request, sum []byte, omitted int64) *outcome {
	out := &outcome{Report: Report{Reason: Accepted, Verified: true}}
	req.scheme = c.scheme(req.Header)
	items, err := c.take(req)
	if len(items) > MaxItems {
		return &outcome{Report: Report{Reason: TooManyItems, Verified: true, Items: len(items),
			Err: fmt.Errorf("the body holds %d events, and %d are taken", len(items), MaxItems)}}
	}
	for _, item := range items {
		f := c.look(item)
		f.omitted = omitted
		out.items = append(out.items, f)
		switch {
		case f.filtered:
			out.Filtered++
		case f.err != nil:
			out.Unreadable++
			err = errors.Join(err, onlyFirst(err, f.err))
		case out.JobID == "":
			out.JobID = f.jobID
		}
	}
	out.Items = len(items)
	if err != nil {
		if len(items) == 0 {
			out.Items, out.Unreadable = 1, 1
		}
		out.Reason, out.Err = Unreadable, err
		id := c.Name + ":unreadable:" + hex.EncodeToString(sum)
		out.items = append(out.items, &found{jobID: id, body: req.Body, contentType: contentType(req), omitted: omitted, err: err})
		if out.JobID == "" {
			out.JobID = id
		}
	}
	return out
}

// onlyFirst keeps the first error: thousands of items may fail alike.
func onlyFirst(before, err error) error {
	if before != nil {
		return nil
	}
	return err
}

// take returns the items of a request.
func (c *config) take(req *Request) ([]*Item, error) {
	if c.Items == nil {
		return []*Item{{Request: req}}, nil
	}
	items, err := c.Items(req)
	if err != nil {
		return nil, fmt.Errorf("items: %w", err)
	}
	for i, item := range items {
		item.Request, item.Index = req, i
	}
	return items, nil
}

// look reads one item.
func (c *config) look(item *Item) *found {
	f := &found{}
	if c.When != nil {
		yes, err := c.When(item)
		if err != nil {
			f.err = fmt.Errorf("when: %w", err)
			return f
		}
		if f.filtered = !yes; f.filtered {
			return f
		}
	}
	id, err := c.ID(item)
	switch {
	case err != nil:
		f.err = fmt.Errorf("id: %w", err)
		return f
	case id == "":
		f.err = errors.New("id: is empty")
		return f
	case !isID(id):
		f.err = errors.New("id: has control characters, or is not UTF-8")
		return f
	case strings.ContainsRune(id, utf8.RuneError):
		// What is not UTF-8 in JSON is decoded as that, so that two ids could be one.
		f.err = errors.New("id: is not UTF-8")
		return f
	}
	if f.body, err = item.body(); err != nil {
		f.err = err
		return f
	}
	if f.contentType = "application/json"; item.Value == nil && item.Body == nil {
		f.contentType = contentType(item.Request)
	}
	f.jobID = jobID(c.prefix, id)
	f.event, f.status = short(c.Event, item, maxEventBytes), short(c.Status, item, maxStatusBytes)
	return f
}

// contentType is the header's, where the service takes it.
func contentType(req *Request) string {
	if s := req.Header.Get("Content-Type"); len(s) <= maxContentTypeBytes && (s == "" || isID(s)) {
		return s
	}
	return ""
}

// short is what a function says of an item, where it is there and not too long.
func short(fn func(*Item) (string, error), item *Item, limit int) string {
	if fn == nil {
		return ""
	}
	s, err := fn(item)
	if err != nil || len(s) > limit || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// jobID is the prefix and the id. One that is over the service's limit is cut, and its SHA-256 stands at its end.
func jobID(prefix, id string) string {
	if len(prefix)+len(id) <= maxIDBytes {
		return prefix + id
	}
	sum := sha256.Sum256([]byte(id))
	end := ":sha256:" + hex.EncodeToString(sum[:])
	cut := maxIDBytes - len(prefix) - len(end)
	for cut > 0 && !utf8.RuneStart(id[cut]) {
		cut--
	}
	return prefix + id[:cut] + end
}

// requests makes the calls that record what was found, and returns with them those items that have one. What is unreadable
// starts no work.
func (c *config) requests(
	header http.Header, items []*found,
) (recorded []*found, reqs []*joboncev1.RecordDeliveryRequest) {
	random := rand.Text()
	for _, f := range items {
		if f.jobID == "" {
			continue
		}
		req := &joboncev1.RecordDeliveryRequest{
			JobId: f.jobID, Event: f.event, Status: f.status, Source: c.Name, OpaquePayload: true,
			ContentType: f.contentType,
			RequestId:   random + "." + strconv.Itoa(len(reqs)), WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED,
		}
		if c.RecordOnly || f.err != nil {
			req.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED
		}
		if traceparent := header.Get("Traceparent"); len(traceparent) == traceparentBytes && utf8.ValidString(traceparent) {
			req.Traceparent = traceparent // The service leaves out what is not well-formed, and refuses what is not UTF-8.
		}
		if f.omitted > 0 {
			req.PayloadOmittedBytes = f.omitted
		} else if utf8.Valid(f.body) {
			req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: string(f.body)}
		} else {
			req.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: f.body}
		}
		recorded, reqs = append(recorded, f), append(reqs, req)
	}
	return recorded, reqs
}
