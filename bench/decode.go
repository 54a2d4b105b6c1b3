package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// event is a webhook's body, ready for the upsert.
type event struct {
	jobID, event, status string
	payload              any
}

// decoder reads a body. Both keep the members' order and int64 numbers, as map[string]any would not.
type decoder func(body string) (event, error)

// fasterDecoder measures the decoders on a body and returns the faster one, so that callers who go without JobOnce are
// not made slower than they need be.
func fasterDecoder(body string) (decoder, string, error) {
	const rounds = 200
	candidates := []struct {
		name   string
		decode decoder
		took   time.Duration
	}{{name: "one pass to BSON", decode: decodeRaw}, {name: "tokens to bson.D", decode: decodeTokens}}
	for i := range candidates {
		c := &candidates[i]
		start := time.Now()
		for range rounds {
			if _, err := c.decode(body); err != nil {
				return nil, "", fmt.Errorf("%s: %w", c.name, err)
			}
		}
		c.took = time.Since(start) / rounds
	}
	best, other := candidates[0], candidates[1]
	if other.took < best.took {
		best, other = other, best
	}
	return best.decode, fmt.Sprintf("direct callers decode with: %s, which is faster than: %s", best.name, other.name), nil
}

// decodeTokens builds a bson.D from the standard library's tokens.
func decodeTokens(body string) (event, error) {
	dec := json.NewDecoder(strings.NewReader(body))
	dec.UseNumber()
	value, err := readValue(dec)
	if err != nil {
		return event{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return event{}, errors.New("more than one JSON value")
	}
	document, ok := value.(bson.D)
	if !ok {
		return event{}, errors.New("not a JSON object")
	}
	e := event{payload: document}
	for _, member := range document {
		text, _ := member.Value.(string)
		switch member.Key {
		case "job_id":
			e.jobID = text
		case "event":
			e.event = text
		case "status":
			e.status = text
		}
	}
	return e, nil
}

func readValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(dec)
		}
		return readArray(dec)
	case json.Number:
		if n, err := t.Int64(); err == nil {
			return n, nil
		}
		return t.Float64()
	default:
		return t, nil
	}
}

func readObject(dec *json.Decoder) (any, error) {
	document := bson.D{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		value, err := readValue(dec)
		if err != nil {
			return nil, err
		}
		document = append(document, bson.E{Key: key.(string), Value: value}) // a member's key is always a string
	}
	_, err := dec.Token()
	return document, err
}

func readArray(dec *json.Decoder) (any, error) {
	list := bson.A{}
	for dec.More() {
		value, err := readValue(dec)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := dec.Token()
	return list, err
}
