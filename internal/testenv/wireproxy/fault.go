package wireproxy

import (
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// Fault decides what becomes of one command. It may forward the command and reply, once each, and blocks for as long as
// it holds the command. An error cuts the client's connection and the database's behind it.
type Fault func(x *Exchange) error

var errCut = errors.New("cut on purpose")

// CutBefore cuts the connection; the command never reaches the database.
func CutBefore(*Exchange) error { return errCut }

// CutAfter cuts the connection once the database has answered, so that what it did is done and nobody is told.
func CutAfter(x *Exchange) error {
	_, _ = x.Forward()
	return errCut
}

// BlackHole neither forwards the command nor ever answers.
func BlackHole(x *Exchange) error { return x.hold(nil) }

// Hold keeps the command until release is closed. Then it is carried out, even when the client has gone.
func Hold(release <-chan struct{}) Fault {
	return func(x *Exchange) error {
		if err := x.hold(release); err != nil {
			return err
		}
		return x.Pass()
	}
}

// HoldReply lets the database carry the command out, and keeps the answer until release is closed.
func HoldReply(release <-chan struct{}) Fault {
	return func(x *Exchange) error {
		reply, err := x.Forward()
		if err != nil {
			return err
		}
		if err := x.hold(release); err != nil {
			return err
		}
		return x.Reply(reply)
	}
}

// Delay keeps the command for as long as it says.
func Delay(d time.Duration) Fault {
	return func(x *Exchange) error {
		if err := x.sleep(d); err != nil {
			return err
		}
		return x.Pass()
	}
}

// Throttle relays the answer in small pieces, at so many bytes per second.
func Throttle(bytesPerSecond int) Fault {
	return func(x *Exchange) error {
		x.bytesPerSecond = bytesPerSecond
		return x.Pass()
	}
}

// Fail answers with an error of the whole command, which never reaches the database.
func Fail(code int32, name string) Fault {
	return func(x *Exchange) error {
		return x.Reply(bson.D{
			{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: name + " on purpose"}, {Key: "code", Value: code}, {Key: "codeName", Value: name},
		})
	}
}

// FailConcern lets the database carry the write out, and adds a write concern error to its answer.
func FailConcern(code int32, name string) Fault {
	return func(x *Exchange) error {
		reply, err := x.Forward()
		if err != nil {
			return err
		}
		var doc bson.D
		if err := bson.Unmarshal(reply, &doc); err != nil {
			return err
		}
		return x.Reply(append(doc, bson.E{Key: "writeConcernError", Value: bson.D{
			{Key: "code", Value: code}, {Key: "codeName", Value: name}, {Key: "errmsg", Value: name + " on purpose"},
		}}))
	}
}

// ItemError is the error of one write of a command.
type ItemError struct {
	Code int32
	// KeyPattern is that of a duplicate key error; none when nil.
	KeyPattern bson.D
}

// RefuseItems fails those writes of the command that pick chooses, as if the database had refused them: they never
// reach it. The others do, as one command.
func RefuseItems(e ItemError, pick func(item bson.Raw) bool) Fault { return failItems(e, pick, false) }

// DisownItems lets the database carry the whole command out, and then reports those writes that pick chooses as
// failed.
func DisownItems(e ItemError, pick func(item bson.Raw) bool) Fault { return failItems(e, pick, true) }

func failItems(e ItemError, pick func(bson.Raw) bool, landed bool) Fault {
	return func(x *Exchange) error {
		var forwarded, failed []int // places in the command
		var kept bson.A
		for i, item := range x.Command.Items() {
			if pick(item) {
				failed = append(failed, i)
			}
			if landed || !pick(item) {
				forwarded, kept = append(forwarded, i), append(kept, item)
			}
		}
		reply := bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(0)}, {Key: "nModified", Value: int32(0)}}
		if len(kept) > 0 {
			raw, err := x.forwardItems(kept)
			if err != nil {
				return err
			}
			if err := bson.Unmarshal(raw, &reply); err != nil {
				return err
			}
		}
		return x.Reply(mergeErrors(reply, forwarded, failed, e))
	}
}

// forwardItems forwards the command with other writes in it.
func (x *Exchange) forwardItems(items bson.A) (bson.Raw, error) {
	var command bson.D
	if err := bson.Unmarshal(x.Command.Body, &command); err != nil {
		return nil, err
	}
	for i := range command {
		if command[i].Key == wire.ItemsOf[x.Command.Name] {
			command[i].Value = items
		}
	}
	raw, err := bson.Marshal(command)
	if err != nil {
		return nil, err
	}
	return x.forward(wire.New(x.request.ID(), 0, raw))
}

// mergeErrors puts the places of the whole command into the database's reply, and the failed writes.
func mergeErrors(reply bson.D, forwarded, failed []int, e ItemError) bson.D {
	var upserted, writeErrors bson.A
	out := bson.D{}
	for _, field := range reply {
		items, _ := field.Value.(bson.A)
		switch field.Key {
		case "upserted", "writeErrors":
			for _, item := range items {
				doc, place, ok := atPlace(item, forwarded)
				if !ok || slices.Contains(failed, place) {
					continue
				}
				if field.Key == "upserted" {
					upserted = append(upserted, doc)
				} else {
					writeErrors = append(writeErrors, doc)
				}
			}
		default:
			out = append(out, field)
		}
	}
	for _, i := range failed {
		doc := bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: e.Code}, {Key: "errmsg", Value: "failed on purpose"}}
		if e.KeyPattern != nil {
			doc = append(doc, bson.E{Key: "keyPattern", Value: e.KeyPattern})
		}
		writeErrors = append(writeErrors, doc)
	}
	if len(upserted) > 0 {
		out = append(out, bson.E{Key: "upserted", Value: upserted})
	}
	if len(writeErrors) > 0 {
		out = append(out, bson.E{Key: "writeErrors", Value: writeErrors})
	}
	return out
}

// atPlace replaces an item's index among the forwarded writes by its place in the whole command.
func atPlace(item any, forwarded []int) (doc bson.D, place int, ok bool) {
	doc, _ = item.(bson.D)
	doc = slices.Clone(doc)
	for i := range doc {
		n, isIndex := doc[i].Value.(int32)
		if doc[i].Key == "index" && isIndex && int(n) < len(forwarded) {
			place = forwarded[n]
			doc[i].Value = int32(place)
			return doc, place, true
		}
	}
	return nil, 0, false
}
