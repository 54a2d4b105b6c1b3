package mongostore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestCommandFate holds what may be said of a write, given what the driver told the monitor on the way and the error that
// it ended with.
func TestCommandFate(t *testing.T) {
	late := fmt.Errorf("%w: 3 ms", driver.ErrDeadlineWouldBeExceeded)
	lost := mongo.CommandError{Message: "EOF", Wrapped: io.EOF, Labels: []string{driver.NetworkError}}
	code := func(n int32) error { return mongo.CommandError{Code: n} }
	refusedDial := fmt.Errorf("handshake: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	for name, c := range map[string]struct {
		commands []error // how each command that was announced ended; nil: well
		err      error
		want     fate
	}{
		"no server":                           {nil, topology.ServerSelectionError{Wrapped: errors.New("timeout")}, fateUnsent},
		"no server, as the last dial failed":  {nil, topology.ServerSelectionError{Wrapped: refusedDial}, fateUnsent},
		"no connection free":                  {nil, topology.WaitQueueTimeoutError{Wrapped: context.DeadlineExceeded}, fateUnsent},
		"no connection free, cancelled":       {nil, topology.WaitQueueTimeoutError{Wrapped: context.Canceled}, fateUnsent},
		"no time, before the announcement":    {nil, late, fateUnsent},
		"no time, after it":                   {[]error{late}, late, fateUnsent},
		"no time for the driver's repetition": {[]error{lost}, late, fateUnknown},
		"nor after its announcement":          {[]error{lost, late}, late, fateUnknown},
		"no time for the second part":         {[]error{nil}, late, fateUnknown},
		"nor after the part's announcement":   {[]error{nil, late}, late, fateUnknown},
		"dial refused":                        {nil, refusedDial, fateRetry},
		"hung up on the new connection":       {nil, fmt.Errorf("handshake: %w", io.EOF), fateRetry},
		"wrong password":                      {nil, mongo.CommandError{Code: 18}, fateUnsent},
		"connection lost":                     {[]error{lost}, lost, fateUnknown},
		"context ended under way":             {[]error{context.Canceled}, context.Canceled, fateUnknown},
		"not primary":                         {[]error{code(10107)}, code(10107), fateUnknown},
		"a code nobody knows":                 {[]error{code(123456)}, code(123456), fateUnknown},
		"not authorised":                      {[]error{code(13)}, code(13), fateRefused},
		"the second part not authorised":      {[]error{nil, code(13)}, code(13), fateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, tracker := track(t.Context())
			m := trackers()
			for _, err := range c.commands {
				m.Started(ctx, &event.CommandStartedEvent{Command: bson.Raw{5, 0, 0, 0, 0}})
				if err != nil {
					m.Failed(ctx, &event.CommandFailedEvent{Failure: err})
				}
			}
			if got := commandFailed(c.err, tracker).fate; got != c.want {
				t.Errorf("fate %d, want %d", got, c.want)
			}
		})
	}
}

// TestWriteFate: of a bulk as a whole the worst is said that may be true of an item.
func TestWriteFate(t *testing.T) {
	item := func(code int) mongo.BulkWriteError {
		return mongo.BulkWriteError{WriteError: mongo.WriteError{Code: code}}
	}
	duplicate := func(key string) mongo.BulkWriteError {
		raw, err := bson.Marshal(bson.D{{Key: "keyPattern", Value: bson.D{{Key: key, Value: 1}}}})
		testenv.Must(t, err)
		return mongo.BulkWriteError{WriteError: mongo.WriteError{Code: codeDuplicateKey, Raw: raw}}
	}
	for name, c := range map[string]struct {
		items   []mongo.BulkWriteError
		concern bool
		want    fate
	}{
		"conflict":               {[]mongo.BulkWriteError{item(codeWriteConflict)}, false, fateRetry},
		"interrupted":            {[]mongo.BulkWriteError{item(11600)}, false, fateUnknown},
		"refused":                {[]mongo.BulkWriteError{item(121)}, false, fateRefused},
		"interrupted, refused":   {[]mongo.BulkWriteError{item(11600), item(121)}, false, fateUnknown},
		"refused, interrupted":   {[]mongo.BulkWriteError{item(121), item(11600)}, false, fateUnknown},
		"conflict, refused":      {[]mongo.BulkWriteError{item(codeWriteConflict), item(121)}, false, fateRefused},
		"unknown, refused":       {[]mongo.BulkWriteError{item(371), item(121)}, false, fateStrange},
		"unknown, interrupted":   {[]mongo.BulkWriteError{item(371), item(11600)}, false, fateUnknown},
		"no number":              {[]mongo.BulkWriteError{item(14)}, false, fateUnusable},
		"refused, conflict":      {[]mongo.BulkWriteError{item(121), item(codeWriteConflict)}, false, fateRefused},
		"concern alone":          {nil, true, fateUnknown},
		"concern and refused":    {[]mongo.BulkWriteError{item(121)}, true, fateUnknown},
		"duplicate of the job":   {[]mongo.BulkWriteError{duplicate("job_id")}, false, fateRetry},
		"duplicate unnamed":      {[]mongo.BulkWriteError{item(codeDuplicateKey)}, false, fateRetry},
		"duplicate of something": {[]mongo.BulkWriteError{duplicate("order")}, false, fateRefused},
	} {
		t.Run(name, func(t *testing.T) {
			one, many := mongo.WriteException{}, bulk{failed: map[int]mongo.WriteError{}}
			for i, e := range c.items {
				one.WriteErrors = append(one.WriteErrors, e.WriteError)
				many.failed[i] = e.WriteError
			}
			if c.concern {
				one.WriteConcernError = &mongo.WriteConcernError{Code: 64}
				many.unsafe = *one.WriteConcernError
			}
			if got := writeFailed(one, &tracker{sent: 1, commands: 1}).fate; got != c.want {
				t.Errorf("fate %d, want %d", got, c.want)
			}
			if got := many.failure().fate; got != c.want {
				t.Errorf("in a bulk: fate %d, want %d", got, c.want)
			}
		})
	}
}
